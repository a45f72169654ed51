"""Durations read off a recording, pass by pass or by the shape of the batch."""

import json

import numpy as np
import pyarrow as pa
import pytest
from altered_runs import SAMPLES, sample
from hypothesis import given, settings
from hypothesis import strategies as st
from timing_fakes import FakeBundle, bundle, pass_table

from engine import knobs
from engine.bundle import open_bundle
from engine.bundle.schema import RESOLUTIONS
from engine.cli import main as cli
from engine.errors import GapscopeError
from engine.replay import knobs_from_run, simulate
from engine.timing import PassQueries, build_timing, measured_model, model_for
from engine.traces import stored_trace

DECODES = [(0, 0, 0, 2, kv) for kv in (100, 102, 104, 106, 108, 110)]
PREFILL = (1, 64, 0, 2, 112)


def recorded(rows, durations_ms, **columns):
    return FakeBundle("run-0123456789ab", "measured", {"passes": pass_table(rows, [d * 1e6 for d in durations_ms])})


def source(run, **changes):
    values = knobs.resolve({"timing": "measured", **changes})
    return build_timing(values, measured_model(run))


def queries(rows):
    return PassQueries(*np.array(rows, np.int64).reshape(-1, 5).T)


def ms(timing, rows):
    """Durations that a replay gets, in ms, after checking that ``explain`` says the same."""
    asked = [timing.pass_ns(*row) for row in rows]
    assert timing.explain(queries(rows)).total_ns.tolist() == asked
    return [ns / 1e6 for ns in asked]


def explained(timing, rows):
    times = timing.explain(queries(rows))
    return [(RESOLUTIONS[r], times.sources[s]) for r, s in zip(times.resolution, times.source, strict=True)]


# -- by order ------------------------------------------------------------------------------------------------------


def test_passes_come_in_their_order_also_where_one_was_odd():
    rows, durations = [*DECODES, PREFILL], [10, 11, 500, 13, 14, 15, 40]
    timing = source(recorded(rows, durations), measured_match="order")
    assert ms(timing, rows) == durations
    assert set(explained(timing, rows)) == {("exact", "measured in order")}


def test_place_is_found_again_after_passes_that_were_not_recorded():
    rows, durations = [*DECODES, PREFILL], [10, 11, 12, 13, 14, 15, 40]
    timing = source(recorded(rows, durations), measured_match="order")
    # The second and third are not asked for, and one that nobody measured is; then all goes on.
    asked = [rows[0], rows[3], (0, 0, 0, 3, 999), rows[5], rows[6]]
    # What was not measured: the median of the five nearest, which are those of the batch of two with most KV.
    assert ms(timing, asked) == [10, 13, 13, 15, 40]
    assert [told for _, told in explained(timing, asked)] == [
        "measured in order",
        "measured nearby in order",
        "measured near this geometry",
        "measured in order",
        "measured in order",
    ]


def test_of_two_places_the_nearer_one_counts_and_of_two_equally_near_the_later():
    same, other = (0, 0, 0, 1, 50), (0, 0, 0, 9, 9000)
    rows = [same, other, other, other, same, other]
    timing = source(recorded(rows, [1, 20, 21, 22, 5, 23]), measured_match="order")
    assert ms(timing, [other, same])[1] == 5  # two on, three back: at place 2 it is two to either side
    timing = source(recorded(rows, [1, 20, 21, 22, 5, 23]), measured_match="order")
    assert ms(timing, [same]) == [1]


def test_a_recorded_pass_lends_its_duration_once():
    stall = (0, 0, 0, 2, 104)
    timing = source(recorded(DECODES, [10, 11, 500, 13, 14, 15]), measured_match="order")
    # Asked again and again for the geometry of a stalled pass, the passes after it answer, which are nearly like it;
    # then those before it (the last, of 110, is 5.5 % more); and when all are lent, the median of the five around it.
    assert ms(timing, [stall] * 7) == [500, 13, 14, 11, 10, 13, 13]


def test_a_pass_of_nearly_this_geometry_nearby_keeps_the_recording_going():
    rows = [(0, 0, 0, 2, 1000), (0, 0, 0, 2, 1002), (0, 0, 0, 2, 1100), (1, 90, 0, 2, 1004), (0, 0, 0, 2, 1006)]
    timing = source(recorded(rows, [10, 11, 12, 40, 13]), measured_match="order")
    # 3 tokens late all the way; a twentieth of 1,102 is 55, so 1,100 and 1,047 stand for it and 1,006 would not.
    asked = [(0, 0, 0, 2, 997), (0, 0, 0, 2, 999), (0, 0, 0, 2, 1102), (1, 94, 0, 2, 1007), (1, 96, 0, 2, 1007)]
    assert ms(timing, asked) == [10, 11, 12, 40, 40]
    assert explained(timing, asked) == [
        ("interpolated", "measured nearby, of nearly this geometry"),
        ("interpolated", "measured nearby, of nearly this geometry"),
        ("interpolated", "measured nearby, of nearly this geometry"),
        ("interpolated", "measured nearby, of nearly this geometry"),
        ("clamped", "measured near this geometry"),  # 96 tokens are 6 % more than 90, and nothing else prefills
    ]


