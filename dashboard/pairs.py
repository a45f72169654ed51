"""Which runs belong side by side: the pair that opens first, the replays of a measured run, what a link misses."""

from __future__ import annotations

from collections.abc import Sequence

from dashboard.catalogue import RunEntry
from dashboard.store import Store
from dashboard.view import PARAMS, RUN_ID, View
from engine.identity import diff

FIRST = "ample8-"
"""The sample that opens first, where the store holds it."""
_SAID_BY_PAGES = frozenset(PARAMS[name].label for name in ("m", "r", "src", "tools"))


def comparable(entries: Sequence[RunEntry]) -> list[RunEntry]:
    """Runs with requests that can stand in the pair bar: measured ones first, rungs of ladders and points last."""
    usable = [e for e in entries if e.kind in ("measured", "replay") and e.state == "ok"]
    return sorted(usable, key=lambda e: (e.kind != "measured", bool(e.point), e.ladder or (), e.rung or 0, e.run_id))


def replays_of(store: Store, measured: str, entries: Sequence[RunEntry]) -> list[str]:
    """Replays of the workload of a measured run, those first whose identity differs least; no rungs or points."""
    key = ("replays", measured, _contents(entries))
    return list(store.remember(key, lambda: _replays_of(store, measured, entries)))


def default_replays(store: Store, measured: str, entries: Sequence[RunEntry]) -> list[str]:
    """What stands beside a measured run when nobody chose: the nearest replay, or nothing."""
    return [] if absence(measured, entries) else replays_of(store, measured, entries)[:1]


def _contents(entries: Sequence[RunEntry]) -> int:
    """Changes when a run comes, goes or is altered."""
    return hash(tuple((entry.run_id, entry.state) for entry in entries))


def _replays_of(store: Store, measured: str, entries: Sequence[RunEntry]) -> list[str]:
    own = store.bundle(measured).identity
    found = []
    for entry in entries:
        if entry.kind == "replay" and entry.state == "ok" and entry.run_id != measured and not entry.aside:
            diffs = diff(own, store.catalog.manifest(entry.run_id).identity)
            if any(d.group == "trace" and d.state == "differs" for d in diffs):
                continue
            differing = sum(d.state == "differs" for d in diffs)
            found.append((differing, -(entry.created_unix_ns or 0), entry.run_id))
    return [run_id for *_, run_id in sorted(found)]


def default_measured(store: Store, entries: Sequence[RunEntry]) -> str:
    """The measured run that opens first: the sample, else one that has a replay, else any; empty without runs."""
    measured = [e.run_id for e in comparable(entries) if e.kind == "measured"]
    sample = [run_id for run_id in measured if run_id.startswith(FIRST)]
    if sample or not any(entry.kind == "replay" for entry in entries):
        return (sample or measured or [""])[0]

    def first() -> str:
        return next((run_id for run_id in measured if replays_of(store, run_id, entries)), "") or (measured or [""])[0]

    return str(store.remember(("first", _contents(entries)), first))


def shorten(text: str, most: int = 80) -> str:
    """A text of somebody else's, cut where it would fill the screen."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


def absence(run_id: str, entries: Sequence[RunEntry]) -> str | None:
    """Why a run that a link names cannot be shown, in a sentence; None when it can."""
    for entry in entries:
        if entry.run_id == run_id:
            return None if entry.state == "ok" else (entry.problem or f"Run {run_id} is {entry.state}.")
    if not RUN_ID.fullmatch(run_id):
        return f"{shorten(run_id)!r} is not a run id: expected a name, a dash and the 12 hex digits of its content."
    slug, _, digest = run_id.rpartition("-")
    same = [e.run_id for e in entries if e.run_id.rpartition("-")[0] == slug]
    near = f" Of that name the store holds {', '.join(same)}: other content." if same else ""
    return (
        f"This link expects run {slug} with content digest {digest} ({run_id}), which is not in this store.{near} "
        f"On the machine that has it `gapscope export {run_id} --format parquet` makes a folder; here "
        f"`gapscope import {run_id}-parquet`, or its files dropped on the Runs page, makes the same run of it, "
        "with the same id. Or start gapscope with --store FOLDER where it lies."
    )


def absent_elsewhere(shown: View, entries: Sequence[RunEntry]) -> list[str]:
    """Why runs that a link names outside the pair bar cannot be shown, a sentence each that begins with their place.

    The controls of such runs fall back to what the store has. The pair bar and the pages that are about runs of their
    own (Source, Cross-tool) keep an absent run and say it themselves.
    """
    told = []
    for label, named in shown.runs.items():
        if label not in _SAID_BY_PAGES:
            told += [f"{label}: {why}" for run_id in named if (why := absence(run_id, entries))]
    return told
