"""Coverage: how much of the replay rests on measured ground, and what the rest touched."""

import streamlit as st

from dashboard import widgets
from dashboard.charts import coverage
from dashboard.charts.draw import draw
from dashboard.charts.passes import WORDS

frame, store = widgets.frame("coverage"), widgets.store()
replays = [side for side in frame.replays if side.bundle.kind == "replay"]
if not replays:
    st.info("Coverage is about the timing model of a replay: choose a replay in the bar above.")
    st.stop()

pass_class = widgets.control("cov")
for side in replays:
    draw(
        frame,
        f"shares-{side.role.name}",
        f"Where the pass times of the {side.role.name} come from",
        *coverage.shares(frame, store, side),
        note="Exact and interpolated answers lie inside the measured domain, all others outside it.",
        sides=(frame.measured, side),
    )
    rows, figure, words = coverage.domain_map(frame, store, side, pass_class)
    draw(
        frame,
        f"domain-{side.role.name}",
        f"Measured domain and the queries put to it: {WORDS[pass_class]} passes",
        rows,
        figure,
        note=words,
        sides=(frame.measured, side),
    )
    draw(
        frame,
        f"outside-{side.role.name}",
        "Distinct queries outside the domain, most modelled time first",
        coverage.cells_outside(store, side),
        sides=(frame.measured, side),
        height=260,
    )
    draw(
        frame,
        f"touched-{side.role.name}",
        "Requests that took part in such passes",
        coverage.touched(store, side),
        sides=(frame.measured, side),
        height=260,
    )
