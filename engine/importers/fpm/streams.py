"""What whole streams of passes tell: broken counters, ranks in lockstep, passes that were cold."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.bundle import Check
from engine.importers.fpm.collect import MISSING, Ints, Streams

COLD_AMONG = 32
"""Passes at the beginning of a stream that may be cold: compilation, capture of graphs, first touch of memory."""
COLD_FACTOR = 3.0
COLD_WITNESSES = 3
COLD_SPAN = 20_000
"""Passes after the beginning among which witnesses are looked for."""
LOCKSTEP_SHARE = 0.9
_WALL_SLACK = 0.01
_NAMED = 3


def counters(streams: Streams) -> Check:
    """Whether each stream counts its passes one by one: missing numbers, repeated ones, and resets to lower ones."""
    words, broken, stamped, seen = [], 0, 0, 0
    for number, (worker, rank) in enumerate(streams.names):
        mine = streams.counter[streams.stream == number]
        known = mine[mine != MISSING]
        seen, stamped = seen + len(mine), stamped + len(known)
        if not len(known):
            continue
        steps = np.diff(known)
        missing, back = int((steps[steps > 1] - 1).sum()), int((steps < 0).sum())
        again = len(known) - len(np.unique(known))  # wherever they stand: a capture may have been taken twice
        if missing or again or back:
            broken += 1
            words.append(
                f"{name_of(worker, rank)}: {len(known):,} passes numbered {known.min()} to {known.max()}, "
                f"{missing:,} missing in {int((steps > 1).sum()):,} gaps, {again:,} repeated, {back:,} resets"
            )
    if not stamped:
        return Check("counters_unbroken", "unknown", f"none of {seen:,} passes carries a counter")
    if broken:
        more = f"; and {broken - _NAMED} more" if broken > _NAMED else ""
        return Check("counters_unbroken", "fail", "; ".join(words[:_NAMED]) + more)
    return Check("counters_unbroken", "pass", f"{stamped:,} passes of {_streams(streams)} count without a gap")


def _streams(streams: Streams) -> str:
    return "1 stream" if len(streams.names) == 1 else f"{len(streams.names)} streams"


def ranks(streams: Streams, deployed: int | None = None) -> Check:
    """Whether every rank is there and had work, and all or none had decode passes.

    ``deployed`` is how many the engine ran with; where nobody says, those up to the largest one.
    """
    held = sorted({rank for _, rank in streams.names if rank is not None})
    if not held:
        return Check("ranks_complete", "unknown", "the passes name no rank")
    work = {rank: np.zeros(2, np.bool_) for rank in held}
    for number, (_, rank) in enumerate(streams.names):
        if rank is not None:
            work[rank] |= (streams.geometry[streams.stream == number][:, [0, 3]] > 0).any(axis=0)
    decoding = any(decodes for _, decodes in work.values())
    problems = {
        "missing": [rank for rank in range(max(held[-1] + 1, deployed or 0)) if rank not in work],
        "without work": [rank for rank in held if not work[rank].any()],
        "without decode passes": [rank for rank in held if decoding and work[rank].any() and not work[rank][1]],
    }
    words = ["ranks " + ", ".join(map(str, held)) + (f" of {deployed} that the engine ran" if deployed else "")]
    words += [f"{what}: {', '.join(map(str, found))}" for what, found in problems.items() if found]
    return Check("ranks_complete", "fail" if len(words) > 1 else "pass", "; ".join(words))


def name_of(worker: str | None, rank: int | None) -> str:
    """A stream in words."""
    return f"worker {worker or 'unnamed'}, rank {'unnamed' if rank is None else rank}"


def cold(streams: Streams) -> npt.NDArray[np.bool_]:
    """Which passes were cold: at the beginning of their stream, and far slower than later passes that did more.

    A pass that has no more requests, tokens and KV than another one of its class should not take longer; one of the
    first ``COLD_AMONG`` that takes ``COLD_FACTOR`` times the median of at least ``COLD_WITNESSES`` such later passes
    (of the next ``COLD_SPAN``) did something else besides.
    """
    found = np.zeros(len(streams.stream), np.bool_)
    for number in range(len(streams.names)):
        mine = np.flatnonzero((streams.stream == number) & ~np.isnan(streams.duration_ns))
        mine = mine[: COLD_AMONG + COLD_SPAN]
        geometry, duration = streams.geometry[mine], streams.duration_ns[mine]
        classes = (geometry[:, 0] > 0) * 2 + (geometry[:, 3] > 0)
        for place in range(min(COLD_AMONG, len(mine))):
            later = slice(place + 1, None)
            witnesses = (classes[later] == classes[place]) & (geometry[later] >= geometry[place]).all(axis=1)
            times = duration[later][witnesses]
            if len(times) >= COLD_WITNESSES and duration[place] > COLD_FACTOR * np.median(times):
                found[mine[place]] = True
    return found


def cold_check(streams: Streams, found: npt.NDArray[np.bool_]) -> Check:
    """How many were cold, and the worst of them."""
    if not found.any():
        return Check("passes_warm", "pass", "no stream begins with passes far slower than later ones that did more")
    durations = streams.duration_ns[found] / 1e6
    return Check(
        "passes_warm",
        "fail",
        f"{int(found.sum())} passes at the beginning of a stream took {durations.min():,.0f} to {durations.max():,.0f} "
        f"ms, over {COLD_FACTOR:g} times the median of later passes that did no less; they are of phase primer, which "
        "no fit uses unless it is named",
    )


def lockstep(streams: Streams) -> tuple[Ints | None, str]:
    """The step of each pass where the ranks run in lockstep, and the rule in words.

    Equal counters are one step where, for 90 % of the counters that every rank has, all ranks took the same time
    (within 1 %); nothing else proves that ranks wait for each other.
    """
    if len({rank for _, rank in streams.names}) < 2:
        return None, "one rank: no lockstep groups"
    known = (streams.counter != MISSING) & ~np.isnan(streams.duration_ns)
    counter, stream, duration = streams.counter[known], streams.stream[known], streams.duration_ns[known]
    order = np.lexsort((stream, counter))
    counter, duration = counter[order], duration[order]
    bounds = np.flatnonzero(np.diff(counter, prepend=MISSING))
    sizes = np.diff(np.append(bounds, len(counter)))
    full = sizes == len(streams.names)
    if not full.any():
        return None, "no counter is held by every rank: no lockstep groups"
    low, high = np.minimum.reduceat(duration, bounds)[full], np.maximum.reduceat(duration, bounds)[full]
    share = float((high - low <= _WALL_SLACK * high).mean())
    if share < LOCKSTEP_SHARE:
        return None, (
            f"passes of equal counter took the same time on all ranks in {share:.0%} of {int(full.sum()):,} cases, too "
            "few for lockstep: no groups"
        )
    return np.where(streams.counter == MISSING, MISSING, streams.counter), "passes of equal counter are one step"
