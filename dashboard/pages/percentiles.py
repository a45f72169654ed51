"""Percentiles: the whole distribution of a metric on both sides, not its mean."""

import streamlit as st

from dashboard import widgets
from dashboard.charts import distribution
from dashboard.charts.draw import draw
from dashboard.frame import header
from dashboard.metrics import metric
from dashboard.queries.percentiles import PROPERTIES

frame, store = widgets.frame("percentiles"), widgets.store()

with st.container(horizontal=True, vertical_alignment="bottom"):
    chosen = metric(widgets.control("metric", flat=False, width=220))
    kind = widgets.control("curve")
    log = widgets.control("pct_x") == "log"

found = distribution.samples(frame, store, chosen)
titles = {
    "ecdf": "share of requests at or below",
    "tail": "share of requests above, log",
    "percentile": "value by percentile",
    "qq": header(frame, "replay against measured, quantile by quantile"),
}
draw(
    frame,
    "curve",
    f"{chosen.label} ({chosen.unit}): {titles[kind]}",
    *distribution.curve(frame, store, chosen, found, kind, log),
)
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

top = widgets.control("top", width=160)
if frame.replays:
    draw(
        frame,
        "tail",
        f"How much of the gap of the mean {chosen.label} the largest requests make",
        distribution.tail(frame, store, chosen, found, top),
        height=330,
    )
draw(
    frame,
    "slowest",
    f"Requests with the largest {chosen.label}",
    distribution.slowest(frame, store, chosen, top),
    height=300,
)
