"""What a replay gets wrong that evicts, admits or books memory otherwise than engines do: direction and size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from engine.knobs import resolve
from engine.replay import simulate
from engine.timing import build_timing
from engine.traces.tree import Conversation, Play, Trace, Turn

BLOCK = 16
TIMING = {
    "timing": "fixed",
    "fixed_pass_us": 1000,
    "fixed_prefill_token_us": 20,
    "fixed_decode_request_us": 10,
    "fixed_kv_token_ns": 1,
    "block_size": BLOCK,
}


@dataclass
class Outcome:
    """Share of prompt tokens that were reused, requests per second, mean time to first token, most that ran at once."""

    reuse: float
    rate: float
    ttft_s: float
    running: int


def outcome(trace: Trace, changes: dict[str, Any], skip: int = 0) -> Outcome:
    """Of a replay with a shared cursor; reuse and times without the first ``skip`` requests."""
    values = resolve(TIMING | {"lane_assignment": "cursor"} | changes)
    result = simulate(trace, values, build_timing(values))
    requests, ends = result.record.requests, result.record.passes["end_ns"]
    first = ends[requests["first_token_pass"]] - result.client.sent.dispatched_ns
    return Outcome(
        requests["cached_tokens"][skip:].sum() / result.prompt_tokens()[skip:].sum(),
        result.num_requests / (ends[-1] / 1e9),
        float(first[skip:].mean()) / 1e9,
        int(result.record.passes["num_running"].max()),
    )


def ask(blocks: list[int], output: int = 1) -> Turn:
    """A prompt of whole blocks of named content."""
    return Turn(output, 0, hash_ids=tuple(blocks), prompt_tokens=len(blocks) * BLOCK)


def trace_of(*conversations: list[Turn]) -> Trace:
    """Each conversation is a play of its own."""
    plays = [Play(f"c{n}", [Conversation(f"c{n}", turns)]) for n, turns in enumerate(conversations)]
    return Trace("blocks", "test", "0" * 64, plays, BLOCK)


def growing(number: int, turns: int, blocks: int, output: int = 1) -> list[Turn]:
    """A conversation whose prompts grow by ``blocks`` a turn."""
    own = range(1000 * number, 1000 * number + turns * blocks)
    return [ask(list(own[: (k + 1) * blocks]), output) for k in range(turns)]


# -- by last use alone against leaves first ------------------------------------------------------------------------

SESSIONS, TURNS = 10, 20


def swept(changes: dict[str, Any]) -> float:
    """Reuse where ten sessions of 100 blocks come back in turn, three times, to a pool of 994 blocks."""
    grown = [growing(n, TURNS, 5) for n in range(SESSIONS)]
    rounds = [[turns[-1]] for _ in range(3) for turns in grown]
    return outcome(trace_of(*grown, *rounds), {"lanes": 1, "kv_blocks": 995, **changes}, skip=SESSIONS * TURNS).reuse


def test_a_cyclic_sweep_survives_where_leaves_go_first_and_not_by_last_use_alone() -> None:
    # Who comes back next was used longest ago. It lost its tail: 6 of its 100 blocks (vLLM), two leaves of 5 (SGLang).
    # By last use alone it lost its head, after which nothing can be hit.
    assert swept({}) == pytest.approx(0.94)
    assert swept({"engine": "sglang"}) == pytest.approx(0.90)
    assert swept({"eviction": "flat_lru"}) == 0


# -- a shared prefix reserved once, or by every sharer -------------------------------------------------------------


def test_a_prefix_charged_to_every_sharer_leaves_most_of_the_pool_unused() -> None:
    # 40 requests with a system prompt of 64 blocks and 4 of their own, and two for outputs; a pool of 256.
    trace = trace_of(*([ask([*range(64), *range(1000 * n, 1000 * n + 4)], 32)] for n in range(1, 41)))
    common = {"lanes": 40, "kv_blocks": 257}
    shared = outcome(trace, common | {"reservation": "whole_sequence"})
    charged = outcome(trace, common | {"reservation": "per_sharer"})
    assert charged.running == 256 // 70 == 3
    assert shared.running == (256 - 64) // 6 == 32
    assert charged.rate < 0.4 * shared.rate
    assert charged.ttft_s > 2 * shared.ttft_s


# -- one pool, or a cache besides the pool -------------------------------------------------------------------------


def crowded(lanes: int, changes: dict[str, Any]) -> Outcome:
    """``lanes`` conversations of 40 blocks at the end, in a pool that holds five and a half of them."""
    trace = trace_of(*(growing(n, 10, 4, output=16) for n in range(3 * lanes)))
    return outcome(trace, {"lanes": lanes, "kv_blocks": 221, **changes})


def test_a_cache_besides_the_pool_hides_that_conversations_do_not_fit() -> None:
    # Every turn but the first reuses all of the turn before, while there is room: 1 - 40 / 220 of the prompt tokens.
    one_pool = {lanes: crowded(lanes, {}).reuse for lanes in (4, 8, 16)}
    apart = {lanes: crowded(lanes, {"cache_blocks": 1000}).reuse for lanes in (4, 8, 16)}
    assert one_pool[4] == apart[4] == pytest.approx(1 - 40 / 220)
    assert one_pool[8] < 0.5
    assert one_pool[16] < 0.1
    assert min(apart.values()) > 0.78  # flat, whatever the load
    twice = crowded(8, {"cache_blocks": 220})  # the same memory counted once more
    assert twice.reuse > one_pool[8] + 0.2
    assert twice.rate > 1.3 * crowded(8, {}).rate


# -- admission by age, or by what is cached ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "by_prefix"), [({}, {"policy": "longest_prefix"}), ({"engine": "sglang"}, {"policy": "lpm"})]
)
def test_admission_by_age_thrashes_where_admission_by_prefix_keeps_what_is_cached(
    engine: dict[str, Any], by_prefix: dict[str, Any]
) -> None:
    age, prefix = (crowded(16, engine | policy) for policy in ({}, by_prefix))
    assert age.reuse < 0.2
    assert prefix.reuse > 0.7
    assert prefix.rate > 2 * age.rate
    assert prefix.ttft_s < 0.5 * age.ttft_s
    # While all conversations fit, the order makes no difference.
    assert crowded(4, engine | by_prefix) == crowded(4, engine)
