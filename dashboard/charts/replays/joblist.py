"""The list of jobs: place in the queue, progress, time that is left, cancel, retry. Redrawn while one of them runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import streamlit as st

from dashboard import jobs, widgets
from dashboard.frame import escape
from dashboard.jobs import Job, queue, spare
from engine.errors import GapscopeError

SHOWN = 5
LOOK_EVERY_S = 0.25
WORDS = {
    "waiting": ":material/hourglass_empty: waiting",
    "running": ":material/play_arrow: running",
    "done": ":material/check: done",
    "failed": ":material/error: failed",
    "canceled": ":material/block: canceled",
    "lost": ":material/help: worker died",
}


Ended = Callable[[Job], None]


def complete(store: Path, does: str, **about: str) -> int:
    """How many of several runs such jobs under way have finished."""
    under_way = (job for job in jobs.jobs_about(store, do=does, **about) if not job.final)
    return sum(int(job.progress.get("done") or 0) for job in under_way)


def show(store: Path, does: str, ended: Ended | None = None, drawn: int | None = None, **about: str) -> None:
    """The latest jobs of a kind, or those of them about something; while one is under way, redrawn.

    All that wait or run are listed, and the last few that ended. ``ended`` draws what came of a job that is done.
    ``drawn`` is what :func:`complete` said before the page looked for runs: with the next one it is drawn again.
    """
    if problem := st.session_state.pop("_refused_job", ""):
        st.error(escape(problem))
    found = jobs.jobs_about(store, do=does, **about)
    if all(job.final for job in found):
        spare.ready()
    if not found:
        return
    if any(not job.final for job in found):
        _watched(store, does, ended, drawn, about)
    else:
        _rows(store, found, ended)


@st.fragment(run_every=LOOK_EVERY_S)
def _watched(store: Path, does: str, ended: Ended | None, drawn: int | None, about: Mapping[str, str]) -> None:
    found = jobs.jobs_about(store, do=does, **about)
    followed = st.session_state.get("_jobs") or ()
    if all(job.final for job in found) or any(job.final and job.id in followed for job in found):
        st.rerun()  # the whole page: it stops watching, and a run that is followed joins the pair bar
    if drawn is not None and complete(store, does, **about) > drawn:
        st.rerun()  # a run more is there to be drawn
    _rows(store, found, ended)


def _rows(store: Path, found: list[Job], ended: Ended | None) -> None:
    places = queue.told(queue.waiting(store))
    ahead = sorted((job for job in found if not job.final), key=lambda job: (job.created_s, job.id))
    latest, earlier = [job for job in found if job.final][:SHOWN], []
    if ended is None:  # what came of a job stands elsewhere, so that one line is enough
        latest, earlier = latest[:1], latest[1:]
    for job in [*ahead, *latest]:
        _row(store, job, places.get(job.id, "ending"))
        if ended is not None and job.state == "done":
            ended(job)
    if earlier:
        with st.expander(f"Earlier jobs ({len(earlier)})", key=f"earlier-{found[0].spec.get('do')}"):
            for job in earlier:
                _row(store, job, "")


def _row(store: Path, job: Job, place: str) -> None:
    with st.container(horizontal=True, vertical_alignment="center", key=f"job-{job.id}", gap="small"):
        words = f"{WORDS[job.state]} · {escape(job.title)}" + (f" · {escape(job.run_id)}" if job.run_id else "")
        with st.container(width="stretch", gap=None):
            refused = job.state in ("failed", "lost")
            st.markdown(f"{words} · {escape(job.message)}" if job.message and not refused else words)
            if refused:
                st.error(escape(job.message))
            if not job.final:
                told = str(job.progress.get("words") or "waiting for its turn")
                st.progress(job.share or 0.0, text=escape(f"{told} · {place}"))
        if not job.final:
            st.button("Cancel", key=f"cancel-{job.id}", on_click=jobs.cancel, args=(job,))
            return
        if job.state != "done" and job.repeatable:
            st.button("Retry", key=f"retry-{job.id}", on_click=_retry, args=(store, job), help="Ask for it again")
        if job.run_id and job.run_id not in (st.session_state.get("r") or ()) and not _absent(job.run_id):
            st.button("Show", key=f"show-{job.id}", on_click=widgets.choose_candidate, args=(job.run_id,))
        st.button("Forget", key=f"forget-{job.id}", on_click=jobs.forget, args=(job,), type="tertiary")


def _absent(run_id: str) -> bool:
    return all(entry.run_id != run_id for entry in widgets.entries())


def _retry(store: Path, job: Job) -> None:
    """Ask for a job that failed again; its run joins the pair bar, as at the first time."""
    try:
        again = jobs.submit(store, job.spec, estimate=job.estimate)
    except GapscopeError as error:
        st.session_state["_refused_job"] = str(error)
        return
    if job.spec.get("do") == "replay":
        widgets.follow(again.id)
