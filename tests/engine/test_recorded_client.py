"""The client that sends what was recorded: which requests it has, when they reach the engine, and what it gives up."""

from __future__ import annotations

from typing import Any

from engine import knobs
from engine.serving.contract import Finished, ServedRequest
from engine.traces.tree import Trace
from engine.workload.hash_ids import block_keys_of
from engine.workload.recorded import RecordedClient, RecordedLoad, RecordedTurn
from tests.engine.client_harness import MS, talk, trace_of, turn

TRACE = trace_of(
    [
        talk("a", turn("a0", tokens=20, output=5, spawn=("a.c",)), turn("a1", tokens=10, output=3)),
        talk("a.c", turn("c0", tokens=7, output=2), parent="a", after=0, fork=True, depth=1),
    ],
    [talk("b", turn("b0", tokens=12, output=4))],
)
"""Prompts: a/0 20, a.c/0 20 + 5 + 7, a/1 20 + 5 + 10, b/0 12."""


def sent(name: str, at_ms: float, tokens: int, **facts: Any) -> RecordedTurn:
    """The request of a turn like ``a.c/0``, or ``a#1/0`` for a play that is played again."""
    play, _, number = name.partition("/")
    conversation, _, again = play.partition("#")
    source = conversation.split(".")[0]
    values: dict[str, Any] = {
        "request_id": name,
        "source_trace_id": source,
        "conversation_id": conversation,
        "turn_index": int(number),
        "play_id": source + (f"#{again}" if again else ""),
        "lane": 3,
        "scheduled_ns": round(at_ms * MS) - MS,
        "dispatched_ns": round(at_ms * MS),
        "canceled_ns": None,
        "input_tokens": tokens,
        "output_tokens": None,
        "cached_tokens": None,
    }
    return RecordedTurn(**(values | facts))


def load_of(*turns: RecordedTurn, trace: Trace = TRACE, bust: str = "play") -> RecordedLoad:
    return RecordedLoad(turns, trace, block_keys_of(trace, 4), bust)


def client_of(load: RecordedLoad, forced: bool = False, **changes: Any) -> RecordedClient:
    values = {"request_latency_ms": 2.0, "response_latency_ms": 3.0, "block_size": 4, **changes}
    return RecordedClient(load, knobs.resolve(values), forced)


def arrivals(client: RecordedClient) -> list[tuple[float, ServedRequest]]:
    found = []
    while (at := client.next_ns) is not None:
        found += [(at / MS, request) for request in client.due(at)]
        client.aborts(at)
    return found


def finish(client: RecordedClient, index: int, at_ms: float) -> None:
    client.finished(Finished(index, 0, round(at_ms * MS), round(at_ms * MS), 0))


WHOLE = (sent("a/0", 0, 20), sent("a.c/0", 40, 32), sent("b/0", 41, 12), sent("a/1", 90, 35))


def test_requests_reach_the_engine_a_latency_after_their_measured_dispatch() -> None:
    client = client_of(load_of(*WHOLE))
    got = arrivals(client)
    assert [(at, r.index, r.prompt_tokens, r.output_tokens) for at, r in got] == [
        (2, 0, 20, 5),
        (42, 1, 32, 2),
        (43, 2, 12, 4),
        (92, 3, 35, 3),
    ]
    assert client.sent.scheduled_ns == [-MS, 39 * MS, 40 * MS, 89 * MS]
    assert [c.spawned_by for c in client.sent.conversation] == [-1, 0, -1, -1]
    assert client.never_issued == 0


def test_what_was_sent_before_the_warm_up_is_sent_then() -> None:
    client = client_of(load_of(sent("a/0", -900, 20), sent("b/0", 0, 12)), warmup_s=0.5)
    assert client.start_ns == -900 * MS
    assert [at for at, _ in arrivals(client)] == [-898, 2]


def test_content_is_that_of_the_trace() -> None:
    """Blocks of 4: the fork and the next turn share the five full blocks of a/0 and the first of its output."""
    first, fork, other, after = (request.block_keys for _, request in arrivals(client_of(load_of(*WHOLE))))
    assert list(fork[:6]) == list(after[:6]) == list(first[:6])
    assert fork[6] != after[6]
    assert not set(other) & set(first)


