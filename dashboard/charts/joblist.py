"""The list of jobs: state, progress, cancel. Redrawn by itself while one of them runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import streamlit as st

from dashboard import jobs
from dashboard.frame import escape
from dashboard.jobs import Job

SHOWN = 5
WORDS = {
    "waiting": ":material/hourglass_empty: waiting",
    "running": ":material/play_arrow: running",
    "done": ":material/check: done",
    "failed": ":material/error: failed",
    "canceled": ":material/block: canceled",
    "lost": ":material/help: lost",
}


Ended = Callable[[Job], None]


def show(store: Path, does: str, ended: Ended | None = None, **about: str) -> None:
    """The latest jobs of a kind, or those of them about something; while one is under way, twice a second.

    ``ended`` draws what came of a job that is done.
    """
    found = jobs.jobs_about(store, do=does, **about)
    if not found:
        return
    if any(not job.final for job in found):
        _watched(store, does, ended, about)
    else:
        _rows(found[:SHOWN], ended)


@st.fragment(run_every=0.5)
def _watched(store: Path, does: str, ended: Ended | None, about: Mapping[str, str]) -> None:
    found = jobs.jobs_about(store, do=does, **about)
    if all(job.final for job in found):
        st.rerun()  # the whole page, which stops watching and shows the run
    _rows(found[:SHOWN], ended)


def _rows(found: list[Job], ended: Ended | None) -> None:
    for job in found:
        with st.container(horizontal=True, vertical_alignment="center", key=f"job-{job.id}", gap="small"):
            words = f"{WORDS[job.state]} · {escape(job.title)}" + (f" · {escape(job.run_id)}" if job.run_id else "")
            with st.container(width="stretch", gap=None):
                refused = job.state in ("failed", "lost")
                st.markdown(f"{words} · {escape(job.message)}" if job.message and not refused else words)
                if refused:
                    st.error(escape(job.message))
                if not job.final:
                    st.progress(job.share or 0.0, text=escape(str(job.progress.get("words") or "waiting for its turn")))
            if job.final:
                st.button("Forget", key=f"forget-{job.id}", on_click=jobs.forget, args=(job,), type="tertiary")
            else:
                st.button("Cancel", key=f"cancel-{job.id}", on_click=jobs.cancel, args=(job,))
        if ended is not None and job.state == "done":
            ended(job)
