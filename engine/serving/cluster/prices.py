"""What a step of ranks in lockstep lasts: as long as the slowest of them, or as one batch of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from engine.serving.contract import Batch
from engine.timing.contract import PassTimeSource, decode_run

Price = Literal["slowest", "combined"]

Pricing = Callable[[PassTimeSource, Sequence[Batch], Sequence[int]], int]
"""What a step lasts with these batches, before which the ranks load for these times."""


def _slowest(timing: PassTimeSource, batches: Sequence[Batch], loading_ns: Sequence[int]) -> int:
    pass_ns = timing.pass_ns
    return max([pass_ns(*batch) + loading for batch, loading in zip(batches, loading_ns, strict=True)])


def _combined(timing: PassTimeSource, batches: Sequence[Batch], loading_ns: Sequence[int]) -> int:
    prefills, new, read, decodes, context = zip(*batches, strict=True)
    return timing.pass_ns(sum(prefills), sum(new), max(read), sum(decodes), max(context)) + max(loading_ns)


RunPricing = Callable[[PassTimeSource, Sequence[int], Sequence[Sequence[int]], int, int], Sequence[int]]
"""What steps last in which the ranks decode so many requests each, with these KV sums ahead of each rank.

At least those steps are priced that start before the last of the times, the first at the other.
"""


def _slowest_run(
    timing: PassTimeSource, decoding: Sequence[int], ahead: Sequence[Sequence[int]], now_ns: int, until_ns: int
) -> Sequence[int]:
    # A rank for itself is never later than all together, so none stops too soon.
    own = [decode_run(timing, n, contexts, now_ns, until_ns)[1] for n, contexts in zip(decoding, ahead, strict=True)]
    return [max(durations) for durations in zip(*own, strict=False)]


def _combined_run(
    timing: PassTimeSource, decoding: Sequence[int], ahead: Sequence[Sequence[int]], now_ns: int, until_ns: int
) -> Sequence[int]:
    most = [max(contexts) for contexts in zip(*ahead, strict=True)]
    return decode_run(timing, sum(decoding), most, now_ns, until_ns)[1]


PRICES: dict[str, tuple[Pricing, RunPricing]] = {
    "slowest": (_slowest, _slowest_run),
    "combined": (_combined, _combined_run),
}
"""Of one step, and of several in which nobody schedules."""
