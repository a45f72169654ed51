"""Tables: units in headers, fixed decimals, explicit signs; the same columns on screen and in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import streamlit as st

from dashboard.charts.answer import Column
from dashboard.frame import escape


def column_config(columns: Sequence[Column]) -> dict[str, Any]:
    """Streamlit's description of the columns."""
    config: dict[str, Any] = {}
    for column in columns:
        options: dict[str, Any] = {"help": column.help or None, "pinned": column.pinned or None, "width": column.width}
        if column.format:
            config[column.name] = st.column_config.NumberColumn(column.label, format=column.format, **options)
        else:
            config[column.name] = st.column_config.Column(column.label, **options)
    return config


def shown(value: Any, column: Column) -> str:
    """A cell as text."""
    if value is None or value != value:
        return "–"
    if column.format == "percent":
        return f"{100 * value:.1f} %"
    return column.format.replace("d", ".0f") % value if column.format else str(value)


def _cell(value: Any, column: Column) -> str:
    """A cell of a Markdown table; what a run says is no markup."""
    said = shown(value, column)
    return escape(said) if isinstance(value, str) else said.replace("|", "\\|")


def markdown_table(rows: pa.Table, columns: Sequence[Column] = ()) -> str:
    """The rows as a Markdown table."""
    columns = columns or [Column(name, name) for name in rows.column_names]
    head = "| " + " | ".join(column.label for column in columns) + " |"
    rule = "|" + "|".join("---:" if column.format else "---" for column in columns) + "|"
    body = [
        "| " + " | ".join(_cell(row.get(column.name), column) for column in columns) + " |" for row in rows.to_pylist()
    ]
    return "\n".join([head, rule, *body])
