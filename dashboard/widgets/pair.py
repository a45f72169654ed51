"""Which runs stand in the pair bar: what is chosen there, elsewhere, and by jobs that end."""

from __future__ import annotations

import streamlit as st

from dashboard import jobs, pairs, view
from dashboard.frame import escape
from dashboard.widgets.stored import entries, roots, store


def new_measured() -> None:
    """Another measured run brings its own replay, unless the candidates are to be kept."""
    measured = st.session_state["m"]
    kept = [one for one in st.session_state.get("r") or () if one != measured] if st.session_state.get("_keep") else []
    st.session_state["r"] = kept or pairs.default_replays(store(), measured, entries())
    st.session_state["ack"] = False


def new_pair() -> None:
    """An acknowledgement is about one pair only."""
    st.session_state["ack"] = False


def choose_measured(run_id: str) -> None:
    """Make a run the measured side; beside a pinned baseline it is one more candidate."""
    if st.session_state.get("pin"):
        choose_candidate(run_id)
        return
    st.session_state["m"] = run_id
    new_measured()


def choose_candidate(run_id: str) -> None:
    """Put a run into the pair bar as a candidate, as the last one where all places are taken; never beside itself."""
    if run_id == st.session_state.get("m"):
        return
    replays = [one for one in st.session_state.get("r") or () if one != run_id]
    st.session_state["r"] = [*replays[: view.MAX_REPLAYS - 1], run_id]
    st.session_state["ack"] = False


def compare_first(run_id: str) -> None:
    """Put a run into the first place of the replays, where every table compares with it; the others move down."""
    if run_id == st.session_state.get("m"):
        return
    replays = [one for one in st.session_state.get("r") or () if one != run_id]
    st.session_state["r"] = [run_id, *replays][: view.MAX_REPLAYS]
    st.session_state["ack"] = False


def follow(job_id: str) -> None:
    """Let the run of a job join the pair bar when it is there, after a reload as well; several jobs one by one."""
    asked = [one for one in st.session_state.get("_jobs") or () if one != job_id]
    st.session_state["_jobs"] = st.query_params["job"] = [*asked, job_id]


def join_finished() -> bool:
    """The runs of followed jobs join the pair bar once done. True: in the next run of the script, ask for it."""
    asked = st.session_state.get("_jobs") or st.query_params.get_all("job")
    found = [job for job in (jobs.find(roots()[-1], job_id) for job_id in asked) if job]
    ended = [job for job in found if job.final]
    if ended and "_page" not in st.session_state:  # the link still has to seed the pair bar
        return True
    st.session_state["_jobs"] = left = [job.id for job in found if not job.final]
    if ended and left:
        st.query_params["job"] = left
    elif ended and "job" in st.query_params:
        del st.query_params["job"]
    for job in ended:
        if job.run_id and job.run_id not in (st.session_state.get("r") or ()):
            before = list(st.session_state.get("r") or ())
            choose_candidate(job.run_id)
            left_out = [run_id for run_id in before if run_id not in st.session_state["r"]]
            instead = f" in the place of {', '.join(map(escape, left_out))}: there is room for {view.MAX_REPLAYS}"
            st.toast(f"{escape(job.title)} joined the pair as a candidate{instead if left_out else ''}.")
    return False
