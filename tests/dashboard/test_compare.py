"""Rows, states, noise, warnings, ledgers, claims and gates of a comparison, on runs counted by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import MS, S, a_pass, identity, request, write

from dashboard.compare import compare, judged, pair_label
from dashboard.compare.gates import Gate, judge
from dashboard.compare.noise import noise, resampled, weighted_statistics
from dashboard.compare.numbers import Key, Number, number
from dashboard.compare.rows import Row, State
from dashboard.frame import roles
from dashboard.metrics import HEADLINE, Estimator, Population, Window
from dashboard.queries import cohort
from dashboard.queries.identity import repeats
from dashboard.render.comparison import comparison_text
from dashboard.samples import Sample, statistic
from dashboard.store import Store
from engine.bundle import Check, replay_lineage
from engine.definitions import STREAM_ERROR_FAILED, STREAM_ERROR_SUCCESS
from engine.errors import GapscopeError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def slower(factor: float, count: int = 4, **values: Any) -> list[dict[str, Any]]:
    """Requests on two lanes whose latencies are the usual ones times a factor."""
    return [
        request(
            f"r{k}",
            at=k * S,
            lane=k % 2,
            first_visible_ns=k * S + round(100 * factor * MS),
            last_visible_ns=k * S + round(180 * factor * MS),
            end_ns=k * S + round(181 * factor * MS),
            **values,
        )
        for k in range(count)
    ]


@pytest.mark.parametrize(
    ("repeats", "slow", "fast"),
    [
        ((1.04,), "open", "open"),  # equal values cannot be drawn otherwise, so one repeat is all that is known
        ((1.04, 1.01, 0.99), "worse", "better"),
    ],
)
def test_states_with_repeats(root: Path, repeats: tuple[float, ...], slow: str, fast: str) -> None:
    measured = write(root, "m", slower(1.0))
    for at, factor in enumerate(repeats):
        write(root, f"m_repeat{at}", slower(factor), record=identity(hardware__load=[3.0]))
    write(root, "other", slower(3.0), record=identity(client__lanes=4))
    states = {}
    for name, factor in (("near", 0.97), ("slow", 1.05), ("fast", 0.9), ("equal", 1.0)):
        found = compare(Store([root]), measured, write(root, name, slower(factor, error_type=name), kind="replay"))
        row = found.row("ttft.mean")
        states[name] = row.state
        assert row.gap == pytest.approx(factor - 1, abs=1e-12)
        assert row.noise is not None
        assert (row.noise.kind, row.noise.n) == ("repeats", len(repeats))
        assert row.noise.relative(100.0) == pytest.approx((-0.04, 0.04))
        assert len(found.repeats) == len(repeats)
        assert not [w for w in found.warnings if w.code == "noise"]
    assert states == {"near": "~", "slow": slow, "fast": fast, "equal": "same"}


def test_a_higher_rate_is_better_and_a_number_without_a_side_differs(root: Path) -> None:
    measured = write(root, "m", slower(1.0), passes=[a_pass(0), a_pass(1)])
    replay = write(root, "r", slower(1.0, 6), kind="replay", passes=[a_pass(0)])
    found = compare(Store([root]), measured, replay)
    assert found.row("request_rate.fixed").state == "better"
    assert found.row("request_rate.fixed").gap == pytest.approx(0.5)
    assert found.row("pass_count.decode_only").state == "differs"
    assert found.row("pass_count.mixed").state == "same"


def test_what_is_missing_is_not_comparable_and_says_why(root: Path) -> None:
    measured = write(root, "m", slower(1.0))
    replay = write(root, "r", slower(1.0, status="error"), kind="replay")
    found = compare(Store([root]), measured, replay)
    row = found.row("ttft.p99")
    assert (row.state, row.gap, row.replay.value, row.replay.n) == ("not comparable", None, None, 0)
    assert row.reason.startswith("replay: ")
    assert "measured: Not recorded" in found.row("itl.mean").reason
    matched = compare(
        Store([root]), measured, write(root, "r2", slower(1.1), kind="replay"), Population("profile", "matched"),
        window=Window.COMPLETIONS,
    )  # fmt: skip
    assert "matched subset" in matched.row("request_rate.completions").reason
    assert [w.code for w in matched.warnings if w.code == "subset"]


def test_a_zero_has_no_relative_gap(root: Path) -> None:
    measured = write(root, "m", slower(1.0))
    replay = write(root, "r", slower(1.0, preemptions=1), kind="replay")
    row = compare(Store([root]), measured, replay).row("preemptions.requests")
    assert (row.measured.value, row.replay.value, row.gap, row.state) == (0, 4, None, "worse")


def test_percentiles_of_few_values_are_flagged(root: Path) -> None:
    measured = write(root, "m", slower(1.0))
    found = compare(Store([root]), measured, write(root, "r", slower(1.1), kind="replay"))
    assert not found.row("ttft.p99").measured.supported
    text = next(w.text for w in found.warnings if w.code == "support")
    assert "ttft.p99" in text
    assert "ttft.mean" not in text


def test_warnings_are_values(root: Path) -> None:
    measured = write(root, "m", slower(1.0), qualification=[Check("clock", "fail", "drift of 3 ms")])
    replay = write(root, "r", slower(1.1), kind="replay", record=identity(source__version="2.0"))
    codes = {w.code: w.text for w in compare(Store([root]), measured, replay).warnings}
    assert "engine version" in codes["regime"]
    assert "drift of 3 ms" in codes["qualification"]
    assert "noise" in codes


def test_what_requests_in_flight_leave_out_is_said_beside_them(root: Path) -> None:
    measured = write(root, "m", [*slower(1.0), request("lost", end_ns=None, status="error")])
    found = compare(Store([root]), measured, write(root, "r", slower(1.1), kind="replay"))
    words = "1 request without a recorded end left out; the mean is a lower bound"
    assert [c.note for c in found.consistency] == [words, ""]
    assert found.row("in_flight.observed").reason.endswith(f"; measured: {words}")
    assert [w.text for w in found.warnings if w.code == "left_out"] == [f"Requests in flight, measured: {words}."]
    assert f"({words})" in comparison_text(found, "table")


def test_the_label_follows_from_lineage(root: Path) -> None:
    measured = write(root, "m", slower(1.0))
    blind = replay_lineage(fitted_on=[], config={}, knobs_changed={}, store_held_at_seal=[])
    held = replay_lineage(fitted_on=[], config={}, knobs_changed={}, store_held_at_seal=[measured])
    store = Store([root])
    labels = {
        compare(store, measured, write(root, name, slower(1.1), kind="replay", lineage=lineage)).label
        for name, lineage in (("blind", blind), ("held", held))
    }
    assert labels == {"blind_prediction", "post_result_exploratory"}
    again = compare(store, measured, write(root, "m2", slower(1.2)))
    assert again.label == "measured_repeat"
    assert again.claim[0].startswith("Two runs of one experiment: their gap is run-to-run variation")
    assert again.claim[1].startswith("Over 4 successes of the reference and 4 of the run compared with it (")


def test_two_measurements_of_two_experiments_are_no_repeat(root: Path) -> None:
    measured = write(root, "m", slower(1.0))
    record = identity(source__version="2.0")
    record.set("definitions", "stream_errors", "a success", "test")
    record.set("definitions", "itl", "pooled", "test")
    other = write(root, "other", slower(1.2), record=record)
    store = Store([root])
    found = compare(store, measured, other)
    assert found.label == pair_label(store, other, measured) == "measured_pair"
    assert found.claim[0] == (
        "Two measurements that are no repeats of one experiment: their gap is no error of a model, and mixes "
        "run-to-run variation with differing identity fields (1), fields known of one run only (2)."
    )
    text = comparison_text(found, "table")
    assert text.startswith(
        f"reference {measured}, compared with it {other}\n  label: measured against measured, no repeat"
    )
    assert "of 4 and 4 successes (" in text
    header = next(line for line in text.splitlines() if line.startswith("metric  "))
    assert {"reference", "compared with it"} <= {name.strip() for name in header.split("  ")}
    assert "replay" not in [word for line in text.splitlines() for word in line.split()[:1]]  # no side of the ledger


def test_a_run_that_failed_a_check_is_no_repeat_either(root: Path) -> None:
    measured = write(root, "m", slower(1.0))
    failed = write(root, "f", slower(1.2), qualification=[Check("clock", "fail", "drift of 3 ms")])
    found = compare(Store([root]), measured, failed)
    assert found.label == "measured_pair"
    assert found.claim[0].endswith("mixes run-to-run variation with failed checks (clock).")


def test_the_same_recording_under_another_name_is_no_repeat(root: Path) -> None:
    measured = write(root, "m", slower(1.0))
    again = write(root, "other_name", slower(1.0))
    assert measured[-12:] == again[-12:]
    assert repeats(Store([root]), measured) == []
    repeat = write(root, "m", slower(1.01))
    assert repeats(Store([root]), measured) == [repeat]


def test_definitions_that_differ_are_named_in_the_claim(root: Path) -> None:
    records = identity(), identity()
    for record, rule in zip(records, (STREAM_ERROR_FAILED, STREAM_ERROR_SUCCESS), strict=True):
        record.set("definitions", "stream_errors", rule, "test")
    pair = [write(root, f"m{k}", slower(1.0), record=record) for k, record in enumerate(records)]
    found = compare(Store([root]), *pair)
    assert found.claim[0].endswith("differing identity fields (1, among them definitions: errors inside a stream).")
    said = f"errors inside a stream are '{STREAM_ERROR_FAILED}' on one side and '{STREAM_ERROR_SUCCESS}' on the other"
    for name in ("request_rate.fixed", "output_rate.fixed", "e2e.mean", "in_flight.little"):
        assert found.row(name).reason.endswith(f"; {said}"), name
    for name in ("ttft.mean", "tpot.mean", "in_flight.observed"):
        assert said not in found.row(name).reason, name
    assert [w.text for w in found.warnings if w.code == "definitions"] == [
        f"E2E, Requests, Output tokens, Total tokens, Output tokens per GPU: {said}."
    ]


def test_the_label_does_not_depend_on_who_stands_where(root: Path) -> None:
    lineage = replay_lineage(fitted_on=[], config={}, knobs_changed={}, store_held_at_seal=[])
    measured = write(root, "m", slower(1.0))
    one, other = (write(root, n, slower(f), kind="replay", lineage=lineage) for n, f in (("a", 1.1), ("b", 1.2)))
    store = Store([root])
    assert pair_label(store, measured, one) == pair_label(store, one, measured) == "blind_prediction"
    assert pair_label(store, one, other) == "replay_pair"
    assert pair_label(store, one, one) == pair_label(store, measured, measured) == "same_run"
    again = write(root, "another-name", slower(1.0))
    assert again.rpartition("-")[2] == measured.rpartition("-")[2]
    assert pair_label(store, measured, again) == "same_run"


def test_a_model_fitted_on_the_measured_run_is_said(root: Path) -> None:
    measured = write(root, "m", slower(1.0))
    lineage = replay_lineage([{"run_id": measured, "phases": ["warmup"], "tables": {}}], {}, {}, [])
    found = compare(Store([root]), measured, write(root, "r", slower(1.1), kind="replay", lineage=lineage))
    assert [w.text for w in found.warnings if w.code == "fitted"] == [
        "The timing model was fitted on the measured run itself: warmup."
    ]


def test_coverage_rows_and_warning(root: Path) -> None:
    cells = [
        {"class": "decode_only", "decode_requests": 1, "resolution": "exact", "count": 3, "modelled_ns": 30},
        {"class": "decode_only", "decode_requests": 9, "resolution": "clamped", "count": 1, "modelled_ns": 70},
    ]
    passes = [a_pass(0, resolution="exact"), a_pass(1, resolution="clamped")]
    measured = write(root, "m", slower(1.0))
    replay = write(root, "r", slower(1.1), kind="replay", coverage=cells, passes=passes)
    found = compare(Store([root]), measured, replay)
    assert found.row("coverage.queries").replay.value == pytest.approx(0.75)
    assert found.row("coverage.passes").replay.value == pytest.approx(0.5)
    assert found.row("coverage.time").replay.value == pytest.approx(0.3)
    assert any(w.text.startswith("70.0% of the modelled time") for w in found.warnings)


def test_the_ledger_by_hand(root: Path) -> None:
    rows = [
        request("a"),
        request("b", status="canceled"),
        request("c", status="error"),
        request("d", status="rejected"),
        request("e", status="in_flight", end_ns=None),
        request("f", phase="warmup", at=-S),
        request("g", phase=None, status="never_issued", dispatched_ns=None, at=0),
    ]
    run_id = write(
        root, "m", [r | {"dispatched_ns": None} if r["request_id"] == "g" else r for r in rows], never_issued=3
    )
    told = cohort.ledger(Store([root]), run_id)
    assert told.balanced
    assert [(r.phase, r.attempted, r.ok, r.canceled, r.error, r.rejected, r.in_flight) for r in told.rows] == [
        ("warmup", 1, 1, 0, 0, 0, 0),
        ("profile", 5, 1, 1, 1, 1, 1),
    ]
    assert (told.never_issued, told.in_graph) == (3, 9)


def test_matched_subset_keeps_the_denominators(root: Path) -> None:
    measured = write(root, "m", [request("a"), request("b"), request("c", status="canceled")])
    replay = write(root, "r", [request("a"), request("x"), request("y")], kind="replay")
    found = compare(Store([root]), measured, replay).matched
    assert (found.matched, found.measured_attempted, found.measured_ok) == (1, 3, 2)
    assert (found.replay_attempted, found.replay_ok) == (3, 3)
    assert (found.measured_remainder, found.replay_remainder) == (1, 2)


@pytest.mark.parametrize(
    ("population", "counts"),
    [("profile", (3, 3)), ("profile.root", (2, 1)), ("profile.child", (1, 2)), ("profile.matched", (1, 1)),
     ("warmup", (1, 0))],
)  # fmt: skip
def test_a_claim_counts_the_successes_of_its_population(root: Path, population: str, counts: tuple[int, int]) -> None:
    child = {"agent_depth": 1}
    left = [request("a"), request("b"), request("c", **child), request("w", at=-S, phase="warmup")]
    right = [request("a"), request("x", **child), request("y", **child), request("z", status="canceled")]
    measured, replay = write(root, "m", left), write(root, "r", right, kind="replay")
    found = compare(Store([root]), measured, replay, Population.parse(population))
    assert f"Over {counts[0]} measured and {counts[1]} replayed successes" in found.claim[1]


def test_a_claim_without_gates_passes_nothing(root: Path) -> None:
    measured = write(root, "m", slower(1.0))
    found = compare(Store([root]), measured, write(root, "r", slower(1.1), kind="replay"))
    assert any("nothing here passes or fails" in sentence for sentence in found.claim)
    assert any("4 measured and 4 replayed" in sentence for sentence in found.claim)


def test_a_repeat_has_an_equal_identity_but_for_what_is_sampled(root: Path) -> None:
    base = write(root, "m", slower(1.0))
    same = write(root, "m2", slower(1.1), record=identity(hardware__load=[9.9]))
    write(root, "m3", slower(1.2), record=identity(client__lanes=3))
    write(root, "m4", slower(1.3), record=identity(model__revision="r2"))  # unknown on one side is no match
    write(root, "m5", slower(1.4), kind="replay")
    assert repeats(Store([root]), base) == [same]


def test_the_sweep_cannot_be_compared(root: Path) -> None:
    measured = write(root, "m", slower(1.0))
    from small_runs import SAMPLES, sample_id

    with pytest.raises(GapscopeError, match="has no requests to compare, it is a sweep of pass shapes: expected"):
        compare(Store([root, SAMPLES]), measured, sample_id("fpm_sweep"))


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("ttft.mean<=10%", "pass"),
        ("ttft.mean<=4%", "fail"),
        ("ttft.mean<=5.1ms", "pass"),
        ("ttft.mean<=4ms", "fail"),
        ("ttft.mean@warmup<=10%", "fail"),
        ("hit_ratio.tokens<=1pp", "pass"),
        ("preemptions.capture=0..2", "pass"),
        ("preemptions.capture=1..2", "fail"),
        ("request_rate.fixed <= 1%", "pass"),
        ("itl.mean<=10%", "fail"),
    ],
)
def test_gates(root: Path, text: str, verdict: str) -> None:
    measured = write(root, "m", slower(1.0))
    replay = write(root, "r", slower(1.05), kind="replay")
    result = judge(Store([root]), measured, replay, Gate.parse(text), Estimator.LINEAR)
    assert result.verdict == verdict
    assert result.reason


@pytest.mark.parametrize(
    "text", ["ttft.mean", "ttft.mean<10%", "ttft.mean<=ten", "ttft.mean<=10pp", "x.y<=1%", "hit_ratio.tokens<=1"]
)
def test_bad_gates_are_one_sentence(text: str) -> None:
    with pytest.raises(GapscopeError, match="expected"):
        Gate.parse(text)


def test_the_bootstrap_is_seeded_and_draws_whole_lanes(root: Path) -> None:
    # All variation lies between the lanes: drawing single requests would say otherwise.
    rows = [
        request(f"r{k}", at=k * S, lane=k % 2, first_visible_ns=k * S + (100 + 100 * (k % 2)) * MS) for k in range(8)
    ]
    measured = write(root, "m", rows)
    replay = write(root, "r", slower(1.6), kind="replay")
    first, second = (compare(Store([root]), measured, replay).row("ttft.mean").noise for _ in range(2))
    assert first == second
    assert first is not None
    assert (first.kind, first.units, first.low, first.high) == ("lanes", 2, 100, 200)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=2, max_size=60), st.sampled_from(["mean", "p50", "p90", "std", "max"]))
def test_weights_of_one_give_the_plain_statistic(values: list[int], name: str) -> None:
    points = np.sort(np.array(values, dtype=float))
    weights = np.ones((1, len(points)))
    for estimator in Estimator:
        found = weighted_statistics(points, weights, [name], estimator)[name][0]
        assert found == pytest.approx(statistic(points, name, estimator), abs=1e-6)


def test_resampling_a_large_sample_agrees_with_theory() -> None:
    values = np.sort(np.random.default_rng(3).normal(50, 10, 30_000))
    found = Sample(values, np.full(len(values), -1), 0, "")
    means = resampled(found, ("mean",), Estimator.LINEAR, by_lane=False)["mean"]
    assert means.std() == pytest.approx(10 / np.sqrt(30_000), rel=0.2)


def test_keys_round_trip() -> None:
    assert str(Key.parse("request_rate.observed_span")) == "request_rate.observed_span"


@pytest.mark.parametrize(
    ("gap", "state", "said"),
    [
        (0.0004, "differs", "under 0.05 %, noise unknown"),  # shown as +0.0 %
        (-0.0004, "worse", "under 0.05 %, noise unknown"),
        (0.0006, "worse", "worse, noise unknown"),  # shown as +0.1 %
        (0.0, "same", "same"),
        (0.0004, "~", "~ inside the noise"),
    ],
)
def test_a_gap_that_is_shown_as_nothing_has_no_direction(gap: float, state: State, said: str) -> None:
    sides = Number(100.0, 10), Number(100.0 * (1 + gap), 10)
    assert judged(Row(Key("ttft", "mean"), *sides, gap, None, state, "")) == said


def test_a_swapped_pair_calls_nothing_measured_that_is_not(root: Path) -> None:
    """A replay in the place of the measured run: words, warnings and the claim name the reference and the other."""
    measured = write(root, "m", slower(1.0))
    replay = write(root, "r", slower(1.1), kind="replay")
    store = Store([root])
    found = compare(store, replay, measured)
    assert found.places == ("reference", "compared with it")
    assert "The sides are swapped: the reference is a replay" in found.claim[1]
    said = " ".join((*found.claim, *(warning.text for warning in found.warnings)))
    assert "measured" not in said.replace("the measured run was neither held", "")
    assert "No repeat of the reference in the store" in said
    text = comparison_text(found, "table")
    assert text.startswith(f"reference {replay}, compared with it {measured}")
    assert compare(store, measured, replay).places == ("measured", "replay")
    assert [role.name for role in roles("replay", ["measured", "replay"])][:2] == ["reference", "compared with it"]
    assert [role.name for role in roles("measured", ["replay", "measured"])][:2] == ["measured", "replay"]


def test_a_rate_is_drawn_again_as_often_as_its_steps_need() -> None:
    """The ends of redrawing the eight lanes of tight8, exactly: by folding the counts of a lane eight times."""
    samples = Path(__file__).parents[2] / "sample_runs"
    store = Store([samples])
    run_id = next(samples.glob("tight8-????????????")).name
    counts = [65, 69, 68, 66, 70, 68, 68, 59]  # successes of the profile by lane, 150 s
    chances = np.array([1.0])
    for _ in counts:
        one = np.bincount(counts, minlength=71) / len(counts)
        chances = np.convolve(chances, one)
    upto = np.cumsum(chances)
    ends = [int(np.searchsorted(upto, share)) for share in (0.025, 0.975)]
    key = Key("request_rate", "fixed")
    told = number(store, run_id, key, HEADLINE, Estimator.LINEAR)
    assert told.value == pytest.approx(sum(counts) / 150)
    found = noise(store, run_id, key, HEADLINE, Estimator.LINEAR, (), told)
    assert found is not None
    assert [found.low * 150, found.high * 150] == pytest.approx(ends)
