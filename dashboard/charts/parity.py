"""Tables of scheduler parity: what each check counted, where batches differ, and both batches of one pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from dashboard.charts.answer import Answer, Column, answer
from dashboard.charts.style import count
from dashboard.queries import parity
from dashboard.store import Store
from engine.parity.timed_result import CAUSES

WORDS = {
    "arrival": "by arrival pass",
    "dispatch": "by dispatch time, recorded durations",
    "loop": "closed loop, durations by geometry",
}
"""The checks in words; one without words goes by its name."""
DIVERGENCES = (
    Column("pass_index", "Pass", "%d", pinned=True, width=70),
    Column("cause", "Cause", pinned=True, width=150),
    Column("explanation", "Explanation", width=520),
    Column("measured_batch", "Batch measured", "%d", width=110),
    Column("replay_batch", "Batch replayed", "%d", width=110),
    Column("measured_queue", "Waiting measured", "%d", width=120),
    Column("replay_queue", "Waiting replayed", "%d", width=120),
    Column("measured_free_blocks", "Free blocks measured", "%d", width=140),
    Column("replay_free_blocks", "Free blocks replayed", "%d", width=140),
)
BATCHES = (
    Column("request_id", "Request", pinned=True),
    Column("difference", "Difference"),
    Column("measured_place", "Place measured", "%d"),
    Column("replay_place", "Place replayed", "%d"),
    Column("measured_before", "Computed before, measured (tokens)", "%d"),
    Column("replay_before", "Computed before, replayed (tokens)", "%d"),
    Column("measured_tokens", "Scheduled, measured (tokens)", "%d"),
    Column("replay_tokens", "Scheduled, replayed (tokens)", "%d"),
)
QUEUES = (
    Column("request_id", "Request waiting", pinned=True),
    Column("measured_place", "Place measured", "%d"),
    Column("replay_place", "Place replayed", "%d"),
)


def summary(checks: Mapping[str, Mapping[str, Any]]) -> Answer:
    """One row per check."""
    rows = [
        {
            "check": WORDS.get(name, name),
            "passes": told.get("passes"),
            "equal": told.get("equal"),
            "share": None if told.get("share") is None else 100 * told["share"],
            "first": told.get("first"),
            "stored": _of(told.get("stored_equal"), told.get("stored")),
            "removed": _of(told.get("removed_equal"), told.get("removed")),
            "causes": ", ".join(f"{cause} {n:,}" for cause, n in (told.get("causes") or {}).items()),
            "on_time": _of(told.get("on_time"), told.get("requests")),
            "way": ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in (told.get("way") or {}).items()),
        }
        for name, told in checks.items()
    ]
    columns = [
        Column("check", "Check", pinned=True, width=240),
        Column("passes", "Passes", "%d", width=75),
        Column("equal", "Equal batches", "%d", width=100),
        Column("share", "Share (%)", "%.2f", width=80),
        Column("first", "First that differs", "%d", "index of the first pass whose batches differ", width=120),
        Column("stored", "Blocks stored alike", width=140),
        Column("removed", "Blocks removed alike", width=140),
        Column("causes", "Causes of differences", width=300),
        Column("on_time", "Requests whose pass was foretold", width=190),
        Column("way", "Way from client to engine", width=260),
    ]
    types = {"share": pa.float64(), "passes": pa.int64(), "equal": pa.int64(), "first": pa.int64()}
    table = pa.table({c.name: pa.array([row[c.name] for row in rows], types.get(c.name)) for c in columns})
    return Answer(
        table, "", columns, definition="A batch is who, in which order, tokens computed before and scheduled."
    )


def divergences(store: Store, run_id: str, check: str) -> Answer:
    """The passes of a check whose batches differ."""
    causes = "; ".join(f"{cause}: {words}" for cause, words in CAUSES.items())
    return answer(parity.divergences(store, run_id, check), DIVERGENCES, definition=causes)


def batches(store: Store, run_id: str, check: str, pass_index: int) -> Answer:
    """Both batches of a pass, member by member."""
    return answer(parity.batches(store, run_id, check, pass_index), BATCHES)


def queues(store: Store, run_id: str, check: str, pass_index: int) -> Answer:
    """Both waiting queues of a pass."""
    return answer(parity.queues(store, run_id, check, pass_index), QUEUES)


def free_blocks(row: Mapping[str, Any]) -> str:
    """Free blocks on both sides, in words."""
    measured, replay = (
        "not recorded" if row[name] is None else count(row[name])
        for name in ("measured_free_blocks", "replay_free_blocks")
    )
    return f"Free blocks: {measured} measured, {replay} replayed."


def _of(equal: int | None, whole: int | None) -> str:
    return "not recorded" if equal is None or whole is None else f"{equal:,} of {whole:,}"
