"""Controls made from the view table, each bound to the address bar under the name of its parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from dashboard import view
from dashboard.view import PARAMS


def dark() -> bool:
    """Whether the dark theme is on."""
    return bool(st.context.theme.type == "dark")


def control(name: str, *, options: Sequence[str] | None = None, default: Any = None, **options_: Any) -> Any:
    """The bound control of a parameter; its value.

    Args:
        name: of the parameter.
        options: choices, where they depend on the data.
        default: where it depends on the data.
        options_: passed on to the widget.
    """
    param = PARAMS[name]
    value = param.default if default is None else default
    if name.startswith(view.KNOB_PREFIX):
        st.session_state.setdefault("_as_base", {})[name] = value
    common: dict[str, Any] = {"key": name, "help": param.help or None, "bind": "query-params"} | options_
    label = common.pop("label", param.label)
    choices = list(options if options is not None else param.choices)
    flat = common.pop("flat", len(choices) <= 4 and options is None)
    if param.type is list:
        return st.multiselect(label, choices, default=list(value), format_func=param.say, **common)
    if choices:
        if flat:
            return st.segmented_control(label, choices, default=value, required=True, format_func=param.say, **common)
        return st.selectbox(
            label, choices, index=choices.index(value) if value in choices else 0, format_func=param.say, **common
        )
    if param.type is bool:
        return st.checkbox(label, value=bool(value), **common)
    if param.type in (int, float):
        low = None if param.low is None else param.type(param.low)
        high = None if param.high is None else param.type(param.high)
        if param.type is float:
            common.setdefault("format", "%.6g")
        return st.number_input(label, min_value=low, max_value=high, value=param.type(value), **common)
    return st.text_input(label, value=value, **common)
