"""Loads that are no lanes of sessions: rates and fixed concurrency. All times in ms; a request takes 100 ms."""

from __future__ import annotations

import math
from hashlib import blake2b
from typing import Any

import numpy as np
import pytest

from engine.errors import GapscopeError
from engine.workload.draws import uniform
from tests.engine.client_harness import MS, settle, talk, trace_of, turn
from tests.engine.test_client import times


def singles(count: int) -> Any:
    return trace_of(*[[talk(f"p{n}", turn(f"p{n}"))] for n in range(count)])


def test_a_draw_is_the_top_of_a_hash_of_what_it_is_for() -> None:
    digest = blake2b(b'[7, "cut", "a", 3]', digest_size=8).digest()
    assert uniform(7, "cut", "a", 3) == (int.from_bytes(digest, "big") >> 11) / 2**53
    drawn = [uniform(0, "x", n) for n in range(2000)]
    assert min(drawn) >= 0
    assert max(drawn) < 1
    assert abs(float(np.mean(drawn)) - 0.5) < 4 / math.sqrt(12 * 2000)


def test_plays_start_at_a_constant_rate_whatever_the_load() -> None:
    trace = trace_of([talk("a", turn("a0"), turn("a1", think_ms=20))], [talk("b", turn("b0"))], [talk("c", turn("c0"))])
    rows, client = settle(trace, {"arrivals": "constant", "arrival_rate": 40, "lanes": 1})
    assert times(rows) == {"a/0": (0, 100), "b/0": (25, 125), "c/0": (50, 150), "a/1": (120, 220)}
    assert {r.name: r.lane for r in rows} == {"a/0": 0, "a/1": 0, "b/0": 1, "c/0": 2}
    assert client.never_issued == 0


def test_plays_that_a_rate_starts_wrap_until_the_deadline() -> None:
    changes = {"arrivals": "constant", "arrival_rate": 40, "wrap": True, "duration_s": 0.1, "grace_s": 1}
    rows, _ = settle(singles(3), changes)
    assert times(rows) == {"p0/0": (0, 100), "p1/0": (25, 125), "p2/0": (50, 150), "p0#1/0": (75, 175)}


def test_poisson_arrivals_have_exponential_gaps_that_follow_the_seed() -> None:
    def starts(seed: int) -> list[float]:
        rows, _ = settle(singles(3000), {"arrivals": "poisson", "arrival_rate": 50, "client_seed": seed})
        return sorted(r.dispatched for r in rows)

    first, again, other = starts(1), starts(1), starts(2)
    assert first == again != other
    assert first[0] == 0
    gaps = np.diff(first)
    # Mean 20 ms within four standard errors; the share above the mean of an exponential is 1/e.
    assert abs(gaps.mean() - 20) < 4 * 20 / math.sqrt(len(gaps))
    assert abs((gaps > 20).mean() - math.exp(-1)) < 4 * math.sqrt(math.exp(-1) * (1 - math.exp(-1)) / len(gaps))
    expected = -20 * math.log(1 - uniform(1, "arrival", 0))
    assert gaps[0] == pytest.approx(expected, abs=2e-6)


def test_fixed_concurrency_keeps_so_many_requests_in_flight_without_think_times() -> None:
    trace = trace_of(
        [talk("a", turn("a0", think_ms=500), turn("a1", think_ms=500), turn("a2", think_ms=500))],
        [talk("b", turn("b0"))],
    )
    slow = lambda name: 250.0 if name == "a/0" else 100.0  # noqa: E731
    rows, client = settle(trace, {"arrivals": "concurrency", "lanes": 2}, slow)
    # a/1 does not wait for a/0: each request stands for itself.
    assert times(rows) == {"a/0": (0, 250), "a/1": (0, 100), "a/2": (100, 200), "b/0": (200, 300)}
    assert {r.name: r.lane for r in rows} == {"a/0": 0, "a/1": 1, "a/2": 1, "b/0": 1}
    assert client.never_issued == 0
    prompts = [c.walk.prompt_tokens[t] for c, t in zip(client.sent.conversation, client.sent.turn, strict=True)]
    assert prompts == [20, 45, 70, 20]  # with all that came before in the conversation