def test_nearly_equal_passes_are_not_looked_for_beyond_their_window():
    rows = [(0, 0, 0, 4, n) for n in range(5000, 5200)] + [(0, 0, 0, 1, 100)]
    near = source(recorded(rows[1:], [30] * 199 + [9]), measured_match="order")
    assert explained(near, [(0, 0, 0, 1, 101)])[0][1] == "measured nearby, of nearly this geometry"
    far = source(recorded(rows, [30] * 200 + [9]), measured_match="order")
    assert explained(far, [(0, 0, 0, 1, 101)])[0][1] == "measured near this geometry"


def test_place_is_not_looked_for_beyond_the_window():
    rows = [(0, 0, 0, 1, 10), *[(0, 0, 0, 4, n) for n in range(1500)], (0, 0, 0, 1, 20)]
    timing = source(recorded(rows, [7, *[30] * 1500, 9]), measured_match="order")
    assert ms(timing, [(0, 0, 0, 1, 20)]) == [9]  # of 7, 9 and, so that none is alone, the next batch
    near = source(recorded(rows[-900:], [30] * 899 + [9]), measured_match="order")
    assert ms(near, [(0, 0, 0, 1, 20)]) == [9]


# -- by geometry ---------------------------------------------------------------------------------------------------


def test_three_passes_of_one_geometry_are_its_duration():
    rows = [DECODES[0]] * 3 + DECODES[1:]
    timing = source(recorded(rows, [10, 90, 12, 11, 12, 13, 14, 15]))
    assert ms(timing, [DECODES[0]]) == [12]
    assert explained(timing, [DECODES[0]]) == [("exact", "measured at this geometry")]


def test_one_odd_pass_is_not_the_price_of_its_neighbours_nor_of_its_own_geometry():
    timing = source(recorded(DECODES, [10, 11, 500, 13, 14, 15]))
    # The five nearest to 104 are 100..108: 10, 11, 500, 13, 14.
    assert ms(timing, [DECODES[2], (0, 0, 0, 2, 105)]) == [13, 14]
    assert explained(timing, [DECODES[2]]) == [("interpolated", "measured near this geometry")]


def test_outside_of_what_was_measured_the_nearest_answer_and_say_so():
    timing = source(recorded([*DECODES, PREFILL], [10, 11, 12, 13, 14, 15, 40]))
    rows = [(0, 0, 0, 2, 5000), (0, 0, 0, 7, 105), (3, 900, 10, 2, 112), (1, 64, 0, 0, 0)]
    # The last: no prefill alone was measured, so one with decodes is nearest to it, then the decodes with least KV.
    assert ms(timing, rows) == [13, 13, 40, 11]
    assert {resolution for resolution, _ in explained(timing, rows)} == {"clamped"}
    refusing = source(recorded(DECODES, [10] * 6), on_refused="abort")
    assert refusing.pass_ns(0, 0, 0, 2, 105) == 10_000_000
    with pytest.raises(GapscopeError, match="7 decode requests, 105 decode KV tokens lies outside what run-0123"):
        refusing.pass_ns(0, 0, 0, 7, 105)


def test_prefills_of_one_batch_are_told_apart_by_their_tokens():
    rows = [(1, tokens, 512, 4, 800 + n) for n, tokens in enumerate(range(16, 512, 16))]
    timing = source(recorded(rows, [10 + row[1] / 10 for row in rows]))
    assert ms(timing, [(1, 160, 512, 4, 810), (1, 161, 512, 4, 810)]) == [26, 26]
    assert explained(timing, [(1, 161, 512, 4, 810)]) == [("interpolated", "measured near this geometry")]


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["order", "geometry"]),
    st.lists(st.integers(0, 239), max_size=60),
    st.lists(st.tuples(*[st.integers(0, 700)] * 5).filter(lambda row: row[0] + row[3] > 0), max_size=20),
    st.randoms(use_true_random=False),
)
def test_prices_are_what_is_explained_in_whatever_order(match, places, others, shuffle):
    run = bundle("run-0123456789ab", "measured")
    rows = measured_model(run)["passes"].geometry().tolist()
    asked = [tuple(rows[place]) for place in places] + others
    shuffle.shuffle(asked)
    values = knobs.resolve({"timing": "measured", "measured_match": match})
    timing = build_timing(values, measured_model(run))
    ms(timing, asked)
    lowest, highest = (bound(measured_model(run)["passes"].duration_ns) for bound in (min, max))
    assert all(lowest <= ns <= highest for ns in timing.explain(queries(asked)).total_ns)


# -- between passes ------------------------------------------------------------------------------------------------


def between(timing, rows):
    return [timing.pass_ns(*row) and timing.between_ns for row in rows]


