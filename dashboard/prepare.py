"""What pages make of a large run at its first use, made before somebody waits for it."""

from __future__ import annotations

from collections.abc import Iterator

from dashboard.compare import compare
from dashboard.pairs import comparable, replays_of
from dashboard.store import Store


def prepare(store: Store, run_id: str) -> bool:
    """Work out the tables of a run, and its headline numbers beside its nearest replay or its measured runs.

    Everything is kept in files, so that asking again costs little. False of a run that is not large or has no requests.

    Raises:
        GapscopeError: the run is absent or altered, or a limit of a query.
    """
    if not store.is_large(run_id) or "requests" not in store.tables(run_id):
        return False
    with store.steady():
        store.work_out(run_id)
        for measured, replay in _pairs(store, run_id):
            compare(store, measured, replay)
    return True


def _pairs(store: Store, run_id: str) -> Iterator[tuple[str, str]]:
    """The pairs that open with a run: with the nearest replay of a measured one, or as the replay of any."""
    entries = store.catalogue()
    for entry in comparable(entries):
        if entry.kind == "measured":
            replays = replays_of(store, entry.run_id, entries)
            yield from (
                (entry.run_id, one)
                for one in (replays[:1] if entry.run_id == run_id else replays)
                if run_id in (entry.run_id, one)
            )
