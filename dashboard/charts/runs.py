"""The catalogue as a table, and the qualification of one run."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import streamlit as st

from dashboard.catalogue import RunEntry
from dashboard.charts.answer import Column
from dashboard.charts.tables import column_config
from dashboard.frame import escape
from dashboard.store import Store
from engine.bundle.export import FORMATS, export_zip
from engine.errors import GapscopeError

LIGHTS = {"pass": "● qualified", "fail": "▲ failed", "unknown": "○ unknown"}
MARKS = {"pass": ":material/check:", "fail": ":material/close:", "unknown": ":material/question_mark:"}
MOST_BYTES = 200 << 20
"""Of a run that is exported from the page: its zip is held in memory."""
COLUMNS = (
    Column("light", "Qualification", width=110),
    Column("kind", "Kind", width=80),
    Column("title", "Title", width=300),
    Column("run", "Run", width=230),
    Column("when", "Written", width=125),
    Column("requests", "Requests", "%d", width=80),
    Column("passes", "Passes", "%d", width=70),
    Column("duration_s", "Profile (s)", "%.0f", width=75),
    Column("model", "Model", width=90),
    Column("hardware", "Hardware", width=110),
    Column("engine", "Engine", width=110),
    Column("place", "Part of", width=260),
    Column("problem", "Problem", width=300),
)


def filtered(entries: Sequence[RunEntry], text: str, kinds: Sequence[str], rungs: bool = True) -> list[RunEntry]:
    """Entries of these kinds in which every word of the text occurs; without ``rungs``, sound ones of ladders are not
    listed."""
    words = text.lower().split()

    def holds(entry: RunEntry) -> bool:
        facts = (
            entry.run_id,
            entry.title,
            entry.model,
            entry.hardware,
            entry.engine,
            entry.kind,
            entry.state,
            entry.place,
        )
        where = " ".join(str(fact) for fact in facts).lower()
        listed = rungs or not entry.ladder or entry.state != "ok"
        return listed and all(word in where for word in words) and (not kinds or entry.kind in kinds)

    return [entry for entry in entries if holds(entry)]


def table(entries: Sequence[RunEntry]) -> pa.Table:
    """One row per run; what is unknown is empty."""
    rows = [
        {
            "light": LIGHTS[entry.light] if entry.state == "ok" else f"▲ {entry.state}",
            "kind": entry.kind,
            "title": entry.title,
            "run": entry.run_id,
            "when": _when(entry.created_unix_ns),
            "requests": entry.requests,
            "passes": entry.passes,
            "duration_s": None if entry.duration_ns is None else entry.duration_ns / 1e9,
            "model": entry.model,
            "hardware": entry.hardware,
            "engine": entry.engine,
            "place": entry.place or None,
            "problem": entry.problem,
        }
        for entry in entries
    ]
    return pa.table({column.name: [row[column.name] for row in rows] for column in COLUMNS})


def config() -> dict[str, Any]:
    """How the columns are shown."""
    return column_config(COLUMNS)


def checks(store: Store, entry: RunEntry) -> list[str]:
    """What the run's qualification says, a line each."""
    try:
        bundle = store.bundle(entry.run_id)
    except GapscopeError:
        return []
    return [f"{MARKS[check.verdict]} {escape(check.check)}: {escape(check.detail)}" for check in bundle.qualification]


def verdicts(store: Store, run_id: str) -> tuple[dict[str, int], list[str]]:
    """How many checks of a run ended in each verdict, and the names of those that failed."""
    found = store.catalog.manifest(run_id).qualification
    counts = {verdict: sum(check.verdict == verdict for check in found) for verdict in MARKS}
    return counts, [check.check for check in found if check.verdict == "fail"]


def export(store: Store, entry: RunEntry) -> None:
    """The controls that hand a run out as files that other tools read."""
    size = sum(file.stat().st_size for file in entry.path.iterdir())
    if size > MOST_BYTES:
        st.caption(
            f"This run is too large to download ({size / 2**20:,.0f} MiB): `gapscope export {entry.run_id}` writes it."
        )
        return
    with st.container(horizontal=True, vertical_alignment="bottom"):
        form = st.selectbox("Export as", FORMATS, key="export_as", width=140)
        st.download_button(
            "Export",
            lambda: zipped(store, entry.run_id, form),
            f"{entry.run_id}-{form}.zip",
            "application/zip",
            key="export",
            on_click="ignore",
            help="A zip of the manifest and every table; it can be imported again",
        )


def zipped(store: Store, run_id: str, form: str) -> bytes:
    """The zip of a run's manifest and tables in one of FORMATS."""
    with tempfile.TemporaryDirectory(prefix="gapscope-export-") as folder:
        return export_zip(store.bundle(run_id), form, Path(folder)).read_bytes()


def _when(unix_ns: int | None) -> str | None:
    return None if unix_ns is None else datetime.fromtimestamp(unix_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M")