def test_a_play_that_is_played_again_has_fresh_content_unless_it_is_not_to() -> None:
    again = sent("a#1/0", 50, 20)
    busted = [list(r.block_keys) for _, r in arrivals(client_of(load_of(WHOLE[0], again)))]
    kept = [list(r.block_keys) for _, r in arrivals(client_of(load_of(WHOLE[0], again, bust="none")))]
    assert not set(busted[0]) & set(busted[1])
    assert kept[0] == kept[1]
    assert [play.incarnation for play in load_of(WHOLE[0], again).plays] == [0, 1]


def test_a_play_without_a_counter_is_counted_and_one_without_a_lane_gets_its_own() -> None:
    load = load_of(
        sent("a/0", 0, 20, play_id="x", lane=None),
        sent("b/0", 5, 12, play_id="y", lane=None),
        sent("a/0", 9, 20, play_id="z", lane=None),
    )
    assert [(play.play.source_trace_id, play.incarnation, play.lane) for play in load.plays] == [
        ("a", 0, 0),
        ("b", 0, 1),
        ("a", 1, 2),
    ]


def test_what_the_trace_does_not_have_is_left_out_and_counted() -> None:
    load = load_of(
        sent("nobody/0", 0, 20),
        sent("a/7", 1, 20),
        sent("a/0", 2, 20, turn_index=None),
        sent("a/0", 3, 21),
        sent("a/0", 4, 20),
        sent("a/0", 5, 20),
        sent("a.c/0", 6, 32),
    )
    assert [turn.dispatched_ns for turn in load.turns] == [4 * MS, 6 * MS]
    assert dict(load.left) == {
        "requests that the trace does not have": 3,
        "requests whose prompt is not as long as in the trace": 1,
        "requests that repeat a turn of their play": 1,
    }
    assert client_of(load).never_issued == 1  # the next turn of a; nothing of b was sent


def test_outputs_are_as_long_as_measured_and_reuse_as_much_as_measured_when_that_is_forced() -> None:
    turns = (
        sent("a/0", 0, 20, output_tokens=9, cached_tokens=16),
        sent("b/0", 1, 12, output_tokens=0, cached_tokens=12),
        sent("a.c/0", 2, 32),
    )
    free = [(r.output_tokens, r.cached_tokens) for _, r in arrivals(client_of(load_of(*turns)))]
    forced = [(r.output_tokens, r.cached_tokens) for _, r in arrivals(client_of(load_of(*turns), forced=True))]
    assert free == [(9, None), (1, None), (2, None)]
    assert forced == [(9, 16), (1, 11), (2, None)]  # the last token of a prompt is computed


def test_each_request_is_given_up_when_it_was() -> None:
    """a/0 at 30 and b/0 at 50: the engine learns of it 2 later; a.c/0 is done before it would have been given up."""
    turns = (
        sent("a/0", 0, 20, canceled_ns=30 * MS),
        sent("b/0", 0, 12, canceled_ns=50 * MS),
        sent("a.c/0", 0, 32, canceled_ns=45 * MS),
    )
    client = client_of(load_of(*turns))
    assert client.next_ns == 2 * MS
    assert len(client.due(2 * MS)) == 3
    assert client.next_ns == 32 * MS
    assert client.aborts(31 * MS) == []
    assert client.aborts(32 * MS) == [0]
    finish(client, 2, 42)  # seen at 45, just in time
    assert client.next_ns == 52 * MS  # no cancel of what is over
    assert client.aborts(60 * MS) == [1]
    assert client.next_ns is None
    assert client.sent.end_ns == [30 * MS, 50 * MS, 45 * MS]
    assert client.sent.ok == [False, False, True]


def test_an_end_that_the_client_did_not_wait_for_is_no_success() -> None:
    client = client_of(load_of(sent("a/0", 0, 20, canceled_ns=30 * MS), sent("b/0", 0, 12)))
    client.due(2 * MS)
    finish(client, 0, 28)  # would be seen at 31
    finish(client, 1, 28)
    assert (client.sent.ok, client.sent.end_ns) == ([False, True], [30 * MS, 31 * MS])
    assert client.aborts(40 * MS) == []
    assert client.next_ns is None  # nothing follows from an end
