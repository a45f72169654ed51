"""Import on the Runs page: hand something over, see what would be made of it, import it, and go on with the runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import streamlit as st

from dashboard import jobs, view, widgets
from dashboard.charts.records import runs
from dashboard.charts.replays import joblist
from dashboard.frame import escape
from dashboard.jobs import Job, importing
from dashboard.jobs.importing import Planned
from dashboard.serving.binding import for_others
from engine.errors import GapscopeError

SHOWN_RUNS = 8
"""Of one import; the catalogue has all."""
SHOWN_FILES = 5
"""Of those that an import did not use; what was looked at had all."""
ONWARD = {"source": "Source", "identity": "Identity", "tools": "Cross-tool"}
"""Where one goes with an imported run."""


def panel(roots: Sequence[Path]) -> None:
    """The controls of an import, and the plan of what was looked at."""
    st.markdown("**Import**")
    st.caption(
        "Files of load generators and engines, recordings, or archives of them; what they are, is told by their "
        "content. Files dropped together belong together, as in one folder. "
        f"Runs go into the folder {escape(roots[-1].name)}."
    )
    most = int(st.get_option("server.maxUploadSize"))
    left, right = st.columns(2)
    with left:
        uploads = st.file_uploader(
            f"Files, up to {most} MB each; for larger ones give their path, or use `gapscope import`",
            accept_multiple_files=True,
            key="upload",
        )
    with right:
        path = _path_field()
        title = st.text_input("Title", key="import_title", placeholder="as the files name it")
        skip = st.checkbox(
            "Skip bad rows",
            key="skip",
            help="Leave out rows that cannot be used: they are counted, and the run fails a check",
        )
    if uploads and path:
        st.info("Files were dropped and a path is given: the files are taken. Remove them to take the path.")
    handed = [(one.name, one.getbuffer()) for one in uploads or ()]
    asked = tuple((one.name, one.file_id) for one in uploads or ()) or path
    with st.container(horizontal=True):
        looked = st.button("Look", disabled=not asked, key="look", help="Says what would be made of it; writes nothing")
        place = st.container(width="content")
        hint = st.container(width="content")
    if looked:
        with st.spinner("Looking at the files"):
            st.session_state["_looked"] = (asked, *_look(handed, path))
    seen, planned, problem = st.session_state.get("_looked") or (None, None, "")
    if not asked or seen != asked:
        planned = None
    elif problem:
        st.error(escape(problem))
    if asked and seen != asked:
        hint.caption("Look first: Import follows what it says.")
    to = clock = ""
    if planned is not None:
        _plan(planned)
        if any(run.attachable for run in planned.runs):
            to, clock = _attachment()
    label = "Attach" if to else "Import"
    if place.button(label, disabled=planned is None, key="import", type="primary") and planned is not None:
        words = ", ".join(name for name, _ in handed[:3]) + (" and more" if len(handed) > 3 else "") or Path(path).name
        given = "" if handed else path
        spec = importing.spec(words, roots, path=given, title=title.strip(), skip=skip, to=to, clock=clock.strip())
        jobs.submit(roots[-1], spec, handed)
        st.session_state["_looked"] = None
        st.rerun()
    for does in ("import", "attach"):
        joblist.show(roots[-1], does, _outcome)


def _attachment() -> tuple[str, str]:
    """The run under which an engine's passes and KV events are laid, if any, and how the clocks are aligned."""
    own = "a run of its own"
    entries = widgets.entries()
    bare = [one.run_id for one in entries if one.kind == "measured" and one.state == "ok" and not one.passes]
    left, right = st.columns(2)
    with left:
        chosen = st.selectbox(
            "Passes and KV events become",
            [own, *bare],
            key="attach_to",
            format_func=lambda one: one if one == own else f"part of {one}",
            help="A measured run without passes can have them attached: a new run is made, the old one stays",
        )
    if chosen == own:
        return "", ""
    with right:
        clock = st.text_input(
            "Clock",
            value="auto",
            key="attach_clock",
            help="wall: both recorded times of day. ids: requests known to both. A number: seconds from profile start "
            "to the first pass or event. auto: wall where both recorded it, else ids",
        )
    return str(chosen), clock


