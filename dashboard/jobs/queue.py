"""The jobs that have not ended: who is next, and how long it may still take."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from dashboard import jobs
from dashboard.jobs import Job
from dashboard.jobs.estimate import from_json, span

ENOUGH_S = 1.0
ENOUGH_SHARE = 0.05
"""From this much on the own progress of a job says how long it takes."""


def waiting(store: Path) -> list[Job]:
    """Jobs that have not ended, in the order in which they take their turns."""
    return sorted((job for job in jobs.list_jobs(store) if not job.final), key=lambda job: (job.created_s, job.id))


def remaining_s(job: Job, now_s: float) -> float | None:
    """Seconds that a job may still work once it has its turn; None where nothing says it."""
    expected = from_json(job.estimate)
    if expected and expected.bare:  # how long reading, fitting and writing take is not known yet
        expected = None
    if job.begun_s is not None:
        elapsed_s = max(now_s - job.begun_s, 0.0)
        if job.share and job.share >= ENOUGH_SHARE and elapsed_s >= ENOUGH_S:
            return elapsed_s * (1 - job.share) / job.share
        return max(expected.high_s - elapsed_s, 0.0) if expected else None
    return expected.high_s if expected else None


def told(queue: Sequence[Job], now_s: float | None = None) -> Mapping[str, str]:
    """What stands beside each job of a queue, by its id: its place, what is before it, how long it may still take."""
    now_s = time.time() if now_s is None else now_s
    words: dict[str, str] = {}
    ahead_s: float | None = 0.0
    for place, job in enumerate(queue, 1):
        left_s = remaining_s(job, now_s)
        own = (
            "no estimate"
            if left_s is None
            else f"about {span(left_s)} left"
            if job.begun_s
            else f"about {span(left_s)}"
        )
        if place == 1:
            words[job.id] = own if job.begun_s else f"next, {own}"
        else:
            wait = "begins after those before it" if ahead_s is None else f"begins in about {span(ahead_s)}"
            words[job.id] = f"place {place} of {len(queue)}, {wait}, then {own}"
        ahead_s = None if ahead_s is None or left_s is None else ahead_s + left_s
    return words
