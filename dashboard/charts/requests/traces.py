"""Buttons that hand out a window of a run as a Chrome trace."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import streamlit as st

from dashboard.frame import Side
from engine.bundle import Bundle
from engine.bundle.chrome import chrome_trace
from engine.bundle.chrome_rows import MOST

HELP = (
    "Chrome trace JSON, which Perfetto opens: passes, requests by lane, counters, evictions and preemptions. At most "
    f"{MOST['passes']:,} passes, {MOST['requests']:,} requests and {MOST['kv_events']:,} cache events; a longer window "
    "is cut, and the trace says where."
)


def trace_buttons(
    sides: Sequence[Side], from_s: float | None = None, span_s: float | None = None, requests: Sequence[str] = ()
) -> None:
    """A button per run; ``requests`` are the ids of the one to show, in the order of the sides."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        for side, request in zip(sides, requests or [""] * len(sides), strict=True):
            if "passes" in side.bundle.tables or "requests" in side.bundle.tables:
                st.download_button(
                    f"Trace, {side.role.name}",
                    partial(_data, side.bundle, from_s, span_s, request),
                    f"gapscope-{side.run_id}-trace.json",
                    "application/json",
                    key=f"trace-{side.role.name}",
                    icon=":material/timeline:",
                    on_click="ignore",
                    type="tertiary",
                    help=HELP,
                )


def _data(bundle: Bundle, from_s: float | None, span_s: float | None, request: str) -> bytes:
    return chrome_trace(bundle, from_s, span_s, request).data
