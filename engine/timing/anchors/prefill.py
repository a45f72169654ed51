"""Time of prompts: a fixed cost per step, and a rate per token that grows with the length that was measured."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from engine.timing.anchors.artefact import Packed, PrefillPoint, PrefillProbe

FITTED_POINTS = 4
"""Different lengths from which a bend may be read."""


@dataclass(frozen=True, slots=True)
class PrefillLine:
    """Milliseconds of a step that computes prompts: ``fixed + rate(n) tokens`` with ``rate(n) = first + bend n``.

    n is what a token's arithmetic grows with: the mean prompt's own length and twice what it had cached. It is read no
    further than ``longest``, the longest prompt that was measured. A rate is never below ``slowest`` where the line
    has one that is not positive. ``fixed`` is charged once per step.
    """

    fixed: float
    first: float
    bend: float
    longest: float
    slowest: float

    def raw_rate(self, length: float) -> float:
        """The rate as the line has it."""
        return self.first + self.bend * min(length, self.longest)

    def rate(self, length: Any) -> Any:
        """Milliseconds per token of prompts of that length; arrays element by element."""
        if isinstance(length, np.ndarray):
            rates = self.first + self.bend * np.minimum(length, self.longest)
            return np.where(rates > 0, rates, self.slowest)
        found = self.first + self.bend * (length if length < self.longest else self.longest)
        return found if found > 0 else self.slowest

    def ms(self, tokens: Any, prompts: Any, cached: Any = 0.0) -> Any:
        """A step of ``prompts`` alike that compute ``tokens`` and read ``cached``, each all together."""
        return self.fixed + self.rate((tokens + 2.0 * cached) / prompts) * tokens

    def scaled(self, factor: float) -> PrefillLine:
        """The same with every time multiplied."""
        return replace(
            self,
            fixed=self.fixed * factor,
            first=self.first * factor,
            bend=self.bend * factor,
            slowest=self.slowest * factor,
        )

    def sharded(self, factor: float) -> PrefillLine:
        """The same with the rate multiplied and the fixed part held."""
        return replace(self.scaled(factor), fixed=self.fixed)


def curve_of(probe: PrefillProbe) -> PrefillLine | None:
    """The fitted curve: the artefact's own, else by least squares where enough lengths were measured; else None."""
    lengths = {point.length for point in probe.points}
    if probe.curve is not None:
        fixed, first, bend = probe.curve.fixed, probe.curve.rate, probe.curve.bend
    elif len(lengths) >= FITTED_POINTS:
        tokens, lengths_of, ms = _columns(probe.points)
        design = np.stack([np.ones(len(ms)), tokens, tokens * lengths_of], axis=1)
        fixed, first, bend = _least_squares(design, ms)
    else:
        return None
    return PrefillLine(fixed, first, bend, _reach(probe), _slowest(probe))


def line_of(probe: PrefillProbe) -> PrefillLine | None:
    """One rate for all lengths; None where none can be told, or it is not positive."""
    rate, fixed = probe.rate, probe.fixed
    if rate is None or fixed is None:
        if len({point.tokens for point in probe.points}) < 2:
            return None
        tokens, _, ms = _columns(probe.points)
        fixed, rate = _least_squares(np.stack([np.ones(len(ms)), tokens], axis=1), ms)
    if rate <= 0:
        return None
    return PrefillLine(max(0.0, fixed), rate, 0.0, _reach(probe), rate)


def falls(probe: PrefillProbe) -> bool:
    """Whether prompts without cached tokens took no longer the longer they were, by least squares."""
    points = tuple(point for point in probe.points if not point.context and point.prompts == 1)
    if len({point.tokens for point in points}) < 2:
        return False
    tokens, _, ms = _columns(points)
    return _least_squares(np.stack([np.ones(len(ms)), tokens], axis=1), ms)[1] <= 0


def hits_of(probe: PrefillProbe) -> tuple[Any, Any]:
    """Lengths and milliseconds of prompts that were all cached, as arrays in order of the lengths."""
    held: dict[float, list[float]] = {}
    for point in probe.points:
        held.setdefault(point.tokens + point.context, []).append(point.ms)
    lengths = sorted(held)
    return np.array(lengths), np.array([float(np.mean(held[length])) for length in lengths])


def packed_line(probe: PrefillProbe, packed: Packed) -> PrefillLine:
    """The line that packed prompts are held to: that of single ones."""
    line = curve_of(probe) or line_of(probe)
    if line is None:
        raise ValueError("no line through the prompts")
    return line


def packed_rate(line: PrefillLine, packed: Packed) -> PrefillLine:
    """The line of steps with several prompts: the packed rate at its own length, with the single prompts' bend.

    Its fixed cost is that of single prompts, as the pack's own holds what the measurement added.
    """
    return replace(line, first=packed.rate - line.bend * packed.seq_len, slowest=packed.rate)


def _reach(probe: PrefillProbe) -> float:
    """The largest n that was measured: twice the cached tokens count, as a token attends to them."""
    return max(point.length for point in probe.points)


def _slowest(probe: PrefillProbe) -> float:
    positive = [pair for pair in probe.pairwise if pair > 0]
    if not positive:
        ordered = sorted(probe.points, key=lambda point: point.tokens)
        steps = [(b.ms - a.ms, b.tokens - a.tokens) for a, b in itertools.pairwise(ordered)]
        positive = [ms / tokens for ms, tokens in steps if ms > 0 and tokens > 0]
    return max(positive) if positive else max(point.ms / point.tokens for point in probe.points)


def _columns(points: tuple[PrefillPoint, ...]) -> tuple[Any, Any, Any]:
    rows = np.array([(point.tokens, point.length, point.ms) for point in points], np.float64)
    return rows[:, 0], rows[:, 1], rows[:, 2]


def _least_squares(design: Any, ms: Any) -> list[float]:
    found, *_ = np.linalg.lstsq(design, ms, rcond=None)
    return [float(value) for value in found]
