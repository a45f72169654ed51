"""Ledger: hypotheses on what is wrong, each with a prediction that could fail, its evidence and what became of it."""

from collections import Counter

import streamlit as st

from dashboard import widgets
from dashboard.charts.records import hypotheses
from dashboard.frame import escape
from dashboard.hypotheses import STATUSES, read
from dashboard.hypotheses.text import bad_words, book_text, listed

SHOWN = 20

widgets.entered()
roots = widgets.roots()
book = read(roots)

with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
    status = widgets.control("status")
    hypotheses.new(roots)
    st.download_button(
        "Markdown",
        lambda: book_text(book, status, "markdown"),
        "gapscope-ledger.md",
        on_click="ignore",
        type="tertiary",
    )
counts = Counter(one.status for one in book.hypotheses.values())
st.caption(
    f"{', '.join(f'{counts[name]} {name}' for name in STATUSES)}. Rows are only ever added, to "
    f"hypotheses.jsonl in {escape(roots[-1].name)}: a retracted hypothesis stays, with its reason."
)
if said := bad_words(book):
    st.warning(escape(said))

shown = listed(book, status)
if not book.hypotheses:
    st.info("This ledger is empty. State what you think is wrong, with a prediction that could fail.")
elif not shown:
    st.info("No hypothesis has this status.")
held = widgets.held()
for one in shown[:SHOWN]:
    hypotheses.card(one, held, widgets.base_url(), roots, widgets.seen())
if len(shown) > SHOWN:
    st.caption(
        f"The {SHOWN} that changed last of {len(shown)}; the download and `gapscope hypothesis list` hold all of them."
    )
