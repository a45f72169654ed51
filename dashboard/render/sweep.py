"""Sweeps and sensitivities as text: table, Markdown, JSON; the same numbers as the pages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dashboard.compare.noise import Noise
from dashboard.compare.numbers import Number
from dashboard.metrics import SWEEP_NUMBERS
from dashboard.render.tables import NOTHING, grid, shown_unit, shown_value
from dashboard.store import Store
from dashboard.sweeps.effects import Effect, by_knob
from dashboard.sweeps.numbers import Played, Scope, front
from dashboard.sweeps.plan import Axis, shown
from dashboard.sweeps.windows import other_window


def sweep_text(
    store: Store,
    scope: Scope,
    base: str,
    axes: Sequence[Axis],
    found: Sequence[Played],
    names: Sequence[str],
    of_front: tuple[str, str],
    form: str,
) -> str:
    """The points of a sweep beside the measured run; ``of_front`` are the throughput and the latency of the front."""
    on = front(found, *of_front)
    measured = {name: scope.base(store, base, name) for name in names}
    if form == "json":
        return json.dumps(_sweep_json(scope, base, axes, found, names, of_front, on, measured), indent=2)
    has_contract = any(one.gates for one in found)
    head = [*(axis.knob for axis in axes), *(_head(name, scope) for name in names), "front"]
    head += ["contract"] if has_contract else []
    rows = []
    for one, is_on in zip(found, on, strict=True):
        row = [shown(value) for value in one.point.at]
        row += [shown_value(one.value(name), scope.key(name).unit) for name in names]
        row += ["front" if is_on else ""]
        rows.append([*row, _contract(one)] if has_contract else row)
    own = ["measured", *[""] * (len(axes) - 1)]
    own += [shown_value(measured[name][0].value, scope.key(name).unit) for name in names]
    rows.append([*own, *[""] * (1 + has_contract)])
    markdown = form == "markdown"
    notes = [f"Measured {scope.measured}, points from {base}; {_words(scope)}."]
    notes += [f"Noise of {SWEEP_NUMBERS[name]}: {noise.words}." for name, (_, noise) in measured.items() if noise]
    notes += [f"{_where(one, axes)}: {one.beside}." for one in found if one.run_id and one.beside]
    notes += [f"{_where(one, axes)}: {one.point.why}" for one in found if one.point.why]
    if other := other_window(store, scope.measured, base, [one.point for one in found]):
        notes.append(other)
    notes += [f"Front: no point has more {SWEEP_NUMBERS[of_front[0]]} and less {SWEEP_NUMBERS[of_front[1]]}."]
    return "\n".join([grid(head, rows, markdown), "", *notes])


def _head(name: str, scope: Scope) -> str:
    return f"{SWEEP_NUMBERS[name]} ({shown_unit(scope.key(name).unit)})"


def _where(one: Played, axes: Sequence[Axis]) -> str:
    return ", ".join(f"{axis.knob}={shown(value)}" for axis, value in zip(axes, one.point.at, strict=True))


def _contract(one: Played) -> str:
    return {True: "holds", False: f"fails {one.fails}", None: NOTHING}[one.holds]


def _words(scope: Scope) -> str:
    return f"{scope.population.words}; {scope.estimator.words}; rates: {scope.window.words}"


def _scope_json(scope: Scope) -> dict[str, Any]:
    return {
        "measured": scope.measured,
        "population": scope.population.name,
        "estimator": scope.estimator.value,
        "window": scope.window.value,
    }


def _noise_json(noise: Noise | None) -> dict[str, Any] | None:
    return None if noise is None else {"low": noise.low, "high": noise.high, "from": noise.words}


def _sweep_json(
    scope: Scope,
    base: str,
    axes: Sequence[Axis],
    found: Sequence[Played],
    names: Sequence[str],
    of_front: tuple[str, str],
    on: Sequence[bool],
    measured: Mapping[str, tuple[Number, Noise | None]],
) -> dict[str, Any]:
    return {
        "base": base,
        **_scope_json(scope),
        "axes": [{"knob": axis.knob, "values": list(axis.values)} for axis in axes],
        "numbers": [
            {
                "number": name,
                "unit": scope.key(name).unit,
                "measured": measured[name][0].value,
                "noise": _noise_json(measured[name][1]),
            }
            for name in names
        ],
        "front": {"throughput": of_front[0], "latency": of_front[1]},
        "points": [
            {
                "at": list(one.point.at),
                "changes": dict(one.point.changes),
                "run_id": one.run_id,
                "why": one.point.why or None,
                "values": {name: one.value(name) for name in names},
                "on_front": is_on,
                "contract": one.holds,
                "gates": [
                    {"gate": result.gate.text, "verdict": result.verdict, "reason": result.reason}
                    for result in one.gates
                ],
            }
            for one, is_on in zip(found, on, strict=True)
        ],
    }


def sensitivity_text(
    scope: Scope,
    name: str,
    base: float | None,
    measured: Number,
    noise: Noise | None,
    effects: Sequence[Effect],
    skipped: Mapping[str, str],
    form: str,
) -> str:
    """What one step of each knob does to a number, the largest first, and the knobs without a step."""
    unit = scope.key(name).unit
    ordered = [one for knob in by_knob(effects) for one in knob]
    if form == "json":
        told = {
            **_scope_json(scope),
            "number": name,
            "unit": unit,
            "base": base,
            "measured_value": measured.value,
            "noise": _noise_json(noise),
            "steps": [
                {
                    "knob": one.step.knob,
                    "way": one.step.way,
                    "value": one.step.value,
                    "run_id": one.run_id,
                    "number": one.value,
                    "change": one.change,
                    "gap": one.gap or None,
                    "noise": one.noise,
                }
                for one in ordered
            ],
            "skipped": dict(skipped),
        }
        return json.dumps(told, indent=2)
    head = ("what", "change", "value", "the gap", "state")
    rows = [
        (
            one.step.words,
            NOTHING if one.change is None else _signed(one.change, unit),
            shown_value(one.value, unit),
            one.gap or "not known",
            one.noise,
        )
        for one in ordered
    ]
    lines = [grid(head, rows, form == "markdown"), ""]
    value = f"{shown_value(base, unit)} at the base, {shown_value(measured.value, unit)} measured"
    lines.append(f"{_head(name, scope)}: {value}; {_words(scope)}.")
    if noise:
        lines.append(f"Noise: {noise.words}.")
    lines += [f"No step of {knob}: {why}" for knob, why in skipped.items()]
    return "\n".join([*lines, "One knob at a time: what two do together is not in it."])


def _signed(change: float, unit: str) -> str:
    text = shown_value(change, unit)
    return text if text.startswith("-") else f"+{text}"