def test_host_time_is_that_after_the_pass():
    periods = [
        None,
        13_000_000,
        12_500_000,
        None,
        14_800_000,
        15_100_000,
    ]  # end to end, of a pass and what is before it
    table = pass_table(DECODES, [d * 1e6 for d in (10, 11, 12, 13, 14, 15)])
    place = table.schema.get_field_index("period_ns")
    table = table.set_column(place, "period_ns", pa.array(periods, pa.int64()))
    run = FakeBundle("run-0123456789ab", "measured", {"passes": table})
    timing = source(run, measured_match="order")
    # Unknown after the third (it idled) and after the last: what is typical, the median of 2, 0.5, 0.8 and 0.1 ms.
    assert timing.between_ns == 650_000
    assert between(timing, DECODES) == [2_000_000, 500_000, 650_000, 800_000, 100_000, 650_000]
    assert timing.describe()["between_ns"] == 650_000
    fixed = source(run, measured_match="order", between_passes_ms=0.25)
    assert between(fixed, DECODES) == [250_000] * 6
    # By geometry the median of those that the duration is the median of.
    assert between(source(run), [DECODES[2]]) == [650_000]


def test_host_time_where_no_period_was_recorded():
    table = pass_table(DECODES, [10e6] * 6, between_ns=300_000).drop_columns(["period_ns"])
    assert between(source(FakeBundle("run-0123456789ab", "measured", {"passes": table})), DECODES) == [300_000] * 6
    prefills = pass_table([(1, 8, 0, 0, 0)] * 3, [10e6] * 3, between_ns=300_000).drop_columns(["period_ns"])
    # A prefill alone may have waited for its request: nothing is known.
    assert source(FakeBundle("run-0123456789ab", "measured", {"passes": prefills})).between_ns == 0


def test_scale_is_on_durations_alone():
    timing = source(recorded(DECODES, [10] * 6), pass_scale=0.5)
    assert between(timing, DECODES[:1]) == [250_000]
    assert ms(timing, DECODES) == [5] * 6


# -- models and commands -------------------------------------------------------------------------------------------


def test_a_replay_and_a_fitted_model_are_refused_in_words():
    with pytest.raises(GapscopeError, match="is a replay: its passes are a model's"):
        measured_model(bundle("run-0123456789ab", "replay"))
    values = knobs.resolve({"timing": "measured"})
    for model in (None, {"kind": "fpm"}):
        with pytest.raises(GapscopeError, match="timing='measured' needs the recorded passes of a run"):
            build_timing(values, model)
    with pytest.raises(GapscopeError, match="on_refused=extrapolate"):
        source(recorded(DECODES, [10] * 6), on_refused="extrapolate")


def test_replay_keeps_the_run_that_timed_it():
    measured = sample("ample8")
    assert model_for(measured, [])["run_id"] == measured.run_id
    predicted = sample("ample8-predicted")
    assert model_for(predicted, [SAMPLES])["run_id"] == measured.run_id
    predicted.lineage["timing"] = {"kind": "measured", "run_id": sample("tight8").run_id, "phases": ["warmup"]}
    model = model_for(predicted, [SAMPLES])
    assert (model["run_id"], model["phases"]) == (sample("tight8").run_id, ["warmup"])
    predicted.lineage = {}
    with pytest.raises(GapscopeError, match="is a replay of no measured run"):
        model_for(predicted, [SAMPLES])


def test_both_cores_agree_under_recorded_passes():
    run = sample("tight8")
    trace = stored_trace([SAMPLES], run.identity.value("trace", "digest"))
    digests = []
    for core in ("plain", "skipping"):
        changes = {"timing": "measured", "measured_match": "order", "core": core, "duration_s": 20.0}
        values = knobs.resolve(changes, knobs_from_run(run))
        model = measured_model(run)
        record = simulate(trace, values, build_timing(values, model), model).record
        digests.append({name: column.tolist() for name, column in record.passes.items() if "var" not in name})
    assert digests[0] == digests[1]
    assert len(digests[0]["start_ns"]) > 500


def test_command_replays_with_recorded_passes(tmp_path, capsys):
    stores = ["--store", str(SAMPLES), "--store", str(tmp_path)]
    short = ["--set", "duration_s=5", "--set", "warmup_s=2", "--timing", "measured"]
    assert cli.main(["replay", "--like", "ample8", "--dry-run", *short, *stores]) == 0
    assert "measured" in capsys.readouterr().out
    assert cli.main(["replay", "--like", "ample8", *short, *stores]) == 0
    run = open_bundle(tmp_path / capsys.readouterr().out.strip())
    timing = run.lineage["timing"]
    assert (timing["kind"], timing["run_id"], timing["match"]) == ("measured", sample("ample8").run_id, "geometry")
    assert timing["model"] is None  # the passes stay in the measured run
    assert len(json.dumps(timing)) < 1000
    assert [entry["run_id"] for entry in run.lineage["fitted_on"]] == [sample("ample8").run_id]
    coverage = run.table("coverage")
    assert set(coverage["source"].to_pylist()) <= {"measured at this geometry", "measured near this geometry"}
    # The replay can be varied from its own record.
    assert cli.main(["replay", "--like", run.run_id, "--set", "kv_blocks=2048", *stores]) == 0
    assert cli.main(["replay", "--like", "ample8", "--fit", "fpm_sweep", *short, *stores]) == 2
    assert "timing=measured takes the recorded passes of --like" in capsys.readouterr().err
