"""Gates of an acceptance contract: bounds that a user puts on single numbers. There are none built in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from dashboard.compare.numbers import Key, number
from dashboard.compare.rows import refused
from dashboard.metrics import Estimator, Population
from dashboard.store import Store
from engine.errors import GapscopeError

_FORM = re.compile(
    r"(?P<key>[a-z_0-9]+\.[a-z_0-9.]+?)(?:@(?P<population>[a-z_.]+))?\s*"
    r"(?:<=\s*(?P<bound>[0-9.]+)\s*(?P<unit>%|pp|[a-z/]*)|=\s*(?P<low>[0-9.]+)\s*\.\.\s*(?P<high>[0-9.]+))"
)
_HELP = (
    "expected metric.statistic<=BOUND such as 'ttft.mean<=10%' (size of the gap), 'hit_ratio.tokens<=2pp' or "
    "'ttft.p99<=5ms' (size of the difference), or 'preemptions.capture=2..8' (range of the replay's value); "
    "'@warmup' after the statistic names a population"
)


@dataclass(frozen=True, slots=True)
class Gate:
    """One bound. ``relative``: |gap| as a fraction; ``absolute``: |replay - measured| in the number's unit;
    ``range``: the replay's own value."""

    text: str
    key: Key
    population: Population
    kind: Literal["relative", "absolute", "range"]
    low: float
    high: float

    @classmethod
    def parse(cls, text: str) -> Gate:
        """Read a gate.

        Raises:
            GapscopeError: not of the form, an unknown number, or a unit that is not the number's.
        """
        found = _FORM.fullmatch(text.strip())
        if not found:
            raise GapscopeError(f"Gate {text!r}: {_HELP}.")
        key = Key.parse(found["key"])
        population = Population.parse(found["population"] or "")
        try:
            if found["low"] is not None:
                return cls(text.strip(), key, population, "range", float(found["low"]), float(found["high"]))
            bound, unit = float(found["bound"]), found["unit"]
        except ValueError:
            raise GapscopeError(f"Gate {text!r}: a bound is not a number; {_HELP}.") from None
        if unit == "%":
            return cls(text.strip(), key, population, "relative", 0.0, bound / 100)
        if unit == "pp" and key.unit == "share":
            return cls(text.strip(), key, population, "absolute", 0.0, bound / 100)
        if unit in ("", key.unit) and not (key.unit == "share" and unit == ""):
            return cls(text.strip(), key, population, "absolute", 0.0, bound)
        units = "%, pp" if key.unit == "share" else f"%, {key.unit}"
        raise GapscopeError(f"Gate {text!r}: {key} is in {key.unit}; expected a bound in one of {units}.")


@dataclass(frozen=True, slots=True)
class GateResult:
    """Whether a gate holds. A number that is missing on a side fails it, with the reason."""

    gate: Gate
    verdict: Literal["pass", "fail"]
    value: float | None
    measured: float | None
    replay: float | None
    reason: str


def judge(store: Store, measured: str, replay: str, gate: Gate, estimator: Estimator) -> GateResult:
    """Evaluate one gate on unrounded values."""
    left = number(store, measured, gate.key, gate.population.for_side(replay), estimator)
    right = number(store, replay, gate.key, gate.population.for_side(measured), estimator)
    missing = right.why or f"{gate.key} is undefined"
    if gate.kind != "range" and (said := refused(store, measured, replay, gate.key)):
        return GateResult(gate, "fail", None, left.value, right.value, f"not comparable: {said}")
    if right.value is None:
        return GateResult(gate, "fail", None, left.value, None, f"not comparable: replay: {missing}")
    if gate.kind == "range":
        value: float | None = right.value
        words = f"{right.value:g} in {gate.low:g}..{gate.high:g}"
    elif left.value is None:
        return GateResult(gate, "fail", None, None, right.value, f"not comparable: measured: {left.why}")
    elif gate.kind == "absolute":
        value = abs(right.value - left.value)
        words = f"difference {value:.4g}, bound {gate.high:.4g} {gate.key.unit}"
    elif left.value == 0:
        value = 0.0 if right.value == 0 else None
        words = "measured value is zero: a relative gap is undefined"
    else:
        value = abs(right.value / left.value - 1)
        words = f"gap {right.value / left.value - 1:+.2%}, bound {gate.high:.2%}"
    passed = value is not None and gate.low <= value <= gate.high
    return GateResult(gate, "pass" if passed else "fail", value, left.value, right.value, words)
