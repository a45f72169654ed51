"""Source: where does this run come from, can it be trusted, and what did its tool say itself?"""

import streamlit as st

from dashboard import widgets
from dashboard.charts.draw import draw
from dashboard.charts.tools import source
from dashboard.frame import escape
from dashboard.queries import telemetry

frame, told = source.source_frame()

st.markdown(f"**{escape(told.bundle.title)}** · {escape(told.tool)}")
st.caption(" · ".join(f"{escape(label)}: {escape(value)}" for label, value in told.facts))
with st.container(border=True, key="validity", gap="xsmall"):
    for line in source.box(told):
        st.markdown(line)
    if lines := source.passed(told):
        with st.expander(f"{len(lines)} checks passed"):
            for line in lines:
                st.markdown(line)
if told.not_recorded:
    with st.container(border=True, key="not-recorded", gap="xsmall"):
        st.markdown("**Not recorded**")
        st.markdown("\n".join(f"- {escape(sentence)}" for sentence in told.not_recorded))

draw(frame, "beside", "The tool's own figures beside ours", source.beside(frame, told), height=360)
draw(frame, "definitions", "What the numbers of the rows mean", source.definitions(told))

names = telemetry.names(widgets.store(), told.bundle.run_id)
if names:
    chosen = widgets.control("src_series", options=list(names), default=next(iter(names)), flat=False, width=420)
    draw(frame, "over-time", f"{chosen} over the run", *source.over_time(frame, chosen, names[chosen]))
else:
    st.info("No samples of the server or the GPUs and no time slices came with this run.")

if told.others:
    text = widgets.control("src_find", placeholder="name, label, file")
    draw(frame, "others", "Every other figure that the tool left", source.others(told, text), height=360)
draw(frame, "files", "Files that the run was made from", source.files(told))