def _path_field() -> str:
    """The path that is to be imported; empty where the page is served to other machines: they may not read this one."""
    if for_others(st.get_option("server.address")):
        st.caption(
            "Paths of this machine cannot be given, as this page is served to others: drop the files, or use "
            "`gapscope import` on the machine."
        )
        return ""
    return st.text_input(
        "Or a path on this machine",
        key="import_path",
        placeholder="/data/results",
        help="A folder, a file or an archive of the machine that gapscope runs on. For what is too large to upload; "
        "`gapscope import` does the same.",
    ).strip()


def _look(handed: importing.Uploads, path: str) -> tuple[Planned | None, str]:
    try:
        return importing.look(handed, path), ""
    except GapscopeError as error:
        return None, str(error)


def _plan(planned: Planned) -> None:
    """What importing would do, run by run and file by file."""
    with st.container(border=True, key="plan", gap="small"):
        count = len(planned.runs)
        st.markdown(
            f"**{count} run{'' if count == 1 else 's'}** would be made; nothing is written yet. This is told by the "
            "beginnings of the files; they are read to their ends at the import, which refuses what it cannot use."
        )
        for run in planned.runs[:SHOWN_RUNS]:
            version = f" {run.version}" if run.version else ", version not said"
            st.markdown(f"- **{escape(run.name)}**: {escape(run.tool + version)}, kind {escape(run.kind)}")
            for note in run.notes:
                st.markdown(f"  :material/info: {escape(note)}")
        if count > SHOWN_RUNS:
            st.caption(f"And {count - SHOWN_RUNS} more; the table has all.")
        files = _files(planned)
        alt = "Files of the import"
        if files.num_rows > SHOWN_RUNS:
            st.dataframe(files, hide_index=True, height=320, alt=alt)
        else:
            st.dataframe(files, hide_index=True, alt=alt)


def _files(planned: Planned) -> pa.Table:
    """Every file of the input, and what becomes of it."""
    rows = [
        (run.name, name, "used" if used else "ignored", what) for run in planned.runs for name, used, what in run.files
    ]
    rows += [("–", name, "not used", why) for name, why in planned.ignored]
    names = ("Run", "File", "Use", "What for, or why not")
    return pa.table({name: [row[k] for row in rows] for k, name in enumerate(names)})


def _outcome(job: Job) -> None:
    """What an ended import made: each run with its checks, and where one goes with it."""
    known = {entry.run_id: entry for entry in widgets.entries()}
    for run_id in job.run_ids[:SHOWN_RUNS]:
        entry = known.get(run_id)
        with st.container(horizontal=True, vertical_alignment="center", gap="small", key=f"made-{job.id}-{run_id}"):
            if entry is None:
                st.markdown(f"{escape(run_id)}: no longer in this store", width="stretch")
                continue
            st.markdown(f"**{escape(entry.title)}** · {escape(run_id)} · {_checks(run_id)}", width="stretch")
            for page, label in ONWARD.items():
                if page in view.PAGES and entry.state == "ok" and (query := _query(page, run_id, entry.kind)):
                    st.page_link(widgets.PAGES_FOLDER / f"{page}.py", label=label, query_params=query)
    if len(job.run_ids) > SHOWN_RUNS:
        st.caption(f"And {len(job.run_ids) - SHOWN_RUNS} more runs; the catalogue has all.")
    left = [escape(f"{name} ({why})") for name, why in job.result.get("left") or ()]
    if left:
        more = f"; and {len(left) - SHOWN_FILES} more" if len(left) > SHOWN_FILES else ""
        st.caption(f"Not used: {'; '.join(left[:SHOWN_FILES])}{more}")


def _checks(run_id: str) -> str:
    """How many checks of a run passed, and which failed."""
    verdicts, failed = runs.verdicts(widgets.store(), run_id)
    words = f"{verdicts['pass']} of {sum(verdicts.values())} checks passed"
    if verdicts["unknown"]:
        words += f", {verdicts['unknown']} unknown"
    return words + (f", failed: {escape(', '.join(failed))}" if failed else "")


def _query(page: str, run_id: str, kind: str | None) -> dict[str, Any]:
    """What a page is to show of a run; empty where it shows none of its kind."""
    if page == "tools":
        return {"tools": [run_id]} if kind != "sweep" else {}
    if page == "source":
        return {"src": run_id}
    return {"m": run_id} if kind in ("measured", "replay") else {}
