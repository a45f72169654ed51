"""Cohort: did both sides serve the same work, and where did they part?"""

import streamlit as st

from dashboard import widgets
from dashboard.charts import phases
from dashboard.charts.comparison import cohort
from dashboard.charts.draw import draw
from dashboard.frame import escape

frame, store = widgets.frame("cohort"), widgets.store()
widgets.need_requests(frame)

rows, problems = cohort.ledger(frame, store)
balance = "" if problems else "Every ledger balances: attempted = ok + error + rejected + canceled + in flight."
draw(frame, "ledger", "What became of every request, by phase of its dispatch", rows, note=balance)
for problem in problems:
    st.error(f"The ledger does not balance. {escape(problem)}")

lost = cohort.not_ok(frame, store)
picked = draw(
    frame,
    "not-ok",
    "Requests that are no plain successes, one by one",
    lost,
    note="Select a row for its link to the Request page." if lost.rows.num_rows else "",
    height=240,
    on_select="rerun",
)
widgets.turn_links(picked, lost)

draw(
    frame,
    "in-flight",
    "Requests over time, whole capture, every population",
    *cohort.over_time(frame, store),
    note=phases.said(frame),
)

n = cohort.successes(frame, store)
if frame.replays:
    draw(frame, "sizes", "Rates and requests in flight, side by side", cohort.sizes(frame, store, n))

start, length = st.columns([1, 1], width=360)
with start:
    begin = widgets.control("lanes_from", step=10.0)
with length:
    span = widgets.control("lanes_span", step=10.0)
draw(
    frame,
    "lanes",
    "Lanes over time: one bar per request, from dispatch to end",
    *cohort.lane_spans(frame, store, begin, span),
    note=f"The gaps in a lane are think time, and waiting for children. {phases.said(frame)}",
)

for side in frame.replays:
    lone = cohort.one_sided(frame, store, side.run_id)
    st.markdown(f":{side.role.word}[{side.role.glyph} {side.role.name}]: {cohort.shared(frame, store, side, lone)}")
    draw(
        frame,
        f"one-sided-{side.role.name}",
        f"Source-turns that succeeded on one side only: {frame.measured.role.name} and {side.role.name}",
        lone,
        note="Success counts in the chosen phase: what succeeded in another phase on the other side is listed.",
        sides=(frame.measured, side),
        height=260,
    )
