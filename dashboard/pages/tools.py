"""Cross-tool: what did several tools see of one server, and why do they disagree?"""

import streamlit as st

from dashboard import widgets
from dashboard.charts.draw import draw
from dashboard.charts.tools import tools
from dashboard.charts.tools.tool_frame import tool_frame
from dashboard.frame import escape
from dashboard.metrics import metric

frame, found = tool_frame()
store = widgets.store()

if found.reasons:
    with st.container(border=True, key="reasons", gap="xsmall"):
        st.markdown("**Why they disagree**")
        st.markdown("\n".join(f"- {escape(sentence)}" for sentence in found.reasons))

answer, bars = tools.outcomes(frame, found)
draw(frame, "outcomes", "What became of the requests, by outcome class", answer, bars)
draw(frame, "outcome-words", "The same classes in the tools' own words", answer)
draw(
    frame,
    "definitions",
    "What the numbers mean, run by run",
    tools.definitions(found, widgets.control("tools_fields") == "all"),
)
draw(frame, "numbers", "Numbers by one rule", tools.numbers(found))
draw(frame, "rates", "Rates by window", tools.rates(found))

chosen = metric(widgets.control("tools_metric", flat=False, width=220))
ecdf, curves, left_out = tools.distribution(frame, store, found, chosen)
draw(
    frame, "distribution", f"{chosen.label} ({chosen.unit}): share of requests at or below", ecdf, curves, note=left_out
)
draw(frame, "own", "The tools' own figures beside ours", tools.own(found), height=420)
