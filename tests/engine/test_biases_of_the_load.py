"""What is wrong with a replay whose load is not the measured one: direction and size, worked out by hand.

A pass takes 1 ms whatever is in it, so a request of n output tokens takes n ms and only the load decides.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.bundle import open_bundle
from engine.replay import replay
from engine.traces.tree import Conversation, Play, Segment, Trace, Turn

MS = 1_000_000
OUTPUTS = 10
EVERY_PASS_1_MS = {
    "timing": "fixed",
    "fixed_pass_us": 1000,
    "fixed_prefill_token_us": 0,
    "fixed_decode_request_us": 0,
    "fixed_kv_token_ns": 0,
    "lane_assignment": "cursor",
}


def sessions(plays: int, turns: int, think_ms: float, prompt: int = 64) -> Trace:
    """Conversations whose turns each add ``prompt`` tokens, after a think time."""
    made = []
    for number in range(plays):
        name = f"s{number}"
        talk = [Turn(OUTPUTS, round(think_ms * MS), (Segment(f"{name}.{turn}", prompt),)) for turn in range(turns)]
        made.append(Play(name, [Conversation(name, talk)]))
    return Trace("load", "made up", "0" * 64, made)


def requests(tmp_path: Path, trace: Trace, **knobs: Any) -> list[dict[str, Any]]:
    run_id = replay(trace, EVERY_PASS_1_MS | knobs, store=tmp_path)
    return open_bundle(tmp_path / run_id).table("requests").to_pylist()


def rate_per_s(rows: list[dict[str, Any]], window_ms: float) -> float:
    return 1000 * len(rows) / window_ms


def in_flight(rows: list[dict[str, Any]], window_ms: float) -> float:
    return sum(row["end_ns"] - row["dispatched_ns"] for row in rows) / (window_ms * MS)


def test_without_think_times_four_times_the_load_is_offered(tmp_path: Path) -> None:
    # 10 ms of service after 30 ms of thinking: a lane sends every 40 ms, without thinking every 10 ms.
    trace = sessions(plays=8, turns=25, think_ms=30)
    thinking, rushing = (requests(tmp_path, trace, lanes=8, duration_s=1, think_scale=scale) for scale in (1.0, 0.0))
    assert rate_per_s(thinking, 1000) == 8 * 1000 / 40
    assert in_flight(thinking, 1000) == pytest.approx(8 * 10 / 40)
    # 25 turns without thinking are over after 250 ms: a quarter of the time for the same requests.
    assert max(row["end_ns"] for row in rushing) == 250 * MS
    assert in_flight(rushing, 250) == 8.0


def test_sessions_as_single_requests_play_turns_at_once_that_wait_for_each_other(tmp_path: Path) -> None:
    # Eight sessions of six turns, 64 new tokens each in blocks of 16. Turn k of a session reuses the full blocks of the
    # turns before it, whose prompts and outputs are 74 tokens each. Sent for themselves, eight at a time in the order
    # of the trace, the first eight are the six turns of one session and two of the next.
    trace = sessions(plays=8, turns=6, think_ms=30)
    lanes = requests(tmp_path, trace, lanes=8)
    single = requests(tmp_path, trace, lanes=8, arrivals="concurrency")
    assert len(lanes) == len(single) == 48
    starts = [min(row["dispatched_ns"] for row in rows) for rows in (lanes, single)]
    assert starts == [30 * MS, 0]
    at_once = [
        [row["conversation_id"] for row in rows if row["dispatched_ns"] == start]
        for rows, start in zip((lanes, single), starts, strict=True)
    ]
    assert [sorted(names) for names in at_once] == [[f"s{n}" for n in range(8)], ["s0"] * 6 + ["s1"] * 2]
    assert [row["cached_tokens"] for row in lanes if row["conversation_id"] == "s0"] == [
        74 * turn // 16 * 16 for turn in range(6)
    ]
    # None finds an output of the turn before it, which is still running.
    assert sum(row["cached_tokens"] for row in single) < sum(row["cached_tokens"] for row in lanes)
    # And the load is another: 2 of 8 in flight with pauses, 8 without; four times the rate.
    spans = [max(row["end_ns"] for row in rows) / MS for rows in (lanes, single)]
    assert spans == [6 * 40, 6 * 10]
    assert in_flight(lanes, spans[0]) == pytest.approx(2.0)
    assert in_flight(single, spans[1]) == pytest.approx(8.0)


def test_counting_the_drain_without_its_time_flatters_a_short_window(tmp_path: Path) -> None:
    # Four lanes without thinking, requests of 10 ms, a window of 35 ms: at 30 ms each lane sends its fourth request,
    # which ends in the drain, at 40 ms.
    rows = requests(tmp_path, sessions(plays=4, turns=9, think_ms=0), lanes=4, duration_s=0.035, grace_s=1.0)
    assert {row["status"] for row in rows} == {"ok"}
    inside = [row for row in rows if row["end_ns"] <= 35 * MS]
    assert (len(rows), len(inside)) == (16, 12)
    with_drain = rate_per_s(rows, 40)
    assert with_drain == 400.0  # the true rate: four lanes, one request every 10 ms
    assert rate_per_s(inside, 35) == pytest.approx(0.857 * with_drain, rel=1e-3)  # work in progress is lost
    assert rate_per_s(rows, 35) == pytest.approx(1.143 * with_drain, rel=1e-3)  # it is counted without its time
