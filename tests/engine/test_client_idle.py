"""Idle caps in both conventions, worked out by hand. All times in ms; a request takes 100 ms."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.bundle import open_bundle
from engine.replay import replay
from engine.workload.client import Client
from tests.engine.client_harness import MS, settle, talk, trace_of, turn
from tests.engine.test_client import times
from tests.engine.test_client_edges import edge, random_graph, waits
from tests.engine.test_client_phases import recorded, session


def shifts(client: Client) -> list[tuple[float, str | None, float, int]]:
    return [
        (s.time_ns / MS, None if s.live is None else s.live.play.source_trace_id, s.shift_ns / MS, s.timers)
        for s in client.shifts
    ]


def system(**seconds: float) -> dict[str, Any]:
    return {"lanes": 1, "idle_cap": "system", **{f"{name}_idle_cap_s": value for name, value in seconds.items()}}


def test_a_tree_of_which_nothing_is_in_flight_is_idle_for_the_cap_at_most() -> None:
    trace = trace_of(
        [talk("a", turn("a0", think_ms=5), turn("a1", think_ms=300), turn("a2", think_ms=40))],
        [talk("b", turn("b0", think_ms=20), turn("b1", think_ms=60))],
    )
    rows, client = settle(trace, {**system(tree=0.05), "lanes": 2})
    assert times(rows) == {
        "a/0": (5, 105),
        "a/1": (155, 255),  # 50 after 105, not 300
        "a/2": (295, 395),  # 40 is less than the cap
        "b/0": (20, 120),
        "b/1": (170, 270),
    }
    assert shifts(client) == [(105, "a", 250, 1), (120, "b", 10, 1)]


def test_all_timers_of_a_tree_move_together_and_one_in_flight_holds_them() -> None:
    play = [
        talk("r", waits(turn("r0", spawn=("x", "y")))),
        talk("x", waits(turn("x0"), edge("r", 0, delay_ms=400)), parent="r", after=0, depth=1),
        talk(
            "y",
            waits(turn("y0"), edge("r", 0, delay_ms=450)),
            waits(turn("y1"), edge("y", 0, delay_ms=10), edge("r", 0, delay_ms=900)),
            parent="r",
            after=0,
            depth=1,
        ),
    ]
    rows, client = settle(trace_of(play), system(tree=0.1))
    # Idle at 100 with x due at 500 and y at 550: both 300 earlier, and so is y1, which was due at 1000 at the earliest.
    # At 350 y0 ends; y1 is due at 700, which is 350 later: 250 too late.
    assert times(rows) == {"r/0": (0, 100), "x/0": (200, 300), "y/0": (250, 350), "y/1": (450, 550)}
    assert shifts(client) == [(100, "r", 300, 2), (350, "r", 250, 1)]


def test_the_client_as_a_whole_is_idle_for_the_cap_at_most_with_lanes_that_did_not_start() -> None:
    trace = trace_of(
        [talk("a", turn("a0"), turn("a1", think_ms=500))],
        [talk("b", turn("b0", think_ms=400))],
        [talk("c", turn("c0"))],
    )
    rows, client = settle(trace, {**system(**{"global": 0.03}), "lanes": 3, "lane_stagger_ms": 200})
    # At 100 nothing is in flight; lane 1 starts at 200, lane 2 at 400, a1 is due at 600: 70 earlier.
    # At 130 lane 1 starts, which sends nothing yet: b0 and a1 are due at 530, lane 2 starts at 330: 200 earlier.
    # c ends at 230; b0 and a1 are due at 330: 70 earlier.
    assert times(rows) == {"a/0": (0, 100), "c/0": (130, 230), "b/0": (260, 360), "a/1": (260, 360)}
    assert shifts(client) == [(100, None, 70, 3), (130, None, 200, 3), (230, None, 70, 2)]


def test_a_timer_past_the_deadline_is_sent_when_it_moves_before_it() -> None:
    trace = trace_of([talk("a", turn("a0"), turn("a1", think_ms=5000))])
    changes = {**system(tree=0.05), "duration_s": 0.4, "grace_s": 1}
    assert times(settle(trace, changes)[0]) == {"a/0": (0, 100), "a/1": (150, 250)}
    short, client = settle(trace, changes | {"duration_s": 0.15})
    assert times(short) == {"a/0": (0, 100)}
    assert client.never_issued == 1


def test_what_may_not_start_before_a_time_moves_with_the_rest() -> None:
    play = [
        talk(
            "a",
            waits(turn("a0")),
            waits(turn("a1"), edge("a", 0), not_before_ms=700),
            waits(turn("a2"), edge("a", 1), not_before_ms=900),
        )
    ]
    rows, client = settle(trace_of(play), system(tree=0.1))
    # a1 is 500 earlier, and the play counts as begun 500 earlier: a2 may start at 400.
    assert times(rows) == {"a/0": (0, 100), "a/1": (200, 300), "a/2": (400, 500)}
    assert shifts(client) == [(100, "a", 500, 1)]


def test_gaps_between_recorded_starts_shrink_before_the_play_is_played() -> None:
    # Starts 0, 1000 (and the child's 1100), 2000, 2500, 3000 with a cap of 600: 0, 600, 700, 1300, 1800, 2300.
    rows, client = settle(trace_of(session()), {"lanes": 1, "idle_cap": "per_trace", "tree_idle_cap_s": 0.6})
    assert times(rows) == {
        "r/0": (0, 100),
        "r/1": (400, 500),  # 700 after the end before, 400 of them skipped
        "k/0": (500, 600),
        "r/2": (900, 1000),  # 700, of which the gap from 1100 to 2000 lost 300
        "k/1": (1600, 1700),  # 1300, of which the same gap lost 300
        "r/3": (2100, 2200),  # 700 after r/2, 400 after k/1
    }
    assert client.shifts == []


def test_the_default_rule_shrinks_its_think_times() -> None:
    turns = [
        recorded(turn(f"a{k}", think_ms=think), start, 100)
        for k, (think, start) in enumerate([(30, 30), (870, 1000), (50, 1150)])
    ]
    rows, _ = settle(trace_of([talk("a", *turns)]), {"lanes": 1, "idle_cap": "per_trace", "tree_idle_cap_s": 0.5})
    # The gap of 970 loses 470 of the 870 of think time; what lies before the first start is no gap.
    assert times(rows) == {"a/0": (30, 130), "a/1": (530, 630), "a/2": (680, 780)}


def test_a_cut_counts_shortened_gaps() -> None:
    changes = {
        "lanes": 1,
        "idle_cap": "per_trace",
        "tree_idle_cap_s": 0.6,
        "cut": "span",
        "cut_from": 0.4,
        "cut_to": 0.4,
    }
    rows, _ = settle(trace_of(session()), changes)
    # Shortened, the starts are 0, 600, 700, 1300, 1800, 2300 and the cut is at 920. r/1 ended at 900: r/2 is due at
    # 1300; k/0 at 800: k/1 at 1800.
    assert times(rows)["r/2"] == (380, 480)
    assert times(rows)["k/1"] == (880, 980)


def test_every_shift_is_a_row_of_the_bundle(tmp_path: Path) -> None:
    trace = trace_of([talk("a", turn("a0", think_ms=5), turn("a1", think_ms=300_000))])
    run_id = replay(trace, {**system(tree=20, **{"global": 10}), "timing": "fixed"}, store=tmp_path)
    bundle = open_bundle(tmp_path / run_id)
    assert bundle.verify(content=True) == []
    requests, moved = bundle.table("requests"), bundle.table("idle_shifts")
    assert requests is not None
    assert moved is not None
    ends, dispatched = requests["end_ns"].to_pylist(), requests["dispatched_ns"].to_pylist()
    assert moved.to_pylist() == [
        {"time_ns": ends[0], "play_id": "a", "shift_ns": 280_000 * MS, "timers": 1},
        {"time_ns": ends[0], "play_id": None, "shift_ns": 10_000 * MS, "timers": 1},
    ]
    assert dispatched[1] - ends[0] == 10_000 * MS
    assert bundle.identity.value("client", "idle_cap") == "system"
    plain = open_bundle(tmp_path / replay(trace, {"lanes": 1, "timing": "fixed"}, store=tmp_path))
    assert plain.table("idle_shifts") is None
    assert plain.identity.value("client", "idle_cap") is None


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 100_000),
    tree=st.sampled_from([0, 0.02, 0.2]),
    everything=st.sampled_from([0.01, 0.1]),
    deadline=st.sampled_from([0, 0.8]),
    lanes=st.integers(1, 3),
    late=st.booleans(),
)
def test_nothing_is_idle_for_longer_than_the_caps(
    seed: int, tree: float, everything: float, deadline: float, lanes: int, late: bool
) -> None:
    service = random.Random(seed)
    durations: dict[str, float] = {}
    changes = {**system(tree=tree, **{"global": everything}), "lanes": lanes, "duration_s": deadline, "grace_s": 10}
    if late:  # responses overtake each other, lanes start one by one
        changes |= {
            "host_model": "given",
            "host_prompt_token_us": 500,
            "response_latency_ms": 7,
            "lane_stagger_ms": 300,
        }
    rows, client = settle(
        random_graph(seed, 4), changes, lambda name: durations.setdefault(name, float(service.randint(1, 120)))
    )
    assert len({r.name for r in rows}) == len(rows)
    started = {id(c.live): c.live for c in client.sent.conversation}
    graph = sum(len(c.turns) for live in started.values() for c in live.play.conversations)
    assert graph == len(rows) + client.never_issued
    _check_gaps([(r.dispatched, r.end) for r in rows], everything * 1000)
    if tree:
        for live in started.values():
            mine = [r for r, c in zip(rows, client.sent.conversation, strict=True) if c.live is live]
            _check_gaps([(r.dispatched, r.end) for r in mine], tree * 1000)


def _check_gaps(spans: list[tuple[float, float]], cap: float) -> None:
    busy_until: float | None = None
    for begin, end in sorted(spans):
        assert busy_until is None or begin - busy_until <= cap + 1e-6
        busy_until = max(end, busy_until or 0)
