"""Values of a row that nobody vouches for."""

from __future__ import annotations

from typing import Any

from engine.intake.rows import number

LARGEST = 2**63 - 1
LARGEST_S = 9e9
"""Seconds that fit 64 bits of nanoseconds."""


def text(value: Any) -> str | None:
    """Text as it is, whole numbers of any size in digits; None of anything else and of empty text."""
    if isinstance(value, str):
        return value or None
    return str(value) if type(value) is int else None


def whole(value: Any) -> int | None:
    """A whole number that fits 64 bits, also where it is written as 12.0; None of anything else."""
    if type(value) is int:
        return value if -LARGEST <= value <= LARGEST else None
    found = number(value)
    return int(found) if found is not None and found.is_integer() and abs(found) < LARGEST else None


def count(value: Any) -> int | None:
    """A whole number that is not negative."""
    found = whole(value)
    return found if found is not None and found >= 0 else None


def mapping(value: Any) -> dict[str, Any]:
    """An object, empty where there is none."""
    return value if isinstance(value, dict) else {}


def dig(document: Any, *path: str | int) -> Any:
    """The value at a path of keys and positions, None where it leads nowhere."""
    for step in path:
        if isinstance(step, int):
            document = document[step] if isinstance(document, list) and -len(document) <= step < len(document) else None
        else:
            document = document.get(step) if isinstance(document, dict) else None
    return document


def plain(value: Any) -> Any:
    """A value that an identity can hold: numbers that are finite, text, and lists and objects of such; else None."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and number(value) is None:
        return None
    return value if value is None or isinstance(value, str | int | float) else None
