"""Time of decode steps: over the batch as it was swept, over the context as a grid or the formula says.

A batch is one row of straight pieces over the mean context of its requests, so that one query and a million of them
are answered by the same arithmetic.
"""

from __future__ import annotations

from bisect import bisect_left
from math import exp, log
from statistics import median

from engine.bundle.schema import RESOLUTIONS
from engine.timing.anchors.artefact import Anchor
from engine.timing.anchors.rows import Row
from engine.timing.anchors.transport import LEAST_SHARE, Transport, decode_steps_ms
from engine.timing.anchors.verification import Verify

EXTRAPOLATED, CLAMPED, ANALYTIC, INTERPOLATED, EXACT = (
    RESOLUTIONS.index(name) for name in ("extrapolated", "clamped", "analytic", "interpolated", "exact")
)
NEAR = 0.1
"""Share of the measured context within which another is as good as measured."""
_ANY = (0.0, float("inf"))
_POWERS = tuple(float(1 << power) for power in range(6, 22))


class DecodeCurves:
    """Decode steps of an anchor on a target, batch by batch.

    ``extrapolate`` goes on beyond what was measured where another instance would stay at the nearest measured point.

    Raises:
        GapscopeError: the target differs in a way that needs the formula, and there is none.
    """

    def __init__(self, anchor: Anchor, transport: Transport, verify: Verify, extrapolate: bool) -> None:
        self._verify, self._extrapolate = verify, extrapolate
        self._steps = transport.steps
        self._pads = anchor.pads_to_capture
        self._points = [(batch, ms * verify.tokens) for batch, ms in transport.decode(verify.measured_width)]
        self._batches = [batch for batch, _ in self._points]
        self._contexts = {point.batch: point.context for point in anchor.sweep}
        self._rests_on_formula = transport.is_needed or (verify.scaled and verify.width > 1)
        self._kv_ratio = transport.kv_ratio
        self._slopes = {
            batch: slope * transport.context_factor * verify.tokens for batch, slope in _slopes(anchor).items()
        }
        self._spans = _spans(anchor)
        self._dense = self._steps is not None and self._steps.target.scale is None
        self._floor = anchor.floor_ms * verify.tokens if anchor.floor_ms is not None else 0.0
        self._kv_as_measured = None
        if not self._slopes:
            self._kv_as_measured = transport.measured_kv(self._kv_ratio != 1.0)
        middles = [context for context in self._contexts.values() if context is not None]
        self.knots: tuple[float, ...] = (0.0,)
        if self._steps is not None and (verify.scaled or not self._slopes):
            self.knots = tuple(sorted({0.0, *_POWERS, *middles}))
        self.lowest_ms = self._floor or min(ms for _, ms in self._points)

    def row(self, batch: int) -> Row:
        """The pieces of one batch."""
        base, best, used = self._base(batch)
        if self._rests_on_formula:
            best = min(best, ANALYTIC)
        own = self._context(batch)
        held = inside = (0.0, -1.0)
        beyond = EXTRAPOLATED if self._extrapolate else CLAMPED
        n = len(self.knots)
        at, slopes = (base,) * n, (0.0,) * n
        if own is not None and self._slopes:
            slope, inside = _log_log(self._slopes, batch), self._span(batch)
            at, slopes = (base - slope * own,) * n, (slope * self._kv_ratio,) * n
            held = _ANY if self._extrapolate else inside
        elif own is not None:
            inside, held = (own * (1 - NEAR), own * (1 + NEAR)), _ANY
            if self._steps is not None and (self._dense or self._kv_ratio != 1.0):
                at, slopes = self._by_formula(batch, base, own)
                beyond = ANALYTIC if self._dense else beyond
        ratio, bend = self._verification(batch)
        return Row(
            at,
            slopes,
            ratio,
            bend,
            max(self._floor, LEAST_SHARE * base),
            held if held[1] >= held[0] else _ANY,
            inside,
            -1.0 if own is None else own,
            best,
            beyond,
            "decode " + "|".join(f"b{b}" for b in used),
        )

    # Over the batch.

    def _base(self, batch: int) -> tuple[float, int, tuple[int, ...]]:
        """Milliseconds at the context of the sweep, the best resolution, and the batches that they were read from."""
        points, batches = self._points, self._batches
        i = bisect_left(batches, batch)
        if i < len(batches) and batches[i] == batch:
            return points[i][1], EXACT, (batch,)
        if self._pads:
            i = min(i, len(batches) - 1)
            return points[i][1], INTERPOLATED if batch < batches[i] else CLAMPED, (batches[i],)
        if len(points) == 1:
            return self._shaped(batch)
        inside = 0 < i < len(batches)
        if not inside and not self._extrapolate:
            end = 0 if i == 0 else -1
            return points[end][1], CLAMPED, (batches[end],)
        i = min(max(i, 1), len(batches) - 1)
        (b0, ms0), (b1, ms1) = points[i - 1], points[i]
        ms = exp(log(ms0) + _share(batch, b0, b1) * (log(ms1) - log(ms0)))
        return ms, INTERPOLATED if inside else EXTRAPOLATED, (b0, b1)

    def _shaped(self, batch: int) -> tuple[float, int, tuple[int, ...]]:
        """One measured batch has a level; the formula's whole step gives the shape."""
        ((own, ms),) = self._points
        if self._steps is None:
            return ms, CLAMPED, (own,)
        step, context = self._steps.target, [self._contexts[own] or 1.0]
        there, here = (decode_steps_ms(step, b, context, self._verify.measured_width)[0] for b in (batch, own))
        return ms * there / here, ANALYTIC, (own,)

    # Over the context.

    def _context(self, batch: int) -> float | None:
        """The context that the value of a batch belongs to; None where nobody knows."""
        batches = self._batches
        i = bisect_left(batches, batch)
        if i == len(batches) or i == 0 or self._pads or batches[i] == batch:
            return self._contexts[batches[min(i, len(batches) - 1)]]
        below, above = self._contexts[batches[i - 1]], self._contexts[batches[i]]
        if below is None or above is None:
            return None
        return below + _share(batch, batches[i - 1], batches[i]) * (above - below)

    def _span(self, batch: int) -> tuple[float, float]:
        """Contexts that were measured at the batches around."""
        batches = sorted(self._spans)
        i = bisect_left(batches, batch)
        around = {batches[max(0, i - 1)], batches[min(i, len(batches) - 1)]} if batch not in self._spans else {batch}
        low, high = max(self._spans[b][0] for b in around), min(self._spans[b][1] for b in around)
        return (low, high) if low <= high else (high, low)

    def _by_formula(self, batch: int, base: float, own: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """What another context or width of KV adds, by the formula's whole steps."""
        assert self._steps is not None
        assert self._kv_as_measured is not None
        width = self._verify.measured_width
        contexts = list(self.knots) if self._dense else [own]
        there = decode_steps_ms(self._steps.target, batch, contexts, width)
        here = decode_steps_ms(self._kv_as_measured, batch, [own], width)[0]
        if not self._dense:
            return (base + there[0] - here,) * len(self.knots), (0.0,) * len(self.knots)
        return _pieces(contexts, [base + ms - here for ms in there])

    def _verification(self, batch: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """A verification and its drafting, in plain steps."""
        verify, n = self._verify, len(self.knots)
        if not verify.scaled or verify.width == 1:
            return (1.0 + verify.drafting,) * n, (0.0,) * n
        if self._steps is None:
            return (verify.width + verify.drafting,) * n, (0.0,) * n
        contexts = list(self.knots)
        wide, plain = (decode_steps_ms(self._steps.target, batch, contexts, width) for width in (verify.width, 1))
        ratios = [min(max(w / p, 1.0), float(verify.width)) for w, p in zip(wide, plain, strict=True)]
        return _pieces(contexts, [ratio + verify.drafting for ratio in ratios])


def _share(batch: int, below: int, above: int) -> float:
    return (log(batch) - log(below)) / (log(above) - log(below))


def _log_log(values: dict[int, float], batch: int) -> float:
    """Between two batches along a straight line of logarithms; flat outside."""
    batches = sorted(values)
    i = bisect_left(batches, batch)
    if i == 0 or i == len(batches) or batches[i] == batch:
        return values[batches[min(i, len(batches) - 1)]]
    low, high = batches[i - 1], batches[i]
    return exp(log(values[low]) + _share(batch, low, high) * (log(values[high]) - log(values[low])))


def _slopes(anchor: Anchor) -> dict[int, float]:
    """Milliseconds per token of context at each batch of the grid: the median of those that are positive."""
    sweep = {point.batch: point for point in anchor.sweep}
    found: dict[int, list[float]] = {}
    for point in anchor.grid:
        own = sweep.get(point.batch)
        if own is None or own.context is None or point.context is None or point.context == own.context:
            continue
        slope = (point.ms - own.ms) / (point.context - own.context)
        if slope > 0:
            found.setdefault(point.batch, []).append(slope)
    return {batch: median(slopes) for batch, slopes in sorted(found.items())}


def _spans(anchor: Anchor) -> dict[int, tuple[float, float]]:
    """The measured contexts of each batch of the grid, that of the sweep included."""
    sweep = {point.batch: point.context for point in anchor.sweep}
    spans = {}
    for batch in {point.batch for point in anchor.grid}:
        contexts = [p.context for p in anchor.grid if p.batch == batch and p.context is not None]
        own = sweep.get(batch)
        contexts += [own] if own is not None else []
        spans[batch] = (min(contexts), max(contexts))
    return spans


def _pieces(knots: list[float], values: list[float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Straight lines ``at + slope c`` through values at knots; the last goes on."""
    slopes = [(v1 - v0) / (c1 - c0) for c0, c1, v0, v1 in zip(knots, knots[1:], values, values[1:], strict=False)]
    slopes.append(slopes[-1])
    return tuple(v - s * c for c, v, s in zip(knots, values, slopes, strict=True)), tuple(slopes)
