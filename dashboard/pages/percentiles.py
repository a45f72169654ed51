"""Percentiles: the whole distribution of a metric on every side, not its mean."""

import streamlit as st

from dashboard import widgets
from dashboard.charts.draw import draw
from dashboard.charts.percentiles import distribution, length_error, tail
from dashboard.compare.limits import parse_limits
from dashboard.frame import header
from dashboard.metrics import metric
from dashboard.queries.percentiles import PROPERTIES

frame, store = widgets.frame("percentiles"), widgets.store()


def choose_cell() -> None:
    """Remember the cell of the heat map that was clicked."""
    clicked = st.session_state["plot-length-error"]["selection"]["points"]
    key = clicked[0].get("customdata", "") if clicked else ""
    st.session_state["err_cell"] = str(key[0] if isinstance(key, list) else key)


with st.container(horizontal=True, vertical_alignment="bottom"):
    chosen = metric(widgets.control("metric", flat=False, width=200))
    kind = widgets.control("curve")
    log = widgets.control("pct_x") == "log"
    limits = parse_limits(widgets.control("slo", width=240, placeholder="e.g. ttft<=500ms  e2e<=2s"))

found = distribution.samples(frame, store, chosen)
titles = {
    "ecdf": "share of requests at or below",
    "tail": "share of requests above, log",
    "percentile": "value by percentile",
    "qq": header(frame, "replay against measured, quantile by quantile"),
}
rows, figure = distribution.curve(frame, store, chosen, found, kind, log)
if kind in ("ecdf", "tail"):
    tail.limit_line(figure, chosen, limits, log, frame.dark)
draw(
    frame,
    "curve",
    f"{chosen.label} ({chosen.unit}): {titles[kind]}",
    rows,
    figure,
    note=distribution.left_out(frame, found, figure),
)
if frame.replays and limits:
    draw(frame, "limits", "Share of values within the limits", tail.limits(frame, store, limits))
if frame.replays:
    draw(
        frame,
        "percentiles",
        f"{chosen.label} ({chosen.unit}), side by side",
        distribution.table(frame, store, chosen, found),
        height=280,
    )

if chosen.source != "requests":
    st.caption(f"{chosen.label} is not a number of a request, so it is not split by properties of requests.")
    st.stop()

by = widgets.control("by")
draw(
    frame,
    "by",
    f"{chosen.label} ({chosen.unit}) by {PROPERTIES[by]}",
    *distribution.by_property(frame, store, chosen, by, log),
)

if frame.replays:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        measure = widgets.control("err")
        side = widgets.candidate(frame, "err_of")
        widgets.control("err_cell", width=180, placeholder="none")
    pair = (frame.measured, side)
    draw(
        frame,
        "length-error",
        f"Gap of {chosen.label} by input and output length, {side.role.name}",
        *length_error.errors(frame, store, side, chosen, measure),
        note=f"Blue: {side.called} is lower; orange: higher. n: shared source-turns of the cell. Click one.",
        sides=pair,
        on_select=choose_cell,
    )
    if cell := length_error.cell_of(st.session_state.get("err_cell") or ""):
        inside, where = length_error.turns(frame, store, side, chosen, cell)
        picked = draw(
            frame,
            "length-turns",
            f"Source-turns of the cell: {where}",
            inside,
            note="Select a row for its link to the Request page.",
            sides=pair,
            height=260,
            on_select="rerun",
        )
        widgets.turn_links(picked, inside)

    top = widgets.control("top", width=160)
    draw(
        frame,
        "tail",
        f"How much of the gap of the mean {chosen.label} the largest requests make",
        tail.tail(frame, store, chosen, found, top),
        height=330,
    )
else:
    top = widgets.control("top", width=160)
slowest = tail.slowest(frame, store, chosen, top)
picked = draw(
    frame,
    "slowest",
    f"Requests with the largest {chosen.label}",
    slowest,
    note="Select a row for its link to the Request page, which shows this source-turn on every side.",
    height=300,
    on_select="rerun",
)
widgets.turn_links(picked, slowest)
