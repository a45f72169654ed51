"""Steps of a ladder: differences of neighbours that sum to the gap, the layer that holds it, what cancels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import small_runs
from small_runs import MS

from dashboard import pairs
from dashboard.catalogue import Catalogue
from dashboard.charts.rungs.ladder import heat
from dashboard.charts.rungs.ladder_steps import waterfall
from dashboard.cli import main
from dashboard.compare.climb import TOP, Climb
from dashboard.compare.ladder import KEYS, base_of, climb, rungs_of
from dashboard.compare.numbers import Key
from dashboard.jobs import what_if
from dashboard.metrics import LADDER_NUMBERS
from dashboard.render.ladder import ladder_text, sentences
from dashboard.store import Store
from engine.ladder.rungs import RUNGS

TTFT = Key("ttft", "mean")
LAYERS = {rung.number: rung.isolates for rung in RUNGS}


def write(store: Path, slug: str, ttft_ms: float, **more: object) -> str:
    """A run of four requests on two lanes, 10 ms apart in TTFT, whose mean is ``ttft_ms``."""
    rows = [
        small_runs.request(
            f"r{at}",
            lane=at % 2,
            at=at * 1000 * MS,
            first_visible_ns=int((at * 1000 + ttft_ms + 10 * at - 15) * MS),
            last_visible_ns=(at * 1000 + 900) * MS,
            end_ns=(at * 1000 + 901) * MS,
        )
        for at in range(4)
    ]
    return small_runs.write(store, slug, rows, **more)


def ladder(store: Path, levels: dict[int, float], repeat_ms: float | None = None) -> tuple[str, str]:
    """A measured run, its prediction and rungs, each with a mean TTFT of its level in ms."""
    measured = write(store, "real", levels[6])
    if repeat_ms is not None:
        write(store, "real_repeat", repeat_ms)
    base = write(store, "predicted", levels[0], kind="replay", lineage={"rung": None})
    for rung in range(1, 6):
        if rung in levels:
            lineage = {"rung": rung, "ladder": {"measured": measured, "base": base, "taken": [], "left": []}}
            write(store, f"predicted-rung{rung}", levels[rung], kind="replay", lineage=lineage)
    return measured, base


ALL = {0: 80.0, 1: 81.0, 2: 84.0, 3: 82.0, 4: 96.0, 5: 97.0, 6: 100.0}


def test_neighbours_are_compared_and_their_differences_sum_to_the_gap(tmp_path: Path) -> None:
    measured, base = ladder(tmp_path, ALL)
    store = Store([tmp_path])
    found = climb(store, measured, base).steps
    assert [(step.left, step.right) for step in found] == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6)]
    assert [step.layers for step in found] == [(LAYERS[rung],) for rung in range(1, 7)]
    differences = [step.changes[TTFT].difference for step in found]
    assert differences == pytest.approx([1, 3, -2, 14, 1, 3])
    assert sum(differences) == pytest.approx(100 - 80)
    assert found[3].changes[TTFT].relative == pytest.approx(0.14)
    for key in (key for key in KEYS if key.metric != "itl"):  # these runs have no chunks
        told = [step.changes[key].difference for step in found]
        gap = climb(store, measured, base).gaps[key]
        assert gap.gap is not None
        assert sum(told) == pytest.approx(gap.gap, abs=1e-9)


def test_the_layer_with_the_largest_part_is_named_with_its_share(tmp_path: Path) -> None:
    measured, base = ladder(tmp_path, ALL)
    gap = climb(Store([tmp_path]), measured, base).gaps[TTFT]
    assert gap.step is not None
    assert (gap.step.left, gap.step.right) == (3, 4)
    assert gap.share == pytest.approx(14 / 20)
    assert gap.canceling == ()  # rung 3 takes 2 ms of 20 away, which hides little
    (sentence, *_) = sentences(gap)
    assert sentence == (
        f"The largest part of the TTFT mean gap is the {LAYERS[4]} (rung 3 → 4): +14.00 ms of +20.00 ms, 70%; "
        "80.00 predicted, 100.00 measured (ms)."
    )


def test_a_missing_rung_joins_two_layers(tmp_path: Path) -> None:
    measured, base = ladder(tmp_path, {rung: level for rung, level in ALL.items() if rung not in (3, 5)})
    found = climb(Store([tmp_path]), measured, base)
    assert found.missing == (3, 5)
    assert [(step.left, step.right) for step in found.steps] == [(0, 1), (1, 2), (2, 4), (4, 6)]
    assert [step.changes[TTFT].difference for step in found.steps] == pytest.approx([1, 3, 12, 4])
    assert found.steps[2].layers == (LAYERS[3], LAYERS[4])
    assert found.steps[2].layer == f"{LAYERS[3]} or {LAYERS[4]}, which cannot be told apart without rung 3"
    assert "cannot be told apart without rung 3 (rung 2 → 4): +12.00 ms of +20.00 ms" in sentences(found.gaps[TTFT])[0]


@pytest.mark.parametrize(
    ("rungs", "taken"), [((1, 2, 4), [(1,), (2,), (4,), (3, 5, 6)]), ((1, 2, 4, 5), [(1,), (2,), (4,), (3, 5), (6,)])]
)
def test_a_layer_that_could_not_be_taken_stays_in_a_later_step(
    tmp_path: Path, rungs: tuple[int, ...], taken: list[tuple[int, ...]]
) -> None:
    # rung 3 could not be built: rung 4 does without its layer, which the batches of rung 5 bring along
    measured, base = ladder(tmp_path, {0: 80, 6: 100})
    words = {rung.number: rung.taken for rung in RUNGS}
    for rung in rungs:
        told = [words[number] for number in rungs if number <= rung]
        lineage = {"rung": rung, "ladder": {"measured": measured, "base": base, "taken": told}}
        write(tmp_path, f"rung{rung}", 80 + 2 * rung, kind="replay", lineage=lineage)
    found = climb(Store([tmp_path]), measured, base).steps
    assert [step.taken for step in found] == taken
    assert found[2].layer == LAYERS[4]
    assert "cannot be told apart without rung" in found[3].layer


def test_without_any_rung_one_step_spans_everything(tmp_path: Path) -> None:
    measured, base = ladder(tmp_path, {0: 80, 6: 100})
    (step,) = climb(Store([tmp_path]), measured, base).steps
    assert (step.left, step.right, len(step.layers)) == (0, TOP, 6)
    assert "cannot be told apart without rungs 1, 2, 3, 4 and 5" in step.layer


def test_steps_that_hide_each_other_are_said_to_cancel(tmp_path: Path) -> None:
    measured, base = ladder(tmp_path, {0: 99, 1: 99, 2: 99, 3: 99, 4: 119, 5: 119, 6: 100})
    gap = climb(Store([tmp_path]), measured, base).gaps[TTFT]
    assert [(step.left, step.right) for step in gap.canceling] == [(3, 4), (5, 6)]
    assert f"cancel: {LAYERS[4]} (rung 3 → 4) +20.00 ms and {LAYERS[6]} (rung 5 → 6) -19.00 ms" in sentences(gap)[1]


def test_client_and_timing_may_be_one_error_seen_twice(tmp_path: Path) -> None:
    measured, base = ladder(tmp_path, {0: 60, 1: 60, 2: 130, 3: 130, 4: 100, 6: 100})
    said = sentences(climb(Store([tmp_path]), measured, base).gaps[TTFT])
    assert "+70.00 ms of +40.00 ms, 1.8 times the whole, which other steps hide" in said[0]
    assert "may be the other side of an error of the timing model" in said[2]
    assert said[3] == (
        "The steps from rung 1 to 4 together move the TTFT mean by +40.00 ms; no other step exceeds the noise."
    )


def test_what_may_be_one_error_is_taken_together_and_the_rest_named(tmp_path: Path) -> None:
    measured, base = ladder(tmp_path, {0: 40, 1: 70, 2: 130, 3: 125, 4: 80, 5: 85, 6: 100})
    said = sentences(climb(Store([tmp_path]), measured, base).gaps[TTFT])
    assert f"is the {LAYERS[2]} (rung 1 → 2): +60.00 ms of +60.00 ms" in said[0]
    assert said[3] == (
        "The steps from rung 1 to 4 together move the TTFT mean by +10.00 ms; of the others the memory model "
        "(rung 0 → 1) is the largest, +30.00 ms."
    )


def test_a_gap_inside_the_noise_names_no_layer_but_what_cancels(tmp_path: Path) -> None:
    measured, base = ladder(tmp_path, {0: 99, 1: 99, 2: 130, 3: 130, 4: 100, 6: 100}, repeat_ms=98)
    found = climb(Store([tmp_path]), measured, base)
    said = sentences(found.gaps[TTFT])
    assert said[0].startswith("The whole TTFT mean gap, +1.00 ms, lies inside the noise")
    assert "+31.00 ms and" in said[1]
    row = next(line for line in ladder_text(found, "markdown").splitlines() if line.startswith("| TTFT mean"))
    assert row.endswith("| +1.00 ~ | – | 4 | 4 |")


@pytest.mark.parametrize(("equal", "seats", "said"), [(100, 16, True), (99, 16, False), (100, 32, False)])
def test_a_scheduler_that_forms_every_recorded_batch_is_not_blamed(
    tmp_path: Path, equal: int, seats: int, said: bool
) -> None:
    records = small_runs.identity(), small_runs.identity()
    for record, number in zip(records, (16, seats), strict=True):
        record.set("scheduler", "max_num_seqs", number, "test")
    measured = write(tmp_path, "real", 100, record=records[0])
    base = write(tmp_path, "predicted", 80, kind="replay", lineage={"rung": None}, record=records[1])
    for rung, level in ((1, 80), (2, 80), (3, 80), (5, 100)):
        lineage = {"rung": rung, "ladder": {"measured": measured, "base": base, "taken": [], "left": []}}
        write(tmp_path, f"predicted-rung{rung}", level, kind="replay", lineage=lineage)
    parity = {"arrival": {"passes": 100, "equal": equal}}
    lineage = {"rung": 4, "ladder": {"measured": measured, "base": base, "taken": [], "left": [], "parity": parity}}
    write(tmp_path, "predicted-rung4", 80, kind="replay", lineage=lineage)
    found = climb(Store([tmp_path]), measured, base)
    words = sentences(found.gaps[TTFT])
    assert words[0].startswith(f"The largest part of the TTFT mean gap is the {LAYERS[5]} (rung 4 → 5): +20.00 ms")
    assert any("no error of the scheduler" in sentence for sentence in words) == said
    told = f"running requests at most {seats}, recorded 16 ({LAYERS[5]})"
    assert (told in ladder_text(found, "table")) == (seats != 16)


def one_layer(store: Path, config: dict[str, object] | None = None, rungs: tuple[int, ...] = (1, 2, 3, 5)) -> Climb:
    """A ladder whose whole gap opens above rung 4, where every recorded batch was formed again."""
    record = small_runs.identity(topology__replicas=1, topology__serving="aggregated", source__engine="vllm")
    measured = write(store, "real", 100, record=record)
    base = write(store, "predicted", 80, kind="replay", lineage={"config": config or {}}, record=record)
    for rung in rungs:
        lineage = {"rung": rung, "ladder": {"measured": measured, "base": base, "taken": [], "left": []}}
        write(store, f"predicted-rung{rung}", 100 if rung == 5 else 80, kind="replay", lineage=lineage)
    parity = {"arrival": {"passes": 100, "equal": 100}}
    lineage = {"rung": 4, "ladder": {"measured": measured, "base": base, "taken": [], "left": [], "parity": parity}}
    write(store, "predicted-rung4", 80, kind="replay", lineage=lineage)
    return climb(Store([store]), measured, base)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({}, []),
        ({"core": "plain"}, []),
        ({"prefill_schedule_interval": 2, "attention_dp": 2}, ["attention_dp", "prefill_schedule_interval"]),
        ({"prefill_replicas": 2, "transfer_hold": "destination"}, ["prefill_replicas", "transfer_hold"]),
        ({"spec_method": "ngram", "spec_tokens": 2, "spec_acceptance": "0.5"}, None),
    ],
)
def test_pools_ranks_and_drafts_are_settings_of_the_scheduler(
    tmp_path: Path, config: dict[str, object], named: list[str] | None
) -> None:
    found = one_layer(tmp_path, config)
    if named is None:
        named = [name for name in config if name != "core"]
    assert sorted(one.label for one in found.settings) == sorted(named)
    assert all(one.rung == 5 for one in found.settings)
    words = sentences(found.gaps[TTFT])
    assert any("no error of the scheduler" in sentence for sentence in words) == (not named)


def test_a_recording_of_one_pool_has_no_prefill_engines_and_names_no_transfers(tmp_path: Path) -> None:
    found = one_layer(tmp_path, {"prefill_replicas": 2, "transfer_gb_s": 0.01})
    text = ladder_text(found, "table")
    assert f"prefill_replicas 2, recorded 0 ({LAYERS[5]}); transfer_gb_s 0.01, nothing recorded ({LAYERS[5]})" in text


def test_host_memory_belongs_to_the_cache(tmp_path: Path) -> None:
    text = ladder_text(one_layer(tmp_path, {"host_kv_blocks": 100}), "table")
    assert f"host_kv_blocks 100, nothing recorded ({LAYERS[3]})" in text


def test_without_a_step_to_the_batches_nobody_is_acquitted(tmp_path: Path) -> None:
    said = sentences(one_layer(tmp_path, rungs=(1, 2, 3)).gaps[TTFT])
    assert "cannot be told apart without rung 5" in said[0]
    assert not any("no error of the scheduler" in sentence for sentence in said)


@pytest.mark.parametrize(("clamped_ms", "said"), [(10, False), (30, True)])
def test_pass_times_of_other_shapes_are_told(tmp_path: Path, clamped_ms: int, said: bool) -> None:
    measured, base = ladder(tmp_path, {0: 80, 6: 100})
    lineage = {"rung": 4, "ladder": {"measured": measured, "base": base, "taken": [], "left": []}}
    cells = [
        {"class": "mixed", "resolution": "clamped", "count": 1, "modelled_ns": clamped_ms * MS},
        {"class": "mixed", "resolution": "interpolated", "count": 1, "modelled_ns": (100 - clamped_ms) * MS},
    ]
    write(tmp_path, "predicted-rung4", 80, kind="replay", lineage=lineage, coverage=cells)
    text = ladder_text(climb(Store([tmp_path]), measured, base), "table")
    assert (f"{clamped_ms}% of the pass time of rung 4 rests on recorded passes of another shape" in text) == said


def test_numbers_stand_with_what_they_rest_on(tmp_path: Path) -> None:
    measured, base = ladder(tmp_path, {0: 80, 6: 100})
    rows = ladder_text(climb(Store([tmp_path]), measured, base), "markdown").splitlines()
    mean, p99 = (next(row for row in rows if row.startswith(f"| TTFT {name}")) for name in ("mean", "p99"))
    assert mean.endswith("| 4 | 4 |")
    assert p99.startswith("| TTFT p99 (few) |")  # four values, where a p99 needs a hundred


def test_a_step_inside_the_noise_cancels_nothing(tmp_path: Path) -> None:
    measured, base = ladder(tmp_path, {0: 99, 4: 119, 6: 100}, repeat_ms=125)
    assert climb(Store([tmp_path]), measured, base).gaps[TTFT].canceling == ()


def test_without_noise_small_steps_do_not_cancel_and_large_ones_do(tmp_path: Path) -> None:
    # one lane and one request: nothing says how far the measured side moves
    def one(slug: str, ttft_ms: float, **more: object) -> str:
        row = small_runs.request("r", first_visible_ns=int(ttft_ms * MS))
        return small_runs.write(tmp_path, slug, [row], record=small_runs.identity(client__lanes=1), **more)

    measured = one("real", 100)
    for name, step, canceling in (("small", 4.9, False), ("large", 5.1, True)):
        base = one(f"base-{name}", 100, kind="replay", lineage={"about": name})
        one(name, 100 + step, kind="replay", lineage={"rung": 4, "ladder": {"measured": measured, "base": base}})
        gap = climb(Store([tmp_path]), measured, base).gaps[TTFT]
        assert gap.noise is None
        assert (gap.gap, gap.step, bool(gap.canceling)) == (0.0, None, canceling)
        assert sentences(gap)[0] == "The TTFT mean has no gap: 100.00 predicted, 100.00 measured (ms)."


def test_a_step_is_held_against_the_noise_of_the_measured_side(tmp_path: Path) -> None:
    # the repeat deviates by 5 ms: steps of 1, 3 and -2 ms are inside that, the one of 14 ms is not
    measured, base = ladder(tmp_path, ALL, repeat_ms=105)
    found = climb(Store([tmp_path]), measured, base)
    # (its two lanes have 95 and 105 ms: drawn again they give 95 to 105, so 14 ms are beyond that as well)
    where = ["inside", "inside", "inside", "outside", "inside", "inside"]
    assert [step.changes[TTFT].where for step in found.steps] == where
    assert found.gaps[TTFT].where == "outside"
    near, _ = ladder(tmp_path / "near", {0: 97, 4: 98, 6: 100}, repeat_ms=105)
    store = Store([tmp_path / "near"])
    gap = climb(store, near, store.find("predicted").run_id).gaps[TTFT]
    assert gap.where == "inside"
    assert "lies inside the noise" in sentences(gap)[0]


def test_a_step_beyond_one_repeat_and_inside_redrawing_is_open(tmp_path: Path) -> None:
    # the repeat deviates by 2 ms, and its two lanes drawn again give 95 to 105: steps of 3 ms lie between
    measured, base = ladder(tmp_path, ALL, repeat_ms=102)
    found = climb(Store([tmp_path]), measured, base)
    where = ["inside", "open", "inside", "outside", "inside", "open"]
    assert [step.changes[TTFT].where for step in found.steps] == where
    row = next(line for line in ladder_text(found, "markdown").splitlines() if line.startswith("| TTFT mean"))
    cells = [part.strip() for part in row.split("|")]
    assert cells[4:10] == ["+1.00 ~", "+3.00 (open)", "-2.00 ~", "+14.00", "+1.00 ~", "+3.00 (open)"]
    near, _ = ladder(tmp_path / "near", {0: 97, 4: 97.5, 6: 100}, repeat_ms=102)
    store = Store([tmp_path / "near"])
    found = climb(store, near, store.find("predicted").run_id)
    assert found.gaps[TTFT].where == "open"
    said = sentences(found.gaps[TTFT])[0]
    assert "is not shown to be one (beyond one repeat, inside redrawing), so no layer is shown to hold it" in said
    answer, _ = heat(found, dark=False)
    assert answer.rows["largest"][0].as_py() == "none: the noise may be all of it"
    rows, figure = waterfall(store, found, TTFT, dark=False)
    assert rows.rows["state"].to_pylist()[-1] == "beyond one repeat, inside redrawing"
    bands = [(one["y0"], one["y1"]) for one in figure["layout"]["shapes"] if one["type"] == "rect"]
    assert bands == [pytest.approx((98, 102)), pytest.approx((95, 105))]


def test_a_number_that_a_rung_does_not_have_is_stepped_over(tmp_path: Path) -> None:
    measured, base = ladder(tmp_path, {0: 80, 6: 100})
    for rung, cached in ((1, None), (2, 32)):
        rows = [small_runs.request("r", cached_tokens=cached)]
        lineage = {"rung": rung, "ladder": {"measured": measured, "base": base}}
        small_runs.write(tmp_path, f"rung{rung}", rows, kind="replay", lineage=lineage)
    key = Key("hit_ratio", "tokens")
    found = climb(Store([tmp_path]), measured, base)
    first, second, _ = (step.changes[key] for step in found.steps)
    assert first.difference is None
    assert first.reason.startswith("rung 1: ")
    assert (second.since, second.difference) == (0, 0.0)


def test_nothing_is_said_of_a_number_without_a_value_at_an_end(tmp_path: Path) -> None:
    measured = small_runs.write(tmp_path, "real", [small_runs.request("r")])
    base = small_runs.write(tmp_path, "told", [small_runs.request("r", status="error")], kind="replay")
    gap = climb(Store([tmp_path]), measured, base).gaps[TTFT]
    assert (gap.gap, gap.step) == (None, None)
    assert sentences(gap)[0].startswith("The TTFT mean has no gap to split: prediction: ")


def test_a_rung_knows_its_ladder_and_is_never_chosen_for_anybody(tmp_path: Path) -> None:
    measured, base = ladder(tmp_path, ALL)
    store = Store([tmp_path])
    entries = store.catalogue()
    rung = next(entry for entry in entries if entry.rung == 2)
    assert rung.place == "rung 2 of ladder real / predicted"
    assert base_of(entries, rung.run_id) == base_of(entries, base) == base
    assert list(rungs_of(entries, measured, base)) == [0, 1, 2, 3, 4, 5, 6]
    assert pairs.default_replays(store, measured, entries) == [base]
    assert pairs.replays_of(store, measured, entries) == [base]
    assert [entry.rung for entry in pairs.comparable(entries)] == [None, None, 1, 2, 3, 4, 5]
    assert what_if.bases(entries)[:2] == [base, measured]


def test_rungs_of_another_ladder_and_altered_ones_are_not_taken(tmp_path: Path) -> None:
    measured, base = ladder(tmp_path, ALL)
    other = write(tmp_path, "other", 90, kind="replay")
    assert list(rungs_of(Catalogue([tmp_path]).entries(), measured, other)) == [0, TOP]
    rung = next(entry for entry in Catalogue([tmp_path]).entries() if entry.rung == 4)
    file = rung.path / "requests.parquet"
    file.write_bytes(file.read_bytes() + b"x")
    assert climb(Store([tmp_path]), measured, base).missing == (4,)


def test_text_forms_hold_the_same_numbers(tmp_path: Path) -> None:
    measured, base = ladder(tmp_path, {rung: level for rung, level in ALL.items() if rung != 5})
    found = climb(Store([tmp_path]), measured, base)
    told = json.loads(ladder_text(found, "json", {5: "No batches were recorded."}))
    assert [row["number"] for row in told["numbers"]] == list(LADDER_NUMBERS)
    ttft = told["numbers"][0]
    assert [step["difference"] for step in ttft["steps"]] == pytest.approx([1, 3, -2, 14, 4])
    assert ttft["largest"]["layer"] == LAYERS[4]
    assert told["rungs"][5]["why"] == "No batches were recorded."
    table = ladder_text(found, "table", {5: "No batches were recorded."})
    assert "No batches were recorded." in table
    assert "+14.00" in table
    assert "| TTFT mean | ms | 80.00 | +1.00" in ladder_text(found, "markdown")


def test_the_command_line_shows_the_rungs_that_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ladder(tmp_path, {rung: level for rung, level in ALL.items() if rung != 3})
    asked = ["ladder", "real", "predicted", "--show", "--store", str(tmp_path)]
    assert main(asked) == 0
    table = capsys.readouterr().out
    assert "2→4" in table
    assert "not built" in table
    assert main([*asked, "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [step["to"] for step in told["steps"]] == [1, 2, 4, 5, 6]
    assert main(["ladder", "real", "nobody", "--show", "--store", str(tmp_path)]) == 2
    assert "nobody" in capsys.readouterr().err


def test_the_command_line_builds_and_then_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples = str(small_runs.SAMPLES)
    assert (
        main(["ladder", "ample8", "ample8-predicted", "--format", "json", "--store", samples, "--store", str(tmp_path)])
        == 0
    )
    told = json.loads(capsys.readouterr().out)
    assert [rung["run_id"] is not None for rung in told["rungs"]] == [True] * 7
    assert len(told["steps"]) == 6
