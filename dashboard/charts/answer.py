"""What a chart rests on: its rows in the units of the screen, the SQL that made them, and how many rows per run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from dashboard.frame import Side
from dashboard.store import Result

INSTANTS = ("time_ns", "start_ns", "end_ns", "until_ns", "dispatched_ns", "received_ns", "first_admit_ns")
"""Columns that hold a moment: shown in seconds from profile start. Every other ``_ns`` is a duration, in ms, and so is
one of these that a table shows in ms (the sum of times of a class, say)."""


@dataclass(frozen=True)
class Column:
    """A column of a table: its header with unit, and the format of its numbers (``%d``, ``%+.1f``).

    One that is ``behind`` stands with the rows behind a chart and in the downloads, not in the table on the page.
    """

    name: str
    label: str
    format: str = ""
    help: str = ""
    pinned: bool = False
    width: int | None = None
    behind: bool = False


@dataclass(frozen=True)
class Answer:
    """Rows with what stands beside them. ``n`` maps run ids to the number of rows that a chart rests on."""

    rows: pa.Table
    sql: str = ""
    columns: Sequence[Column] = ()
    n: Mapping[str, int | None] = field(default_factory=dict)
    definition: str = ""  # how this was computed, in words
    not_recorded: str | None = None  # a sentence, where every run lacks the table
    truncated: bool = False
    empty: str = "There are no rows for this choice of runs, population and phase."
    partly: str = ""  # a sentence on the runs that lack what the others have

    @property
    def shown(self) -> list[Column]:
        """The columns of the table on the page."""
        return [column for column in self.columns if not column.behind]


def answer(
    result: Result, columns: Sequence[Column] = (), n: Mapping[str, int | None] | None = None, definition: str = ""
) -> Answer:
    """The rows of one query."""
    return Answer(
        in_units(result.table, columns),
        result.sql,
        columns,
        n or {},
        definition,
        result.not_recorded,
        truncated=result.truncated,
    )


def stack(
    results: Sequence[tuple[Side, Result]],
    columns: Sequence[Column] = (),
    n: Mapping[str, int | None] | None = None,
    definition: str = "",
) -> Answer:
    """The rows of the same question to several runs, with the side in front. Runs that lack the table are named."""
    tables, missing = [], []
    for side, result in results:
        if result.not_recorded:
            missing.append(result.not_recorded)
            continue
        rows = in_units(result.table, columns)
        names = pa.array([side.role.name] * rows.num_rows, pa.string())
        ids = pa.array([side.run_id] * rows.num_rows, pa.string())
        tables.append(rows.add_column(0, "side", names).add_column(1, "run", ids))
    rows = pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})
    sql = "\n\n".join(f"-- {side.role.name}\n{result.sql}" for side, result in results)
    return Answer(
        rows,
        sql,
        [Column("side", "Side", pinned=True), *columns] if columns else (),
        n or {},
        definition,
        None if tables else " ".join(missing),
        truncated=any(result.truncated for _, result in results),
        partly=" ".join(missing) if tables else "",
    )


def together(parts: Sequence[tuple[str, Answer]]) -> Answer:
    """One answer of a chart whose panels rest on different rows: those of each part under its name, in that order.

    ``n``, and what is said where nothing is recorded, are those of the first part.
    """
    first = parts[0][1]
    tables = [
        one.rows.add_column(0, "panel", pa.array([name] * one.rows.num_rows, pa.string()))
        for name, one in parts
        if one.rows.num_rows
    ]
    columns = {column.name: column for _, one in parts for column in one.columns}
    return replace(
        first,
        rows=pa.concat_tables(tables, promote_options="permissive") if tables else first.rows,
        sql="\n\n".join(f"-- {name}\n{one.sql}" for name, one in parts),
        columns=[Column("panel", "Panel", pinned=True), *columns.values()],
        definition=" ".join(one.definition for _, one in parts if one.definition),
        not_recorded=None if tables else first.not_recorded,
        truncated=any(one.truncated for _, one in parts),
    )


def missing(results: Sequence[tuple[Side, Result]]) -> str:
    """A sentence on the runs that did not record what the others did; empty where all did."""
    return " ".join(result.not_recorded for _, result in results if result.not_recorded)


def in_units(table: pa.Table, columns: Sequence[Column] = ()) -> pa.Table:
    """Nanoseconds as a person would say them: moments in seconds (``_s``), durations in milliseconds (``_ms``)."""
    in_ms = {column.name for column in columns if column.name.endswith("_ms")}
    for index, name in enumerate(table.column_names):
        if name.endswith("_ns"):
            moment = name.endswith(INSTANTS) and name[:-3] + "_ms" not in in_ms
            values = pc.divide(pc.cast(table.column(index), pa.float64()), 1e9 if moment else 1e6)
            table = table.set_column(index, name[:-3] + ("_s" if moment else "_ms"), values)
    return table
