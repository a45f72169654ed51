"""Which points a sweep has: one knob or two, as lists or from, to and steps; pure, nothing runs here."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.errors import GapscopeError
from engine.knobs import BY_NAME, KNOBS, resolve

MOST_POINTS = 64
"""Points of one sweep or sensitivity."""
FORM = "a list such as 4,8,16, or FROM:TO:STEPS such as 1024:8192:4 (evenly), or 1024:8192:4:log (by equal factors)"
SWEPT = tuple(knob.name for knob in KNOBS if knob.group != "output" and (knob.type is not str or knob.choices))
"""Knobs that have an order or a few choices; names of presets and anchors are given in words elsewhere."""


@dataclass(frozen=True)
class Axis:
    """A knob and the values that it takes, in the order in which they were given; each once."""

    knob: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Point:
    """One setting: its place on the axes and what it changes against the base; ``why`` it cannot be played."""

    at: tuple[Any, ...]
    changes: Mapping[str, Any]
    why: str = ""

    @property
    def words(self) -> str:
        """The changed knobs, named."""
        return said(self.changes)


def said(changes: Mapping[str, Any]) -> str:
    """Changed knobs in words; a replay without any says so."""
    return ", ".join(f"{name}={shown(value)}" for name, value in changes.items()) or "nothing changed"


def shown(value: Any) -> str:
    """The value of a knob as a reader writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def parse_axis(name: str, text: str) -> Axis:
    """Read the values of one knob.

    Raises:
        GapscopeError: no such knob, not of the form, or a value that the knob does not take.
    """
    knob = BY_NAME.get(name)
    if knob is None or name not in SWEPT:
        raise GapscopeError(f"Knob {name!r} cannot be swept: expected one of {', '.join(SWEPT)}.")
    if ":" in text:
        if knob.type not in (int, float):
            raise GapscopeError(f"Values {text!r} of knob {name}, which is no number: expected a list, as a,b.")
        values: list[Any] = _spaced(name, text)
        if knob.type is int:
            values = [round(value) for value in values]
    else:
        values = [part for part in (part.strip() for part in text.split(",")) if part]
    if not values:
        raise GapscopeError(f"Knob {name} has no values to take: expected {FORM}.")
    return Axis(name, tuple(dict.fromkeys(knob.parse(value) for value in values)))


def _spaced(name: str, text: str) -> list[float]:
    first, *others = text.split(":")
    by_factor = others[-1:] == ["log"]
    try:
        low, high, steps = float(first), float(others[0]), int(others[1])
        if len(others) != 2 + by_factor or not np.isfinite([low, high]).all() or steps < 2:
            raise ValueError
        if by_factor and (low <= 0 or high <= 0):
            raise ValueError
    except (ValueError, IndexError):
        raise GapscopeError(f"Values {text!r} of knob {name}: expected {FORM}, with at least 2 steps.") from None
    if steps > MOST_POINTS:
        raise GapscopeError(f"Values {text!r} of knob {name}: expected at most {MOST_POINTS} steps.")
    spaced = np.geomspace(low, high, steps) if by_factor else np.linspace(low, high, steps)
    return [float(f"{value:.6g}") for value in spaced]


def parse_changes(text: str) -> dict[str, Any]:
    """Knobs that every point has, as ``lanes=6 think_scale=0.5``.

    Raises:
        GapscopeError: not of the form, no such knob, or a value that the knob does not take.
    """
    found: dict[str, Any] = {}
    for part in text.split():
        name, equals, value = part.partition("=")
        if not equals:
            raise GapscopeError(f"Knobs {part!r}: expected KNOB=VALUE, separated by spaces.")
        if name not in BY_NAME:
            resolve({name: value})  # says which name is near
        found[name] = BY_NAME[name].parse(value)
    return found


def points(axes: Sequence[Axis], base: Mapping[str, Any], fixed: Mapping[str, Any]) -> list[Point]:
    """The points of a sweep, the last axis fastest. One that contradicts itself says why it cannot be played.

    Args:
        axes: one or two.
        base: every knob of the run to start from.
        fixed: what every point changes; an axis of the same knob wins.

    Raises:
        GapscopeError: the same knob twice, no axis, or too many points.
    """
    names = [axis.knob for axis in axes]
    if not names or len(set(names)) != len(names):
        raise GapscopeError("A sweep has one knob or two different ones.")
    count = int(np.prod([len(axis.values) for axis in axes]))
    if count > MOST_POINTS:
        raise GapscopeError(f"These values make {count:,} points: expected at most {MOST_POINTS} in one sweep.")
    return [
        point(at, {**fixed, **dict(zip(names, at, strict=True))}, base)
        for at in itertools.product(*(axis.values for axis in axes))
    ]


def point(at: tuple[Any, ...], wanted: Mapping[str, Any], base: Mapping[str, Any]) -> Point:
    """One point: what differs from the base, and whether the knobs go together."""
    changes = {name: wanted[name] for name in BY_NAME if name in wanted and wanted[name] != base[name]}
    try:
        resolve(changes, base)
    except GapscopeError as error:
        return Point(at, changes, str(error))
    return Point(at, changes)


def record_of(base: str, changes: Mapping[str, Any], fit: Sequence[str]) -> dict[str, Any]:
    """What the lineage of a point holds, by which it is found again."""
    return {"base": base, "changes": dict(changes), "fit": list(fit)}


def key_of(record: Mapping[str, Any]) -> str:
    """The record as text, so that equal ones are equal."""
    return json.dumps(record, sort_keys=True)


def usual(name: str, value: Any) -> str:
    """Values around that of the base, as text, for a knob of which none were given; empty where nothing says any."""
    knob = BY_NAME[name]
    if knob.type is bool:
        return "false,true"
    if knob.choices:
        return ",".join(knob.choices)
    if not value or value < 0:
        return ""
    around = [value / 2, 0.75 * value, value, 1.5 * value, 2 * value]
    if knob.type is int:
        around = [round(one) for one in around]
    inside = [
        one for one in around if (knob.low is None or one >= knob.low) and (knob.high is None or one <= knob.high)
    ]
    return ",".join(dict.fromkeys(f"{one:g}" if knob.type is float else str(one) for one in inside))
