"""What building a ladder asks for, and what is known of the rungs that could not be built."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dashboard import jobs
from dashboard.jobs import Job
from engine.ladder.rungs import BUILT

DOES = "ladder"


def spec(measured: str, base: str, stores: Sequence[Path]) -> dict[str, Any]:
    """The job that builds the rungs between a prediction and a measured run."""
    names = " / ".join(run_id.rpartition("-")[0] for run_id in (measured, base))
    return {
        "do": DOES,
        "measured": measured,
        "base": base,
        "title": f"ladder {names}",
        "stores": [str(store.resolve()) for store in stores],
    }


def latest(store: Path, measured: str, base: str) -> Job | None:
    """The newest job of this ladder."""
    return next(iter(jobs.jobs_about(store, do=DOES, measured=measured, base=base)), None)


def reasons(job: Job | None) -> dict[int, str]:
    """Why there is no run of a rung, by number: it could not be built, as the job found out, or is being built."""
    if job and not job.final:
        return {rung.number: "being built" for rung in BUILT}
    rungs = job.result.get("rungs") or () if job else ()
    return {int(rung["rung"]): str(rung["why"]) for rung in rungs if rung.get("why")}
