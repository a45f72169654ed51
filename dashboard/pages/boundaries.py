"""Boundaries: between which moments of a request lies its time? Is what is missing frontend, queue, GPU or output?"""

import streamlit as st

from dashboard import widgets
from dashboard.charts.draw import draw
from dashboard.charts.requests import boundaries
from dashboard.frame import escape

frame, store = widgets.frame("boundaries"), widgets.store()
widgets.need_requests(frame)

with st.container(horizontal=True, vertical_alignment="bottom"):
    until = widgets.control("bnd_until")
    at = widgets.control("bnd_tail", step=5.0, width=180)
    by = widgets.control("bnd_by")

found = boundaries.boundaries(frame, store, until)
tail = found.tail(at, frame.estimator)
both = [("mean", found.complete), (f"from p{at:g} on", tail)]

for index, side in enumerate(frame.replays, 1):
    if side.regime and not frame.acknowledged:
        continue
    for words, choose in (("In the mean,", found.complete), (f"In the tail from p{at:g} on,", tail)):
        sentence = boundaries.verdict(found, index, choose, words, side.called)
        st.markdown(f":{side.role.word}[{side.role.glyph}] {escape(sentence)}")
for sentence in boundaries.said(frame, found):
    st.info(escape(sentence), icon=":material/info:")

label = boundaries.METRICS[until].label
stages, figure = boundaries.stacked(frame, found, both)
draw(
    frame,
    "stages",
    f"Stages up to the end of {label}: mean of all requests, and of those with the largest {label}, ms",
    stages,
    figure,
    note="Each stage lies between two boundaries. Client, frontend, queue, GPU, output: the layer stands in the rows.",
)
draw(
    frame,
    "stage-rows",
    "Stage by stage",
    stages,
    height=420,
)
draw(
    frame,
    "split",
    f"Mean stages by {boundaries.SPLITS[by]}, ms",
    *boundaries.stacked(frame, found, boundaries.splits(found, by)),
)
for side in frame.replays:
    rows, names = boundaries.turns(frame, store, found, side)
    key = f"turns-{side.role.name}"
    link = st.container()
    chosen = draw(
        frame,
        key,
        f"Source-turns with the largest difference in {label}: {frame.measured.role.name} and {side.role.name}",
        rows,
        note="Select a row: the link to the Request page stands above.",
        sides=(frame.measured, side),
        height=330,
        on_select="rerun",
    )
    picked = chosen["selection"]["rows"] if chosen else []
    if picked and picked[0] < len(names):
        with link:
            widgets.request_link(names[picked[0]], f"Open {names[picked[0]]} on the Request page")
