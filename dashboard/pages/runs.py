"""Runs: everything in the store, whatever its state; pick a pair, import a recording, start a replay."""

import streamlit as st

from dashboard import widgets
from dashboard.charts import importing, runs
from dashboard.charts.draw import as_csv
from dashboard.frame import escape

widgets.entered()
store, roots = widgets.store(), widgets.roots()
entries = widgets.entries()

with st.container(horizontal=True, vertical_alignment="bottom"):
    text = widgets.control("find", width=260, placeholder="name, model, hardware, engine")
    kinds = widgets.control("kind", width=420, placeholder="every kind")
    rungs = widgets.control("rungs") if any(entry.ladder for entry in entries) else False
shown = runs.filtered(entries, text, kinds, rungs)

if not entries:
    st.info(f"This store is empty ({escape(', '.join(root.name for root in store.roots))}). Import a recording below.")
elif not shown:
    st.info("No run matches the filter.")
else:
    table = runs.table(shown)
    picked = st.dataframe(
        table,
        key="catalogue",
        hide_index=True,
        on_select="rerun",
        selection_mode="single-row",
        column_config=runs.config(),
        placeholder="–",
        alt="Catalogue of runs",
    )["selection"]["rows"]
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption(f"{len(shown)} of {len(entries)} runs. Select one for its qualification and what to do with it.")
        st.download_button(
            "CSV", lambda: as_csv(table), "gapscope-runs.csv", "text/csv", on_click="ignore", type="tertiary"
        )
    if picked:
        entry = shown[picked[0]]
        with st.container(border=True, key="picked", gap="small"):
            place = f" · {escape(entry.place)}" if entry.place else ""
            st.markdown(f"**{escape(entry.title)}** · {escape(entry.run_id)}{place}")
            if entry.problem:
                st.error(escape(entry.problem))
            for line in runs.checks(store, entry):
                st.markdown(line)
            usable = entry.state == "ok" and entry.kind in ("measured", "replay")
            if usable:
                with st.container(horizontal=True):
                    st.button("Use as measured run", on_click=widgets.choose_measured, args=(entry.run_id,))
                    st.button("Add as candidate", on_click=widgets.choose_candidate, args=(entry.run_id,))
                    st.page_link(
                        widgets.PAGES_FOLDER / "what_if.py", label="Replay it", query_params={"base": entry.run_id}
                    )
            if entry.state == "ok":
                runs.export(store, entry)

importing.panel(roots)
