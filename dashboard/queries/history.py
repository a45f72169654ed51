"""Runs of one experiment over time, and what keeps the others out of the series."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.queries.identity import failed_checks, failed_repeats, in_the_way, other_measured, repeats
from dashboard.store import Store


@dataclass(frozen=True, slots=True)
class Member:
    """A run of the series: when its files were written (None: unknown), and the checks that it failed."""

    run_id: str
    title: str
    created_unix_ns: int | None
    failed: tuple[str, ...]


def series(store: Store, run_id: str) -> list[Member]:
    """The run and every run of the same identity, by the time that they were written; unknown times last.

    Runs that failed a check of their own are members and marked: they are no repeats. An altered run is none.
    """
    found = {run_id, *repeats(store, run_id), *failed_repeats(store, run_id)}
    known = {entry.run_id: entry for entry in store.catalogue()}
    members = [
        Member(one, known[one].title, known[one].created_unix_ns, tuple(failed_checks(store, one)))
        for one in found
        if one in known
    ]
    return sorted(members, key=lambda one: (one.created_unix_ns is None, one.created_unix_ns or 0, one.run_id))


def kept_out(store: Store, run_id: str) -> list[tuple[str, int, int]]:
    """Identity fields that keep other measured runs out of the series: field, runs that it keeps out, and of these how
    many it alone keeps out; the most first."""
    counts: dict[str, list[int]] = {}
    for other in other_measured(store, run_id):
        fields = in_the_way(store, run_id, other)
        for field in fields:
            told = counts.setdefault(field.label, [0, 0])
            told[0] += 1
            told[1] += len(fields) == 1
    return sorted(((label, all_, alone) for label, (all_, alone) in counts.items()), key=lambda row: (-row[1], row[0]))
