"""Sweeps without a replay: points, steps, the front, staleness, estimates; expected values are worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard import jobs
from dashboard.charts.replays.tornado import reach_of
from dashboard.charts.replays.what_if import staleness
from dashboard.compare import contract
from dashboard.compare.contract import Row
from dashboard.compare.noise import Noise
from dashboard.jobs import queue, sweep
from dashboard.jobs.estimate import Estimate, Record, estimate, from_json, scale
from dashboard.sweeps.effects import by_knob, effect, of_gap
from dashboard.sweeps.front import on_front
from dashboard.sweeps.plan import MOST_POINTS, Axis, parse_axis, parse_changes, point, points, usual
from dashboard.sweeps.steps import USUAL, Step, moved, steps
from dashboard.sweeps.windows import told as windows_told
from engine.errors import GapscopeError
from engine.knobs import BY_NAME, KNOBS, defaults

NOW = defaults()  # 8 lanes, 8192 KV blocks, 2048 batched tokens, 256 sequences


@pytest.mark.parametrize(
    ("knob", "text", "values"),
    [
        ("lanes", "4, 8,16,8", (4, 8, 16)),
        ("lanes", "2:8:4", (2, 4, 6, 8)),
        ("kv_blocks", "512:4096:4:log", (512, 1024, 2048, 4096)),
        ("pass_scale", "0.9:1.1:3", (0.9, 1.0, 1.1)),
        ("lanes", "1:2:5", (1, 2)),  # 1, 1.25, 1.5, 1.75, 2, rounded to even halves
        ("prefix_caching", "true,no", (True, False)),
        ("policy", "fcfs,lpm", ("fcfs", "lpm")),
    ],
)
def test_values_of_a_knob(knob: str, text: str, values: tuple[Any, ...]) -> None:
    assert parse_axis(knob, text) == Axis(knob, values)


@pytest.mark.parametrize(
    ("knob", "text", "words"),
    [
        ("lanez", "1", "cannot be swept"),
        ("record_chunks", "true", "cannot be swept"),
        ("part", "h100", "cannot be swept"),
        ("lanes", "", "has no values"),
        ("lanes", "1:2", "FROM:TO:STEPS"),
        ("lanes", "1:8:1", "at least 2 steps"),
        ("lanes", "0:8:3:log", "FROM:TO:STEPS"),
        ("lanes", "1:100:65", "at most 64 steps"),
        ("lanes", "1:inf:4", "FROM:TO:STEPS"),
        ("policy", "1:2:3", "which is no number"),
        ("lanes", "4,x", "expected a whole number"),
        ("lanes", "0", "out of range"),
    ],
)
def test_values_that_cannot_be_swept(knob: str, text: str, words: str) -> None:
    with pytest.raises(GapscopeError, match=words):
        parse_axis(knob, text)


def test_points_of_two_knobs_name_what_differs_from_the_base() -> None:
    found = points([Axis("lanes", (4, 8)), Axis("kv_blocks", (1024, 8192))], NOW, {"think_scale": 0.5})
    assert [one.at for one in found] == [(4, 1024), (4, 8192), (8, 1024), (8, 8192)]
    assert [dict(one.changes) for one in found] == [
        {"lanes": 4, "think_scale": 0.5, "kv_blocks": 1024},
        {"lanes": 4, "think_scale": 0.5},
        {"think_scale": 0.5, "kv_blocks": 1024},
        {"think_scale": 0.5},
    ]
    assert found[0].words == "lanes=4, think_scale=0.5, kv_blocks=1024"


def test_a_point_that_contradicts_itself_says_why_and_is_not_played() -> None:
    found = points([Axis("max_num_batched_tokens", (128, 512))], NOW, {})
    assert "max_num_batched_tokens" in found[0].why
    assert found[1].why == ""
    asked = sweep.spec("base-0123456789ab", found, [], [Path("runs")], "x")
    assert asked["points"] == [{"max_num_batched_tokens": 512}]


def test_a_sweep_has_an_end() -> None:
    with pytest.raises(GapscopeError, match=f"99 points: expected at most {MOST_POINTS}"):
        points([Axis("lanes", tuple(range(1, 10))), Axis("kv_blocks", tuple(range(100, 111)))], NOW, {})
    with pytest.raises(GapscopeError, match="two different ones"):
        points([Axis("lanes", (1,)), Axis("lanes", (2,))], NOW, {})


def test_knobs_of_every_point_are_read_or_refused() -> None:
    assert parse_changes("lanes=6  think_scale=0.5") == {"lanes": 6, "think_scale": 0.5}
    with pytest.raises(GapscopeError, match="expected KNOB=VALUE"):
        parse_changes("lanes")
    with pytest.raises(GapscopeError, match="Did you mean lanes"):
        parse_changes("lanez=6")


def test_usual_values_lie_around_the_base() -> None:
    assert usual("lanes", 8) == "4,6,8,12,16"
    assert usual("pass_scale", 1.0) == "0.5,0.75,1,1.5,2"
    assert usual("prefix_caching", True) == "false,true"
    assert usual("host_kv_blocks", 0) == ""


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("lanes", 8, [("down", 7), ("up", 9)]),
        ("lanes", 1, [("up", 2)]),
        ("kv_blocks", 8192, [("down", 6554), ("up", 10240)]),  # 8192 / 1.25 = 6553.6
        ("max_num_seqs", 1, [("up", 2)]),
        ("max_num_batched_tokens", 2048, [("down", 1024), ("up", 4096)]),
        ("pass_scale", 1.0, [("down", 0.8), ("up", 1.25)]),
        ("lane_stagger_ms", 0.0, [("up", 1.0)]),
        ("fixed_pass_us", 0.0, [("up", 10.0)]),
        ("prefix_caching", True, [("other", False)]),
        ("policy", "fcfs", [("other", "lpm"), ("other", "longest_prefix")]),
    ],
)
def test_one_step_of_a_knob(name: str, value: Any, expected: list[tuple[str, Any]]) -> None:
    assert moved(BY_NAME[name], value) == (expected, "")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("record_chunks", True, "what is written"),
        ("client_seed", 3, "noise"),
        ("duration_s", 60.0, "window"),
        ("part", "h100-sxm", "names something"),
        ("dispatch_lag_ms", -1.0, "comes from the timing"),
        ("host_kv_blocks", 0, "It is off"),
    ],
)
def test_a_knob_without_a_step_says_why(name: str, value: Any, words: str) -> None:
    found, why = moved(BY_NAME[name], value)
    assert found == []
    assert words in why


@given(st.sampled_from(KNOBS))
def test_a_step_is_a_value_that_the_knob_takes(knob: Any) -> None:
    for _, value in moved(knob, knob.default)[0]:
        assert knob.parse(value) == value
        assert value != knob.default


def test_knobs_without_effect_are_skipped_with_the_reason_of_the_engine() -> None:
    found = steps(["lanes", "router", "lanes"], NOW, {"kv_blocks": 4096})
    assert [(step.knob, step.way, dict(step.point.changes)) for step in found.steps] == [
        ("lanes", "down", {"lanes": 7, "kv_blocks": 4096}),
        ("lanes", "up", {"lanes": 9, "kv_blocks": 4096}),
    ]
    assert "expected replicas above 1" in found.skipped["router"]
    assert set(USUAL) <= set(BY_NAME)
    with pytest.raises(GapscopeError, match="There is no knob 'lanez'"):
        steps(["lanez"], NOW, {})


def test_the_front_holds_what_nothing_beats_in_both() -> None:
    """Throughput and latency: b has more throughput at the latency of a; d is slower and worse than c; e has none."""
    a, b, c, d = (10.0, 100.0), (12.0, 100.0), (20.0, 180.0), (19.0, 200.0)
    assert on_front([a, b, c, d, None]) == [False, True, True, False, False]
    assert on_front([b, b]) == [True, True]
    assert on_front([None]) == [False]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_every_point_off_the_front_is_beaten_by_one_on_it(pairs: list[tuple[int, int]]) -> None:
    on = on_front([(float(rate), float(tail)) for rate, tail in pairs])
    assert any(on) == bool(pairs)
    winners = [pair for pair, is_on in zip(pairs, on, strict=True) if is_on]
    for (rate, tail), is_on in zip(pairs, on, strict=True):
        beaten = [one for one in winners if one[0] >= rate and one[1] <= tail and one != (rate, tail)]
        assert bool(beaten) != is_on


@pytest.mark.parametrize(
    ("base", "value", "measured", "words"),
    [
        (120.0, 110.0, 100.0, "closes"),
        (120.0, 130.0, 100.0, "widens"),
        (120.0, 90.0, 100.0, "passes"),
        (120.0, 70.0, 100.0, "widens, past it"),
        (120.0, 120.0, 100.0, "no change"),
        (80.0, 90.0, 100.0, "closes"),
        (100.0, 101.0, 100.0, "widens"),
        (120.0, None, 100.0, ""),
        (120.0, 110.0, None, ""),
    ],
)
def test_what_becomes_of_a_gap(base: float, value: float | None, measured: float | None, words: str) -> None:
    assert of_gap(base, value, measured) == words


NOISE = Noise("repeats", 86.0, 94.0, 1, redrawn=(80.0, 98.0))
"""Of a measured 90: give or take 4, and redrawing goes from 10 less to 8 more."""


def made(knob: str, value: float | None) -> Any:
    return effect(Step(knob, "up", 1, point((1,), {}, NOW)), "r", value, 100.0, 90.0, NOISE)


def test_effects_stand_by_knob_with_the_largest_first() -> None:
    small, large, unknown = made("lanes", 103.0), made("kv_blocks", 60.0), made("think_scale", None)
    assert [found[0].step.knob for found in by_knob([small, unknown, large])] == ["kv_blocks", "lanes", "think_scale"]
    assert (small.change, small.noise, small.gap) == (3.0, "~ inside the noise", "widens")
    assert (large.change, large.noise, large.gap) == (-40.0, "outside the noise", "widens, past it")
    assert (unknown.change, unknown.noise) == (None, "not comparable")
    more, less = made("lanes", 107.0), made("lanes", 89.0)  # 7 more is inside redrawing, 11 less is not
    assert (more.noise, less.noise) == ("beyond one repeat, inside redrawing", "outside the noise")


def test_one_giant_does_not_flatten_the_others() -> None:
    assert reach_of([1778.0, 117.0, -73.0]) == 175.5  # half as much again as the second
    assert reach_of([200.0, 117.0, -73.0]) is None
    assert reach_of([1778.0]) is None


def test_a_candidate_of_other_knobs_is_stale() -> None:
    shown = {"replay": {}, "candidate 2": {"lanes": 6}}
    assert staleness(shown, {"lanes": 6}) == ("Shown: candidate 2 is the replay with the knobs on screen.", False)
    assert staleness(shown, {}) == ("Shown: replay is the replay with the knobs on screen.", False)
    words, stale = staleness(shown, {"lanes": 7})
    assert stale
    assert words == "Stale. Shown: the replay with lanes=6 (candidate 2); the knobs on screen were not run yet."
    assert staleness({}, {"lanes": 7}) == ("", False)


RECORDS = [Record("t", 1000, 0.02), Record("t", 1000, 0.04), Record("other", 1000, 9.0)]


def test_an_estimate_is_a_range_and_says_what_it_rests_on() -> None:
    """5000 passes at 0.02 to 0.04 ms of CPU each: 0.1 to 0.2 s, and 0.5 to 0.7 s besides."""
    found = estimate(RECORDS, [0.5, 0.7], "t", 5000, 1.0)
    assert found is not None
    assert (round(found.low_s, 9), round(found.high_s, 9)) == (0.6, 0.9)
    assert found.words == "0.6 s to 0.9 s"
    assert "25,000 to 50,000 passes per CPU second (2 earlier replays of this trace)" in found.rests_on
    assert "as in 2 earlier jobs" in found.rests_on
    several = estimate(RECORDS, [0.5, 0.7], "t", 5000, 2.0, count=3)
    assert several is not None
    assert (round(several.low_s, 9), round(several.high_s, 9)) == (2.1, 3.3)  # 3 x (0.2 + 0.5), 3 x (0.4 + 0.7)
    assert from_json(json.loads(json.dumps(found.to_json()))) == found


def test_without_records_there_is_no_estimate() -> None:
    assert estimate([], [0.5], "t", 5000, 1.0) is None
    assert estimate(RECORDS, [], "t", None, 1.0) is None
    assert estimate(RECORDS, [], "t", 5000, None) is None
    alone = estimate(RECORDS[:1], [], "new", 1000, 1.0)
    assert alone
    assert alone.words.endswith(" for the passes alone")
    assert from_json(alone.to_json()) == alone
    assert alone is not None
    assert "of other traces" in alone.rests_on
    assert "no job of this store has shown them yet" in alone.rests_on
    assert from_json({"low_s": "x"}) is None


def test_the_simulated_time_scales_an_estimate() -> None:
    now = {"duration_s": 100.0, "warmup_s": 20.0, "grace_s": 0.0}
    assert scale(now | {"duration_s": 40.0}, now) == 0.5  # 60 s of 120 s
    assert scale(now, now) == 1.0
    assert scale(now | {"duration_s": 0.0}, now) is None


def job(name: str, created_s: float, **facts: Any) -> jobs.Job:
    return jobs.Job(name, Path(name), {"do": "replay"}, facts.pop("state", "waiting"), created_s, **facts)


def test_a_queue_tells_places_and_times() -> None:
    expected = Estimate(2.0, 4.0, "made up").to_json()
    running = job("a", 1.0, state="running", begun_s=100.0, progress={"share": 0.25}, estimate=expected)
    second, third, last = job("b", 2.0, estimate=expected), job("c", 3.0), job("d", 4.0, estimate=expected)
    told = queue.told([running, second, third, last], now_s=110.0)
    assert told["a"] == "about 30 s left"  # a quarter took 10 s
    assert told["b"] == "place 2 of 4, begins in about 30 s, then about 4.0 s"
    assert told["c"] == "place 3 of 4, begins in about 34 s, then no estimate"
    assert told["d"] == "place 4 of 4, begins after those before it, then about 4.0 s"
    assert queue.told([job("a", 1.0)], now_s=2.0)["a"] == "next, no estimate"


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("ttft.mean<=10% preemptions.capture=2..8", [Row("ttft.mean", "<=10%"), Row("preemptions.capture", "=2..8")]),
        ("tpot.p90@warmup<=15%;x", [Row("tpot.p90", "<=15%", "warmup"), Row("x", "")]),
        ("", []),
    ],
)
def test_a_contract_is_its_rows(text: str, rows: list[Row]) -> None:
    assert contract.rows(text) == rows
    assert contract.text_of(rows) == text.replace(";", " ")


@given(st.text(alphabet="ab.@<=1%2; ", max_size=24))
def test_rows_lose_nothing_of_a_contract(text: str) -> None:
    again = contract.text_of(contract.rows(text))
    assert contract.rows(again) == [row for row in contract.rows(again) if row.text]
    assert again == contract.text_of(contract.rows(again))


def test_every_number_and_population_that_is_offered_makes_a_gate() -> None:
    for number in contract.NUMBERS:
        assert contract.parse_gates(Row(number, "<=10%").text)
    for population in contract.POPULATIONS:
        assert contract.parse_gates(Row("ttft.mean", "<=10%", population).text)


def test_windows_are_held_against_what_the_measured_run_says() -> None:
    measured = {"duration_s": 150.0, "warmup_s": 20.0}
    same = [measured | {"lanes": lanes, "grace_s": 5.0} for lanes in (4, 8)]  # nothing is known of the measured grace
    assert windows_told(measured, same) == ""
    assert windows_told(measured, [measured | {"duration_s": 150.01}]) == ""
    said = windows_told(measured, [measured | {"warmup_s": warmup} for warmup in (5.0, 10.0, 20.0)])
    assert "warmup_s 5 to 10 at some points (measured run: 20)" in said
    assert "duration_s 0 (measured run: 150)" in windows_told(measured, [measured | {"duration_s": 0.0}])
