"""The catalogue as a table, and the qualification of one run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import streamlit as st

from dashboard.catalogue import RunEntry
from dashboard.charts.answer import Column
from dashboard.charts.panel.tables import column_config
from dashboard.frame import escape
from dashboard.store import Store
from engine.bundle.export import FORMATS, export_zip
from engine.errors import GapscopeError

LIGHTS = {"pass": "● qualified", "fail": "▲ failed", "unknown": "○ unknown"}
MARKS = {"pass": ":material/check:", "fail": ":material/close:", "unknown": ":material/question_mark:"}
MOST_BYTES = 200 << 20
"""Of a run that is exported from the page: its zip is held in memory."""
ACTIONS = {
    "as_measured": ("As measured", "Make this run the measured side"),
    "as_candidate": ("As candidate", "Put this run into the first place of the candidates"),
}
"""What a click in a row does: columns of buttons."""
FACTS = {"run_model": "model", "run_hw": "hardware", "run_engine": "engine"}
"""Controls that filter by a field of a run."""
MOST_LISTED = 500
NAMED = 3
"""Failed checks that a row names."""
COLUMNS = (
    Column("light", "Qualification", width=110),
    Column("kind", "Kind", width=80),
    Column("title", "Title", width=280),
    Column("run", "Run", width=230),
    Column("when", "Written", width=125),
    Column("requests", "Requests", "%d", width=80),
    Column("passes", "Passes", "%d", width=70),
    Column("duration_s", "Profile (s)", "%.0f", width=75),
    Column("model", "Model", width=90),
    Column("hardware", "Hardware", width=110),
    Column("engine", "Engine", width=110),
    Column("place", "Part of", width=260),
    Column("wrong", "What is wrong", help="Checks that failed, or what the files are; whole below", width=300),
    Column("problem", "What is wrong, in full", behind=True),
)


def filtered(
    entries: Sequence[RunEntry],
    text: str,
    kinds: Sequence[str],
    rungs: bool = True,
    points: bool = True,
    states: Sequence[str] = (),
    facts: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> list[RunEntry]:
    """Entries of these kinds, states and facts (any of the values of a field) in which every word of the text occurs.

    Without ``rungs``, sound ones of ladders are not listed; without ``points``, those of sweeps.
    """
    words = text.lower().split()

    def holds(entry: RunEntry) -> bool:
        said = (
            entry.run_id,
            entry.title,
            entry.model,
            entry.hardware,
            entry.engine,
            entry.kind,
            entry.state,
            entry.place,
        )
        where = " ".join(str(fact) for fact in said).lower()
        listed = entry.state != "ok" or ((rungs or not entry.ladder) and (points or not entry.point))
        of_these = (not kinds or entry.kind in kinds) and (not states or state_of(entry) in states)
        alike = all(not values or getattr(entry, field) in values for field, values in facts.items())
        return listed and of_these and alike and all(word in where for word in words)

    return [entry for entry in entries if holds(entry)]


def state_of(entry: RunEntry) -> str:
    """What the qualification of a sound run says, else what is wrong with its files: one of ``view.RUN_STATES``."""
    return entry.state if entry.state != "ok" else {"pass": "qualified", "fail": "failed"}.get(entry.light, "unknown")


def usable(entry: RunEntry) -> bool:
    """Whether a run can stand in the pair bar."""
    return entry.state == "ok" and entry.kind in ("measured", "replay")


def known(entries: Sequence[RunEntry], field: str) -> list[str]:
    """The values of a field that runs have, in the order of their names."""
    return sorted({value for entry in entries if (value := getattr(entry, field))})


def why(entry: RunEntry) -> str | None:
    """What is wrong with a run, in a sentence; None where nothing is."""
    if entry.problem or not entry.failed:
        return entry.problem
    return "; ".join(f"{check.check}: {check.detail}" for check in entry.failed)


def briefly(entry: RunEntry) -> str | None:
    """What is wrong with a run, in words that fit a cell; None where nothing is."""
    if entry.problem:
        return f"its files are {entry.state}"
    names = [check.check for check in entry.failed]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more or None


def wrong(entries: Sequence[RunEntry]) -> list[str]:
    """What is wrong with each run that anything is wrong with, a line each in Markdown."""
    return [f"{escape(entry.run_id)}: {escape(words)}" for entry in entries if (words := why(entry))]


def table(entries: Sequence[RunEntry]) -> pa.Table:
    """One row per run; what is unknown is empty, and so are the actions that a run cannot be used for."""
    rows = [
        {
            "as_measured": "Measured" if usable(entry) else None,
            "as_candidate": "Candidate" if usable(entry) else None,
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
            "wrong": briefly(entry),
            "problem": why(entry),
        }
        for entry in entries
    ]
    kinds = {column.name: pa.int64() if column.format == "%d" else pa.string() for column in COLUMNS}
    kinds["duration_s"] = pa.float64()
    return pa.table(
        {name: pa.array([row[name] for row in rows], kinds.get(name, pa.string())) for name in (*ACTIONS, *kinds)}
    )


def order(entries: Sequence[RunEntry]) -> list[str]:
    """The columns in the order of the page: what is wrong stands in front where anything is."""
    names = [column.name for column in COLUMNS if column.name != "wrong" and not column.behind]
    if any(why(entry) for entry in entries):
        names.insert(names.index("title") + 1, "wrong")
    return [*ACTIONS, *names]


def config(pick: Callable[[str], None]) -> dict[str, Any]:
    """How the columns are shown; ``pick`` is called with the action that a row was clicked for."""
    buttons = {
        name: st.column_config.ButtonColumn(
            label, width=95, type="secondary", help=words, key=f"pick-{name}", on_click=pick, args=(name,)
        )
        for name, (label, words) in ACTIONS.items()
    }
    return column_config(COLUMNS) | buttons


def clicked(action: str) -> int | None:
    """The row that was clicked for an action; None where none was."""
    found = st.session_state.get(f"pick-{action}")
    return None if found is None else int(found["row"])


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
