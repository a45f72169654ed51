"""Runs a server that can be led pass by pass."""

from __future__ import annotations

from engine.serving.contract import Finished, Stepped
from engine.timing.contract import PassTimeSource, decode_run
from engine.timing.hidden import gap_ns

_NEVER = 1 << 62


def advance(server: Stepped, timing: PassTimeSource, now_ns: int, until_ns: int | None) -> tuple[int, list[Finished]]:
    """``Server.advance``: pass after pass until one finishes a request or the next would start too late.

    It also ends where nothing is left that could be scheduled.
    """
    if not server.has_work:
        raise ValueError("advance: nothing waits and nothing runs")
    until = _NEVER if until_ns is None else until_ns
    server.begin(now_ns)
    while True:
        count = server.quiet_passes()
        if count:
            contexts = server.contexts(count)
            starts, durations, now_ns = decode_run(timing, server.num_decoding, contexts, now_ns, until)
            server.skip(starts, durations)
        else:
            duration = timing.pass_ns(*server.schedule(now_ns))
            gap = timing.between_ns
            if server.restore_ns:
                duration += server.restore_ns
                gap = gap_ns(timing, duration)
            server.complete(now_ns, duration)
            now_ns += duration + gap
        finished = server.let_go(now_ns)
        now_ns += server.late_ns
        if finished or now_ns >= until or not server.has_work:
            return now_ns, finished
