"""Exactly the rows of a chart as a file: unrounded, NULL where nothing is known, no infinities."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from dashboard.charts.answer import Answer, Column
from dashboard.frame import Frame, Side
from dashboard.view import from_link


def about(
    frame: Frame, title: str, answer: Answer, sides: Sequence[Side] | None = None, link: str = ""
) -> dict[str, Any]:
    """What the footer of a Parquet file says of its rows: runs, population, SQL, whether all are there."""
    view = from_link(link) if link else None
    return {
        "title": title,
        "runs": [
            {"run_id": side.run_id, "role": side.place, "label": side.label or None, "n": answer.n.get(side.run_id)}
            for side in sides or frame.sides
        ],
        "population": frame.population.name,
        "estimator": frame.estimator.value,
        "window": frame.window.value,
        "definition": answer.definition,
        "rows": answer.rows.num_rows,
        "truncated": answer.truncated,
        "link": view.link() if view else None,  # path and query: host and port are nobody's business
        "sql": answer.sql,
    }


def as_csv(rows: pa.Table, columns: Sequence[Column] = ()) -> bytes:
    """The rows as CSV under the headers of the screen, which hold the units.

    Text is quoted, so that an empty cell is NULL and ``""`` empty text; lists are JSON. A number that is none is NULL.
    """
    labels = {column.name: column.label for column in columns}
    names = [labels.get(name, name) for name in rows.column_names]
    flat = pa.table([_cells(_finite(column)) for column in rows.columns], names=names)
    sink = io.BytesIO()
    pa_csv.write_csv(flat, sink)
    return sink.getvalue()


def as_parquet(rows: pa.Table, columns: Sequence[Column] = (), footer: Mapping[str, Any] | None = None) -> bytes:
    """The rows as Parquet, lists as lists. Each field carries its header; the footer's key ``gapscope`` is JSON."""
    labels = {column.name: column.label for column in columns}
    table = pa.table([_finite(column) for column in rows.columns], names=rows.column_names)
    fields = [one.with_metadata({"label": labels[one.name]}) if one.name in labels else one for one in table.schema]
    kept = {"gapscope": json.dumps(footer, ensure_ascii=False, sort_keys=True)} if footer is not None else None
    sink = io.BytesIO()
    pq.write_table(table.cast(pa.schema(fields, kept)), sink, compression="zstd")
    return sink.getvalue()


def _finite(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Floats that are no numbers become NULL."""
    if not pa.types.is_floating(column.type):
        return column
    return pc.if_else(pc.is_finite(column), column, pa.scalar(None, column.type))


def _cells(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """A column that CSV can hold."""
    if pa.types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    if not pa.types.is_nested(column.type):
        return column
    return pa.array([None if one is None else json.dumps(_json(one)) for one in column.to_pylist()], pa.string())


def _json(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, list):
        return [_json(one) for one in value]
    return {name: _json(one) for name, one in value.items()} if isinstance(value, dict) else value
