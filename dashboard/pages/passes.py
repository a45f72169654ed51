"""Passes: what the engine did, pass by pass, and how well its durations are modelled at equal geometry."""

import streamlit as st

from dashboard import widgets
from dashboard.charts import passes
from dashboard.charts.draw import draw

frame, store = widgets.frame("passes"), widgets.store()

draw(frame, "classes", "Passes and their time, by class", *passes.classes(frame, store))

with st.container(horizontal=True, vertical_alignment="bottom"):
    pass_class = widgets.control("cls")
    along = widgets.control("along")
    log = widgets.control("pass_y", label="Duration axis") == "log"


def _text(key: object) -> str:
    return str(key[0] if isinstance(key, list) else key)


def choose() -> None:
    """Remember the cell that was clicked."""
    clicked = st.session_state["plot-geometry"]["selection"]["points"]
    st.session_state["cell"] = _text(clicked[0]["customdata"]) if clicked else ""


for side in frame.replays[:1]:
    chart = passes.geometry(frame, store, side, pass_class)
    draw(
        frame,
        "geometry",
        f"Error of the mean {passes.WORDS[pass_class]} pass at equal geometry, %",
        *chart,
        note="Blue: the passes of the replay are shorter; orange: longer. Click a cell for its passes.",
        sides=(frame.measured, side),
        on_select=choose,
    )
widgets.control("cell", label="Cell (click one above)", width=180, placeholder="none")
cell = passes.cell_of(pass_class, st.session_state.get("cell") or "")
if cell:
    draw(frame, "cell", "Passes in the cell", passes.in_cell(frame, store, pass_class, cell), height=260)

draw(
    frame,
    "durations",
    f"Duration of {passes.WORDS[pass_class]} passes, ms",
    *passes.durations(frame, store, pass_class, along, log),
    note="Marks: p50 of the measured passes, larger where there are more; dashes: p10, p90. "
    "Lines: what the replay's timing says of the mean geometry of these passes.",
)

with st.container(horizontal=True, vertical_alignment="bottom"):
    begin = widgets.control("pass_from", step=10.0, width=160)
    length = widgets.control("pass_span", step=10.0, width=160)
draw(frame, "timeline", "Batch composition over time", *passes.timeline(frame, store, begin, length))

rows, ranks = passes.balance(frame, store)
if ranks > 1:
    draw(frame, "ranks", "Work and time by rank", rows)
else:
    st.caption("Rank balance: these runs have a single rank, so there is nothing to balance.")
