"""Verdict: what this pair shows, what it does not, and by how much the numbers differ; for every candidate."""

import streamlit as st

from dashboard import widgets
from dashboard.charts.comparison import contract, number_table, verdict, waterfall
from dashboard.charts.comparison.cohort import successes
from dashboard.charts.draw import draw
from dashboard.charts.panel.copying import copy_button
from dashboard.charts.style import noise_note
from dashboard.compare import compare
from dashboard.compare.nearest import nearest_claim
from dashboard.frame import escape
from dashboard.metrics import headline_numbers

frame, store = widgets.frame("verdict"), widgets.store()
if not frame.replays:
    st.info("Choose a replay in the bar above: the verdict compares it with the measured run.")
    st.stop()
widgets.need_requests(frame)

copying = st.container()
gates = contract.edit()
measured = frame.measured.run_id
found = [
    (side, compare(store, measured, side.run_id, frame.population, frame.estimator, frame.window, gates))
    for side in frame.replays
]
n = successes(frame, store)
names = headline_numbers(frame.window)
headline = [(side, [comparison.row(name) for name in names]) for side, comparison in found]

for side, comparison in found:
    with st.container(border=True, key=f"claim-{side.role.name}", gap="xsmall"):
        st.markdown(f"**What this pair shows** :{side.role.word}[{side.role.glyph} {escape(side.run_id)}]")
        st.markdown("\n".join(f"- {escape(sentence)}" for sentence in comparison.claim))
        for warning in comparison.warnings:
            st.markdown(f":material/warning: {escape(warning.text)}")
if len(number_table.competing(frame, headline)) > 1:
    with st.container(border=True, key="claim-nearest", gap="xsmall"):
        st.markdown("**Which candidate is nearer to the measured run**")
        closest = [one for one in number_table.nearest_rows(frame, headline) if one]
        called = number_table.candidate_names(headline)
        said = nearest_claim({at: called[at] for at in number_table.competing(frame, headline)}, closest)
        st.markdown("\n".join(f"- {escape(sentence)}" for sentence in said))

if frame.like_for_like:
    draw(
        frame,
        "gaps",
        "Gap of the headline numbers, %",
        number_table.table(frame, store, headline, n),
        verdict.gaps(frame, found, names),
        note=noise_note(frame.measured.role.name),
    )
    with st.container(horizontal=True, vertical_alignment="bottom"):
        split = widgets.control("split")
        side = widgets.candidate(frame, "split_of")
    comparison = next(one for own, one in found if own is side)
    mean = comparison.row(f"{split}.mean")
    parts = next(one for one in comparison.decompositions if one.metric == split)
    draw(
        frame,
        "parts",
        f"What the gap of the mean {parts.label} is made of: {frame.measured.role.name} and {side.role.name}, ms",
        *waterfall.waterfall(frame, side, parts, mean),
        note=f"Parts of opposite sign can cancel in a mean that looks right. {parts.note}",
        sides=(frame.measured, side),
    )
    if parts.parts:
        draw(
            frame,
            "parts-table",
            f"Parts of the gap of the mean {parts.label}, {side.role.name}",
            waterfall.table(frame, side, parts, mean),
            sides=(frame.measured, side),
        )

if gates:
    draw(frame, "gates", f"Acceptance contract: {verdict.held_by(found)}", verdict.gate_table(found))
draw(
    frame,
    "numbers",
    "Number by number",
    number_table.table(frame, store, [(side, comparison.rows) for side, comparison in found], n),
    height=560,
)
draw(
    frame,
    "consistency",
    "Consistency: requests in flight by Little's law",
    verdict.consistency(frame, found),
    note="When these differ, look at admission and memory before kernels.",
)

with copying:
    copy_button("Copy verdict", st.session_state["_shown"].verdict_comment(), "copy-verdict")
