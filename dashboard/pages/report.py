"""Report: what the pages show of this pair, in one file that opens offline."""

from functools import partial

import streamlit as st

from dashboard import widgets
from dashboard.charts import report
from dashboard.charts.comparison import contract, verdict
from dashboard.charts.draw import draw
from dashboard.compare import compare
from dashboard.frame import escape
from dashboard.report import as_markdown, gather
from dashboard.report.gather import command

frame, store = widgets.frame("report"), widgets.store()
if not frame.replays:
    st.info("Choose a replay in the bar above: a report compares it with the measured run.")
    st.stop()
widgets.need_requests(frame)

gates = contract.edit()
st.markdown(
    "Verdict, contract, identity, cohort, numbers, percentiles, passes, coverage, cache, boundaries and limits of the "
    "runs above, made by the functions of the pages. The HTML opens from disk without a network and prints."
)
with st.container(horizontal=True):
    for form, icon, kind in (
        ("HTML", ":material/description:", "text/html"),
        ("Markdown", ":material/notes:", "text/plain"),
    ):
        st.download_button(
            form,
            partial(report.written, store, frame, gates, form),
            report.file_name(frame, form),
            kind,
            key=f"report-{form}",
            icon=icon,
            on_click="ignore",
            type="primary" if form == "HTML" else "secondary",
        )
st.caption("The same bytes from the command line, wherever these runs lie:")
st.code(command(frame, [gate.text for gate in gates]), None, wrap_lines=True)  # colours of a shell are too pale

draw(frame, "claims", "What the report says first", report.claims(store, frame, " ".join(gate.text for gate in gates)))
if gates:
    scope = (frame.population, frame.estimator, frame.window, gates)
    told = [(side, compare(store, frame.measured.run_id, side.run_id, *scope)) for side in frame.replays]
    draw(frame, "gates", f"Acceptance contract: {verdict.held_by(told)}", verdict.gate_table(told))
with st.expander("Preview", on_change="rerun", key="preview") as preview:
    if preview.open:
        found = gather(store, frame, gates)
        draw(frame, "sections", "What the report holds", report.outline(found), height=400)
        for words in found.sections[-1].words:
            st.caption(escape(words))
        st.code(as_markdown(found), "markdown", height=500)
