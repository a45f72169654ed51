"""Parts of a gap that cancel: two of opposite sign that are both large make a mean right for the wrong reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dashboard.compare.decomposition import Decomposition, Part
from dashboard.compare.gates import Gate
from dashboard.compare.rows import Row
from dashboard.metrics import Population

DEFAULT_TOLERANCE = 0.05
"""Of the measured mean, where no gate bounds it and its noise is unknown."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How large a part of a gap may be, in ms, and where that comes from."""

    ms: float
    source: str


def tolerance(row: Row, gates: Sequence[Gate], population: Population) -> Tolerance | None:
    """The bound of a gate on this mean, else half the width of its noise, else DEFAULT_TOLERANCE of the mean.

    None where the measured side has no mean. The tightest gate counts; one on another population or a range of the
    replay's own value does not bound a difference.
    """
    mean = row.measured.value
    if mean is None:
        return None
    bounds = [
        (gate.high * abs(mean) if gate.kind == "relative" else gate.high, gate.text)
        for gate in gates
        if gate.key == row.key and gate.population == population and gate.kind in ("relative", "absolute")
    ]
    if bounds:
        bound, text = min(bounds)
        return Tolerance(bound, f"gate {text}")
    if row.noise is not None:
        return Tolerance((row.noise.high - row.noise.low) / 2, "the noise of the measured mean")
    return Tolerance(DEFAULT_TOLERANCE * abs(mean), f"{DEFAULT_TOLERANCE:.0%} of the measured mean")


def compensating(found: Decomposition, allowed: Tolerance) -> tuple[Part, Part] | None:
    """The largest positive and negative part, where each exceeds the tolerance and its own noise; else None."""
    large = [
        part
        for part in found.parts
        if part.value_ms is not None and abs(part.value_ms) > allowed.ms and part.inside is not True
    ]
    over = max(large, key=_value, default=None)
    under = min(large, key=_value, default=None)
    if over is None or under is None or _value(over) <= 0 or _value(under) >= 0:
        return None
    return over, under


def words(found: Decomposition, allowed: Tolerance, pair: tuple[Part, Part]) -> str:
    """The warning, with its numbers."""
    over, under = pair
    gap = found.gap or 0.0
    close = any(round(abs(_value(part)), 2) <= round(allowed.ms, 2) for part in pair)
    digits = 4 if close else 2  # as many as show that it is larger
    return (
        f"Parts of the gap cancel in the mean {found.label}: {_lower(over.label)} {_value(over):+.{digits}f} ms "
        f"against {_lower(under.label)} {_value(under):+.{digits}f} ms, each larger than {allowed.ms:.{digits}f} ms "
        f"({allowed.source}); "
        f"the gap itself, {gap:+.2f} ms, is {'within' if abs(gap) <= allowed.ms else 'outside'} it."
    )


def _value(part: Part) -> float:
    return part.value_ms or 0.0


def _lower(label: str) -> str:
    return label if label.startswith("GPU") else label[0].lower() + label[1:]
