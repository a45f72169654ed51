"""Tables of a store: the pairs in its folder ``tables``, by name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.errors import GapscopeError, did_you_mean
from engine.timing.anchors.target import UNKNOWN, Target
from engine.timing.tables.identity import differences
from engine.timing.tables.layout import Cell, put, read_cells, sidecar_of
from engine.timing.tables.source import model_of

FOLDER, ENDING = "tables", ".parquet"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


def table_names(stores: Sequence[Path]) -> list[str]:
    """Names of all tables of some stores, sorted."""
    return sorted({path.stem for store in stores for path in (store / FOLDER).glob(f"*{ENDING}")})


def keep(file: Path, store: Path, name: str | None = None) -> str:
    """Copy a table and its sidecar into a store; the name it has there.

    Raises:
        GapscopeError: no sound table; a name that is none, or that another table has there.
    """
    read_cells(file)
    name = name or file.stem
    if not _NAME.fullmatch(name):
        raise GapscopeError(f"{name!r} is no name of a table: expected letters, digits and . _ + - (--name).")
    place = store / FOLDER / (name + ENDING)
    pairs = [(path, path.read_bytes()) for path in (file, sidecar_of(file))]
    if place.exists() and place.read_bytes() != pairs[0][1]:
        raise GapscopeError(f"The store has another table of the name {name}: give this one another (--name).")
    for path, (_, data) in zip((place, sidecar_of(place)), pairs, strict=True):
        put(path, data)
    return name


def find_table(text: str, stores: Sequence[Path]) -> tuple[Path, int | None]:
    """The file that a name of a store, or a path, means, and which of its deployments: ``NAME#2`` is the second.

    Raises:
        GapscopeError: there is none.
    """
    name, _, number = text.partition("#")
    if number and not (number.isdigit() and int(number)):
        raise GapscopeError(f"Table {text!r}: expected NAME, or NAME#2 for the second deployment in it.")
    which = int(number) - 1 if number else None
    if _NAME.fullmatch(name):
        for store in stores:
            path = store / FOLDER / (name + ENDING)
            if path.is_file():
                return path, which
    path = Path(name)
    if path.suffix == ENDING and path.is_file():
        return path, which
    hint = did_you_mean(name, table_names(stores))
    raise GapscopeError(f"There is no table {name!r}.{hint} `gapscope table list` names all of them.")


def pick(cells: Sequence[Cell], name: str, which: int | None, target: Target) -> Cell:
    """The deployment of a table that a replay asks for: by number, else the one that differs in nothing known.

    Raises:
        GapscopeError: no such number; several or none that fit, of several.
    """
    if which is not None:
        if which >= len(cells):
            raise GapscopeError(f"Table {name} holds {len(cells)} deployments: expected a number up to that.")
        return cells[which]
    if len(cells) == 1:
        return cells[0]
    fitting = [i for i, cell in enumerate(cells) if not differences(cell.identity, target)]
    if len(fitting) == 1:
        return cells[fitting[0]]
    among = fitting or range(len(cells))
    told = ", ".join(f"{name}#{i + 1} ({cells[i].label})" for i in list(among)[:6])
    raise GapscopeError(f"Table {name} holds {len(among)} deployments that may be meant: name one of {told}.")


def table_model(
    text: str, stores: Sequence[Path], target: Target | None = None, *, force: bool = False
) -> dict[str, Any]:
    """The timing model that a table's name, or its file, means for a target (see :func:`pick`).

    Raises:
        GapscopeError: no such table, or none of its deployments can be told apart.
    """
    path, which = find_table(text, stores)
    cell = pick(read_cells(path), path.stem, which, target or UNKNOWN)
    return model_of(cell, path.stem, target, force=force)
