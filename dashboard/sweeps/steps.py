"""One step down and one up for every knob: the rule of a sensitivity, and which knobs have none and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dashboard.sweeps.plan import Point, point, shown
from engine.errors import GapscopeError
from engine.knobs import BY_NAME, Knob

FACTOR = 1.25
"""A number is divided and multiplied by this."""
BY_ONE = frozenset(
    ("lanes", "replicas", "prefill_replicas", "spec_tokens", "warmup_requests", "prefill_schedule_interval")
)
"""Counts of few: one less and one more."""
BY_TWO = frozenset(
    ("block_size", "attention_dp", "prefill_attention_dp", "tp", "pp", "ep", "dcp", "max_num_batched_tokens")
)
"""What comes in powers of two: half and double."""
FROM_ZERO = {"ms": 1.0, "us": 10.0, "s": 1.0}
"""The step up from zero, by unit; a zero without one of these switches something off and has no step."""
SEEDS = frozenset(("client_seed", "spec_seed"))
WINDOW = frozenset(("duration_s", "warmup_s", "grace_s"))
USUAL = (
    "lanes",
    "lane_stagger_ms",
    "think_scale",
    "dispatch_lag_ms",
    "request_latency_ms",
    "response_latency_ms",
    "max_num_seqs",
    "max_num_batched_tokens",
    "long_prefill_token_threshold",
    "async_scheduling",
    "reserve_full_prompt",
    "kv_blocks",
    "block_size",
    "prefix_caching",
    "pass_scale",
    "between_passes_ms",
)
"""The knobs that are varied where none are chosen."""
RULE = (
    f"One step: a number is divided and multiplied by {FACTOR:g} (whole numbers are rounded, by at least one); "
    f"{', '.join(sorted(BY_ONE))} go by one; {', '.join(sorted(BY_TWO))} are halved and doubled; a time at zero goes "
    "up by 1 ms (10 us, 1 s); a switch is turned; of choices each other one is taken."
)


@dataclass(frozen=True)
class Step:
    """A knob moved once, all else as in the base: ``down``, ``up``, or ``other`` of a switch or a choice."""

    knob: str
    way: str
    value: Any
    point: Point

    @property
    def words(self) -> str:
        """The knob with its value."""
        return f"{self.knob}={shown(self.value)}"


@dataclass(frozen=True)
class Steps:
    """What is played, and the knobs that are not, each with a sentence."""

    steps: tuple[Step, ...]
    skipped: Mapping[str, str]


def steps(names: Sequence[str], base: Mapping[str, Any], fixed: Mapping[str, Any]) -> Steps:
    """The steps of these knobs from the base with ``fixed``; knobs without effect there are skipped, and say why.

    Raises:
        GapscopeError: no such knob.
    """
    found: list[Step] = []
    skipped: dict[str, str] = {}
    now = {**base, **fixed}
    for name in dict.fromkeys(names):
        knob = BY_NAME.get(name)
        if knob is None:
            raise GapscopeError(f"There is no knob {name!r}: expected one of {', '.join(BY_NAME)}.")
        moves, why = moved(knob, now[name])
        refused = ""
        for way, value in moves:
            one = point((value,), {**fixed, name: value}, base)
            if one.why:
                refused = one.why
            else:
                found.append(Step(name, way, value, one))
        if not any(step.knob == name for step in found):
            skipped[name] = why or refused
    return Steps(tuple(found), skipped)


def moved(knob: Knob, value: Any) -> tuple[list[tuple[str, Any]], str]:
    """The values one step away, each with its way; or none, and why."""
    if knob.group == "output":
        return [], "It decides what is written, not what happens."
    if knob.name in SEEDS:
        return [], "A seed has no order: its steps would be noise."
    if knob.name in WINDOW:
        return [], "It moves the window that is measured, so the number would be another one."
    if knob.type is bool:
        return [("other", not value)], ""
    if knob.choices:
        return [("other", one) for one in knob.choices if one != value], ""
    if knob.type is str:
        return [], "It names something, and names have no step."
    if value < 0:
        return [], "It comes from the timing: a step needs a value of its own to start from."
    low, high = _numbers(knob, value)
    ways = [(way, one) for way, one in (("down", low), ("up", high)) if one is not None and one != value]
    if not ways:
        return [], "It is off, and nothing says how large a first step would be." if not value else "It has no step."
    return ways, ""


def _numbers(knob: Knob, value: Any) -> tuple[Any, Any]:
    """One step down and up, inside the range of the knob; None where there is none."""
    if knob.name in BY_ONE:
        low, high = value - 1, value + 1
    elif knob.name in BY_TWO:
        low, high = value / 2, value * 2
    elif not value:
        low, high = None, FROM_ZERO.get(knob.unit)
    elif knob.type is int:
        low, high = min(round(value / FACTOR), value - 1), max(round(value * FACTOR), value + 1)
    else:
        low, high = float(f"{value / FACTOR:.6g}"), float(f"{value * FACTOR:.6g}")
    return _inside(knob, low), _inside(knob, high)


def _inside(knob: Knob, value: Any) -> Any:
    if value is None or (knob.low is not None and value < knob.low) or (knob.high is not None and value > knob.high):
        return None
    return round(value) if knob.type is int else float(value)
