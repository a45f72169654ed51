"""Values of rows and documents that nobody vouches for, in the types that a bundle holds."""

from __future__ import annotations

import re
from typing import Any

from engine.importers.clients.aiperf.values import LARGEST_S, count, dig, mapping, text, whole
from engine.importers.clients.outline import outline
from engine.intake import InputFile, Intake
from engine.intake.rows import number

__all__ = [
    "cell",
    "cell_count",
    "count",
    "csv_head",
    "dig",
    "first_keys",
    "folder_name",
    "has_row",
    "mapping",
    "ns",
    "run_name",
    "text",
    "truth",
    "whole",
]

_LINES = 5
_NOT_A_NUMBER = re.compile(r"[+-]?(nan|inf(inity)?|none|null|n/?a)?", re.IGNORECASE)


def ns(seconds: float | None) -> int | None:
    """Seconds as whole nanoseconds; None of None and of what does not fit."""
    return None if seconds is None or abs(seconds) > LARGEST_S else round(seconds * 1e9)


def truth(value: Any) -> bool | None:
    """True or false, also where it is written as text of any case; None of anything else."""
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False}.get(value.strip().lower()) if isinstance(value, str) else None


def cell(cells: dict[str, str], column: str) -> float | None:
    """A number of a CSV row; None where the cell is empty, says ``nan`` and the like, or there is no such column.

    Raises:
        ValueError: the cell holds other text.
    """
    written = cells.get(column, "").strip()
    if _NOT_A_NUMBER.fullmatch(written):
        return None
    try:
        return number(float(written))
    except ValueError:
        raise ValueError(f"{column} is {written!r:.40}, expected a number") from None


def cell_count(cells: dict[str, str], column: str) -> int | None:
    """A whole number of a CSV row that is not negative; as :func:`cell` otherwise.

    Raises:
        ValueError: the cell holds text, a fraction or a negative number.
    """
    found = cell(cells, column)
    if found is None:
        return None
    counted = count(found)
    if counted is None:
        raise ValueError(f"{column} is {found:g}, expected a whole number of 0 or more")
    return counted


def csv_head(head: bytes) -> list[str]:
    """Names of the columns, where the beginning of a file is the head line of a CSV file; else empty."""
    line = re.split(rb"[\r\n]", head, maxsplit=1)[0]
    return [name.strip(' "') for name in line.decode("utf-8", "replace").split(",")] if b"," in line else []


def first_keys(head: bytes) -> dict[str, frozenset[str]]:
    """Keys of the JSON object that a file begins with, or that its list begins with (:func:`outline`)."""
    start = head.lstrip()
    return outline(start[1:] if start.startswith(b"[") else start)


def run_name(intake: Intake, file: InputFile) -> str:
    """What a run is called whose files have the same names in every run: their folder, else the file."""
    return folder_name(intake, file) or file.base.partition(".")[0]


def folder_name(intake: Intake, file: InputFile) -> str:
    """The folder that a file lies in, by its last part; empty where a file or an archive was given that has none."""
    return file.folder.rpartition("/")[2] or (intake.name if intake.path.is_dir() else "")


def has_row(head: bytes, keys: frozenset[str]) -> bool:
    """Whether one of the first lines of JSON Lines has these keys, all but one: any single row may lack some."""
    return any(len(keys - outline(line).keys()) <= 1 for line in head.split(b"\n", _LINES)[:_LINES])