def test_fixed_concurrency_follows_recorded_times_where_all_are_known_and_wraps() -> None:
    trace = trace_of([talk("a", turn("a0"), turn("a1"))], [talk("b", turn("b0"))])
    for play, arrival, starts in zip(trace.plays, (0, 50), ((0, 100), (0,)), strict=True):
        play.arrival_ns = arrival * MS
        for one, start in zip(play.conversations[0].turns, starts, strict=True):
            one.start_ns = start * MS
    changes = {"arrivals": "concurrency", "lanes": 1, "wrap": True, "duration_s": 0.45, "grace_s": 1}
    assert [r.name for r in settle(trace, changes)[0]] == ["a/0", "b/0", "a/1", "a#1/0", "b#1/0"]


def test_a_fork_that_stands_for_itself_has_the_context_of_its_parent() -> None:
    trace = trace_of(
        [
            talk("r", turn("r0", 20, 5, spawn=("f",))),
            talk("f", turn("f0", 7, 2), parent="r", after=0, fork=True, depth=1),
        ]
    )
    rows, client = settle(trace, {"arrivals": "concurrency", "lanes": 2})
    assert times(rows) == {"r/0": (0, 100), "f/0": (0, 100)}
    assert [c.walk.prompt_tokens[0] for c in client.sent.conversation] == [20, 32]


def test_with_a_content_per_session_no_two_plays_share_a_block() -> None:
    trace = trace_of(*[[talk(n, turn("the same", 64))] for n in "ab"])
    for policy, shared in (("play", True), ("session", False)):
        changes = {"lanes": 1, "wrap": True, "duration_s": 0.35, "grace_s": 1, "cache_bust": policy}
        _, client = settle(trace, changes)
        keys = [set(c.walk.keys[0]) for c in client.sent.conversation]
        assert len(keys) == 4
        assert bool(keys[0] & keys[1]) is shared  # two plays of one incarnation
        assert not keys[0] & keys[2]  # a play and its repeat


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"arrival_rate": 2},
            "arrival_rate=2 has no effect with arrivals=lanes: expected arrivals=poisson or constant",
        ),
        ({"prime": True}, "prime=true has no effect with cut=none: expected cut=span or turns"),
        (
            {"cut": "turns", "warmup_requests": 2},
            "warmup_requests=2 has no effect with prime=false: expected prime=true",
        ),
        (
            {"cut": "turns", "arrivals": "concurrency"},
            "cut=turns needs lanes: expected arrivals=lanes, not concurrency",
        ),
        ({"cut": "turns", "cut_from": 0.8}, "cut_from=0.8 is above cut_to=0.75"),
        ({"cut": "turns", "prime": True, "warmup_s": 3}, "expected one of them"),
        ({"idle_cap": "per_trace"}, "and a tree_idle_cap_s"),
        ({"idle_cap": "system"}, "expected a tree_idle_cap_s, a global_idle_cap_s, or both"),
        ({"global_idle_cap_s": 3}, "global_idle_cap_s=3 has no effect with idle_cap=none: expected idle_cap=system"),
        ({"arrivals": "trace", "wrap": True, "duration_s": 3}, "arrivals other than trace"),
    ],
)
def test_loads_that_contradict_themselves_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(GapscopeError) as refused:
        settle(singles(1), changes)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cut": "span"}, "Knob cut=span: 1 of the 1 plays of hand do not record when each request started"),
        ({"idle_cap": "per_trace", "tree_idle_cap_s": 1}, "Knob idle_cap=per_trace: 1 of the 1 plays of hand"),
    ],
)
def test_what_needs_recorded_starts_says_that_the_trace_has_none(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(GapscopeError) as refused:
        settle(singles(1), changes)
    assert words in str(refused.value)
