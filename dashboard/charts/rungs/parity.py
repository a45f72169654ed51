"""Tables of scheduler parity: what each check counted, where batches differ, and both batches of one pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from dashboard.charts.answer import Answer, Column, answer
from dashboard.charts.style import count
from dashboard.queries import parity
from dashboard.store import Store
from engine.ladder.rungs import PARITY_RUNG
from engine.parity.timed_result import CAUSES, way_in_words

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


def absent(store: Store, teacher: str | None, reasons: Mapping[int, str]) -> str:
    """Why a ladder has no parity: its rung 4 (``teacher``) is not built, cannot be (``reasons``), or could not tell."""
    if teacher is None:
        why = reasons.get(PARITY_RUNG)
        return f"No scheduler parity without rung {PARITY_RUNG}: " + (why or "it is checked when that rung is built.")
    left = (store.bundle(teacher).lineage.get("ladder") or {}).get("left") or ()
    told = [words for words in left if words.startswith("no scheduler parity")]
    return " ".join(words[:1].upper() + words[1:] for words in told) or "This rung tells nothing of scheduler parity."


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
            "on_time": _of(told.get("on_time"), told.get("requests")) if told.get("way") else None,
            "matched": _of(told.get("matched"), told.get("requests")),
            "anywhere": told.get("anywhere"),
            "way": way_in_words(told["way"]) if told.get("way") else None,
        }
        for name, told in checks.items()
    ]
    columns = [
        Column("check", "Check", pinned=True, width=240),
        Column("passes", "Passes", "%d", width=75),
        Column("equal", "Equal batches", "%d", width=100),
        Column("share", "Share (%)", "%.2f", width=80),
        Column("first", "First that differs", "%d", "index of the first pass whose batches differ", width=120),
        Column("causes", "Causes of differences", width=230),
        Column("on_time", "Requests whose pass was foretold", help="by dispatch time and the way below", width=130),
        Column("stored", "Blocks stored alike", width=130),
        Column("removed", "Blocks removed alike", width=130),
        Column("matched", "Requests sent in both", width=130),
        Column("anywhere", "Batches formed in any pass", "%d", "of the recorded ones, in whatever pass", width=110),
        Column("way", "Way from client to engine", width=420),
    ]
    whole = dict.fromkeys(("passes", "equal", "first", "anywhere"), pa.int64())
    types = whole | {"share": pa.float64()}
    table = pa.table({c.name: pa.array([row[c.name] for row in rows], types.get(c.name)) for c in columns})
    return Answer(
        table, "", columns, definition="A batch is who, in which order, tokens computed before and scheduled."
    )


def divergences(store: Store, run_id: str, check: str) -> Answer:
    """The passes of a check whose batches differ."""
    causes = "; ".join(f"{cause}: {words}" for cause, words in CAUSES.items())
    found = answer(parity.divergences(store, run_id, check), DIVERGENCES, definition=causes)
    return replace(found, empty="Every batch equals the recorded one.")


def batches(store: Store, run_id: str, check: str, pass_index: int) -> Answer:
    """Both batches of a pass, member by member."""
    return answer(parity.batches(store, run_id, check, pass_index), BATCHES)


def queues(store: Store, run_id: str, check: str, pass_index: int) -> Answer:
    """Both waiting queues of a pass."""
    found = answer(parity.queues(store, run_id, check, pass_index), QUEUES)
    return replace(found, empty="Nobody waits on either side.")


def explained(row: Mapping[str, Any]) -> str:
    """Why the batches of a pass differ, and how many blocks were free on both sides."""
    measured, replay = (
        "not recorded" if row[name] is None else count(row[name])
        for name in ("measured_free_blocks", "replay_free_blocks")
    )
    return f"{row['explanation'].rstrip('.')}. Free blocks: {measured} measured, {replay} replayed."


def _of(equal: int | None, whole: int | None) -> str | None:
    return None if equal is None or whole is None else f"{equal:,} of {whole:,}"
