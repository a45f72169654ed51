"""What each step of a sensitivity does to a number, and to its gap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dashboard.compare.noise import Noise
from dashboard.compare.rows import judged_change
from dashboard.sweeps.steps import Step


@dataclass(frozen=True)
class Effect:
    """One step: ``change`` of the number against the base point, in its unit, and what becomes of the gap."""

    step: Step
    run_id: str | None
    value: float | None
    change: float | None
    gap: str
    """closes, widens, passes (the other side of the measurement), no change; empty where that is not known."""
    noise: str


def effect(
    step: Step,
    run_id: str | None,
    value: float | None,
    base: float | None,
    measured: float | None,
    noise: Noise | None,
) -> Effect:
    """The effect of one step, from the value of the number at the step, at the base point and in the measured run.

    ``noise`` is that of the measured value: a change is inside where the measured run moved by it would be.
    """
    change = None if value is None or base is None else value - base
    spread = None if noise is None or measured is None else noise.less(measured)
    return Effect(step, run_id, value, change, of_gap(base, value, measured), judged_change(change, spread))


def of_gap(base: float | None, value: float | None, measured: float | None) -> str:
    """What becomes of the gap between a base value and the measured one when the value is another."""
    if base is None or value is None or measured is None:
        return ""
    before, after = base - measured, value - measured
    if value == base:
        return "no change"
    if before * after < 0:
        return "passes" if abs(after) < abs(before) else "widens, past it"
    return "closes" if abs(after) < abs(before) else "widens"


def by_knob(effects: Sequence[Effect]) -> list[list[Effect]]:
    """The effects of each knob together, the knob that moves the number most first; unknown ones last."""
    knobs: dict[str, list[Effect]] = {}
    for one in effects:
        knobs.setdefault(one.step.knob, []).append(one)
    return sorted(knobs.values(), key=lambda found: (-max(abs(one.change or 0.0) for one in found), found[0].step.knob))
