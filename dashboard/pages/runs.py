"""Runs: everything in the store, whatever its state; pick a pair, import a recording, start a replay."""

import streamlit as st

from dashboard import preparing, widgets
from dashboard.charts.records import importing, runs, saved_views
from dashboard.frame import escape
from dashboard.sharing.files import as_csv

widgets.entered()
store, roots = widgets.store(), widgets.roots()
entries = widgets.entries()
if under_way := preparing.progress(roots[-1]):
    st.caption(f":material/hourglass_empty: {escape(under_way.sentence)}")


def pick(action: str) -> None:
    """Put the run of the row that was clicked where the action says."""
    row, listed = runs.clicked(action), st.session_state["_listed"]
    if row is not None and row < len(listed):
        (widgets.choose_measured if action == "as_measured" else widgets.compare_first)(listed[row])


with st.container(horizontal=True, vertical_alignment="bottom"):
    text = widgets.control("find", width=190, placeholder="name, model, hardware, engine")
    kinds = widgets.control("kind", width=190, placeholder="every kind")
    states = widgets.control("run_state", width=150, placeholder="every state")
    facts = {}
    for name, field in runs.FACTS.items():
        if len(options := runs.known(entries, field)) > 1:
            facts[field] = widgets.control(name, options=options, width=150, placeholder=f"every {field}")
    rungs = widgets.control("rungs") if any(entry.ladder for entry in entries) else False
    points = widgets.control("points") if any(entry.point for entry in entries) else False
shown = runs.filtered(entries, text, kinds, rungs, points, states, facts)
st.session_state["_listed"] = [entry.run_id for entry in shown[: runs.MOST_LISTED]]

if not entries:
    st.info(f"This store is empty ({escape(', '.join(root.name for root in store.roots))}). Import a recording below.")
elif not shown:
    st.info(f"None of the {len(entries)} runs matches the filter: remove a word or a value above.")
else:
    table = runs.table(shown)
    picked = st.dataframe(
        table.slice(0, runs.MOST_LISTED),
        key="catalogue",
        hide_index=True,
        on_select="rerun",
        selection_mode="single-row",
        column_config=runs.config(pick),
        column_order=runs.order(shown),
        height=560 if len(shown) > 15 else "auto",
        placeholder="–",
        alt="Catalogue of runs",
    )["selection"]["rows"]
    with st.container(horizontal=True, vertical_alignment="center"):
        cut = f" The first {runs.MOST_LISTED} are listed: filter for others." if len(shown) > runs.MOST_LISTED else ""
        st.caption(
            f"{len(shown)} of {len(entries)} runs.{cut} Two clicks make a pair: one run as measured, one as candidate. "
            "Select a row for its qualification and more to do with it."
        )
        st.download_button(
            "CSV",
            lambda: as_csv(table.drop_columns(list(runs.ACTIONS))),
            "gapscope-runs.csv",
            "text/csv",
            on_click="ignore",
            type="tertiary",
        )
    if lines := runs.wrong(shown[: runs.MOST_LISTED]):
        with st.expander(f"What is wrong with {len(lines)} of these runs", key="wrong"):
            st.markdown("\n".join(f"- {line}" for line in lines))
    if picked:
        entry = shown[picked[0]]
        with st.container(border=True, key="picked", gap="small"):
            place = f" · {escape(entry.place)}" if entry.place else ""
            st.markdown(f"**{escape(entry.title)}** · {escape(entry.run_id)}{place}")
            if entry.problem:
                st.error(escape(entry.problem))
            for line in runs.checks(store, entry):
                st.markdown(line)
            if runs.usable(entry):
                with st.container(horizontal=True):
                    st.button("Use as measured run", on_click=widgets.choose_measured, args=(entry.run_id,))
                    st.button("Add as candidate", on_click=widgets.choose_candidate, args=(entry.run_id,))
                    st.page_link(
                        widgets.PAGES_FOLDER / "what_if.py", label="Replay it", query_params={"base": entry.run_id}
                    )
            if entry.state == "ok":
                runs.export(store, entry)

saved_views.listing(roots, widgets.held(), widgets.base_url())
importing.panel(roots)
