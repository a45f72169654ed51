"""Tables on screen: units in headers, fixed decimals, explicit signs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from dashboard.charts.answer import Column


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
