"""Host time that passes hide: what the engine does between two of them is done during the one before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from engine.timing.contract import PassQueries, PassTimes, PassTimeSource, decode_run


def gap_ns(source: PassTimeSource, duration_ns: int) -> int:
    """Host time from the end of the pass that was asked for last, which lasted so long in all, to the next."""
    return source.left_ns(duration_ns) if isinstance(source, HiddenHost) else source.between_ns


def hidden_ns(source: PassTimeSource, duration_ns: int) -> int:
    """Host time that a pass of this duration hides, for those who have to wait for it all the same."""
    return source.hidden_ns(duration_ns) if isinstance(source, HiddenHost) else 0


def hides(knobs: Mapping[str, Any], model: Mapping[str, Any] | None) -> bool:
    """Whether passes hide host time that the timing knows; not where what it knows was left of it in a recording."""
    sources = ((model or {}).get("lineage") or {}).get("sources") or ()
    is_left = knobs["timing"] != "fixed" and knobs["between_passes_ms"] < 0
    return knobs["async_scheduling"] and not (is_left and any(source.get("between") for source in sources))


class HiddenHost:
    """A source whose host time between passes runs beside the pass before: what is left of it is what that is shorter.

    ``between_ns`` is what is left after the pass that was asked for last.
    """

    def __init__(self, source: PassTimeSource) -> None:
        self._source = source
        self.between_ns = source.between_ns

    def left_ns(self, duration_ns: int) -> int:
        """Host time from the end of a pass of this duration to the next."""
        return max(0, self._source.between_ns - duration_ns)

    def hidden_ns(self, duration_ns: int) -> int:
        """Host time that a pass of this duration hides."""
        return min(self._source.between_ns, duration_ns)

    def pass_ns(
        self,
        prefill_requests: int,
        new_tokens: int,
        prefill_kv_tokens: int,
        decode_requests: int,
        decode_kv_tokens: int,
    ) -> int:
        """See :class:`PassTimeSource`."""
        duration = self._source.pass_ns(
            prefill_requests, new_tokens, prefill_kv_tokens, decode_requests, decode_kv_tokens
        )
        self.between_ns = self.left_ns(duration)
        return duration

    def decode_run(
        self, decode_requests: int, contexts: Iterable[int], now_ns: int, until_ns: int
    ) -> tuple[list[int], list[int], int]:
        """See :class:`engine.timing.contract.DecodeRuns`."""
        starts: list[int] = []
        durations: list[int] = []
        if not hasattr(self._source, "decode_run"):
            for context in contexts:
                starts.append(now_ns)
                durations.append(self.pass_ns(0, 0, 0, decode_requests, context))
                now_ns += durations[-1] + self.between_ns
                if now_ns >= until_ns:
                    break
            return starts, durations, now_ns
        ahead = list(contexts)
        while ahead and (not starts or now_ns < until_ns):
            # With the whole of the host time between them, no more passes start before the limit than really do.
            _, some, _ = decode_run(self._source, decode_requests, ahead, now_ns, until_ns)
            for duration in some:
                starts.append(now_ns)
                now_ns += duration + self.left_ns(duration)
            durations += some
            del ahead[: len(some)]
        return starts, durations, now_ns

    def explain(self, queries: PassQueries) -> PassTimes:
        """See :class:`PassTimeSource`."""
        return self._source.explain(queries)

    def describe(self) -> dict[str, Any]:
        """See :class:`PassTimeSource`."""
        return self._source.describe()
