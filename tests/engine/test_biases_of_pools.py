"""What a replay of two pools gets wrong whose prefill pool does not share the clock of the decode pool."""

from __future__ import annotations

import pytest

from engine.knobs import resolve
from engine.replay import simulate
from engine.replay.loop import two_pools
from engine.replay.result import ReplayResult
from engine.serving.contract import Finished, ServedRequest, Server, ServerRecord
from engine.timing import build_timing
from tests.engine.client_harness import talk, trace_of, turn

MS = 1_000_000
LANES, TURNS, OUTPUT, PROMPT_MS, PASS_MS = 32, 4, 101, 20, 10
KNOBS = {
    "timing": "fixed",
    "fixed_pass_us": 1000 * PASS_MS,
    "fixed_prefill_token_us": 10,
    "fixed_decode_request_us": 0,
    "fixed_kv_token_ns": 0,
    "lanes": LANES,
    "lane_stagger_ms": 50,
    "kv_blocks": 100_000,
    "prefix_caching": False,
    "max_num_batched_tokens": 100_000,
    "prefill_replicas": 1,
    "transfer_gb_s": 0,
    "transfer_latency_us": 0,
}
"""A prompt of 1,000 tokens takes 20 ms; a token after it 10 ms, however many decode: 1,020 ms alone or together."""


class StandingClock:
    """A server of two pools whose prefill pool has a clock of its own, which stands still while that idles.

    Requests come at the decode pool's time. One that is ahead of the clock waits until nothing else can move; then the
    clock jumps to its arrival, and whoever came before its prompt is computed follows.
    """

    def __init__(self, pools: Server) -> None:
        self._pools = pools
        self._ahead: list[tuple[int, ServedRequest]] = []
        self._clock_ns = 0

    @property
    def has_work(self) -> bool:
        return bool(self._ahead) or self._pools.has_work

    def receive(self, request: ServedRequest, now_ns: int) -> None:
        self._ahead.append((now_ns, request))

    def abort(self, index: int, now_ns: int) -> None:
        raise NotImplementedError

    def advance(self, now_ns: int, until_ns: int | None) -> tuple[int, list[Finished]]:
        while self._ahead and (self._ahead[0][0] <= self._clock_ns or not self._pools.has_work):
            arrived_ns, request = self._ahead.pop(0)
            self._clock_ns = max(self._clock_ns, arrived_ns) + PROMPT_MS * MS
            self._pools.receive(request, now_ns)
        return self._pools.advance(now_ns, until_ns)

    def finish(self) -> ServerRecord:
        return self._pools.finish()


def played(wrong: bool) -> ReplayResult:
    """32 clients send four requests each, one after the other, without think times."""
    values = resolve(KNOBS)
    timing = build_timing(values)
    pools = two_pools(values, timing)
    plays = [[talk(f"r{n}", turn(f"r{n}", 1000, OUTPUT))] for n in range(LANES * TURNS)]
    server: Server = StandingClock(pools) if wrong else pools
    return simulate(trace_of(*plays), values, timing, server=server)


def test_a_prefill_pool_on_a_clock_of_its_own_lets_one_client_in_at_a_time() -> None:
    # Clients start 50 ms apart, and a prompt takes 20: whoever comes next is ahead of the clock that stands still, but
    # for the few that come within 20 ms of another.
    right, wrong = played(wrong=False), played(wrong=True)
    alone_ms = PROMPT_MS + (OUTPUT - 1) * PASS_MS
    decodes = wrong.record.passes["worker"] == 1
    assert wrong.record.passes["num_running"][decodes].mean() == pytest.approx(1, abs=0.04)
    assert wrong.record.passes["end_ns"].max() == pytest.approx(LANES * TURNS * alone_ms * MS, rel=0.04)
    # On one clock a request takes as long, and at most one pass under way more at either pool.
    ends, sent = right.client.sent.end_ns, right.client.sent.dispatched_ns
    took_ms = [(end - start) / MS for end, start in zip(ends, sent, strict=True)]
    assert alone_ms <= min(took_ms)
    assert max(took_ms) <= alone_ms + PROMPT_MS + PASS_MS
    # From when the last client has started until the first has ended, all but those in prefill decode.
    passes = right.record.passes
    steady = (passes["worker"] == 1) & (passes["start_ns"] > 1700 * MS) & (passes["end_ns"] < 4000 * MS)
    assert passes["num_running"][steady].mean() == pytest.approx(LANES * (alone_ms - PROMPT_MS) / alone_ms, rel=0.02)
    rates = [len(run.client.sent) / run.record.passes["end_ns"].max() * 1e9 for run in (right, wrong)]
    assert rates[1] == pytest.approx(1000 / alone_ms, rel=0.04)
    assert rates[0] > 22 * rates[1]  # with the start of the clients, over 31 without
