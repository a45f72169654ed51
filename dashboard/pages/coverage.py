"""Coverage: how much of the replay rests on measured ground, and what the rest touched."""

import streamlit as st

from dashboard import widgets
from dashboard.charts.draw import draw
from dashboard.charts.passes.passes import WORDS
from dashboard.charts.timing import coverage
from dashboard.charts.timing.domain import domain_map

frame, store = widgets.frame("coverage"), widgets.store()
replays = [side for side in frame.replays if side.bundle.kind == "replay"]
if not replays:
    st.info("Coverage is about the timing model of a replay: choose a replay in the bar above.")
    st.stop()

pass_class = widgets.control("cov")
for side in replays:
    sides, role = (frame.measured, side), side.role.name
    draw(
        frame,
        f"shares-{role}",
        f"Where the pass times of {side.called} come from",
        *coverage.shares(frame, store, side),
        note="Exact and interpolated answers lie inside the measured domain, all others outside it.",
        sides=sides,
    )
    rows, figure, words = domain_map(frame, store, side, pass_class)
    draw(
        frame,
        f"domain-{role}",
        f"Measured domain and the queries put to it: {WORDS[pass_class]} passes",
        rows,
        figure,
        note=words,
        sides=sides,
    )
    draw(
        frame,
        f"cells-{role}",
        "What rests on each cell, most time first",
        coverage.cells(store, side),
        sides=sides,
        height=300,
    )
    draw(frame, f"sources-{role}", "Which source answered", coverage.sources(store, side), sides=sides, height=260)
    ranks = coverage.ranks(store, side)
    if ranks is not None:
        draw(frame, f"ranks-{role}", "Where pass times come from, by worker and rank", ranks, sides=sides, height=260)
    draw(
        frame,
        f"outside-{role}",
        "Distinct queries outside the domain, most modelled time first",
        coverage.cells_outside(store, side),
        sides=sides,
        height=260,
    )
    rows, words = coverage.touched_by(store, side)
    draw(frame, f"touched-by-{role}", "Requests in passes from outside the domain", rows, note=words, sides=sides)
    listed = coverage.touched(store, side)
    picked = draw(
        frame,
        f"touched-{role}",
        "Requests that took part in such passes",
        listed,
        note="Choose a row for a link to the request." if listed.rows.num_rows else "",
        sides=sides,
        height=260,
        on_select="rerun",
    )
    for row in picked["selection"]["rows"] if picked else ():
        if turn := listed.rows.column("turn")[row].as_py():
            widgets.request_link(turn)
