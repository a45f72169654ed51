"""Two identity records side by side, and which runs repeat one experiment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dashboard.store import Store
from engine.identity import FieldDiff, State, diff

VARYING_FIELDS = frozenset({("hardware", "load"), ("telemetry", "recorder_own_us")})
"""Fields that may differ between repeats: sampled values that nobody sets. An identity holds no run names."""

ESSENTIAL_FIELDS = frozenset({("model", "name"), ("client", "lanes")})
"""Without these known nobody can say that two runs are one experiment. The load may be named by its rate instead."""
_OR_KNOWN = {("client", "lanes"): (("client", "arrival_rate"), ("client", "loop"))}

_UNKNOWN: tuple[State, ...] = ("unknown_left", "unknown_right", "unknown_both")
_ORDER: dict[State, int] = {
    "differs": 0,
    "unknown_left": 1,
    "unknown_right": 1,
    "same": 2,
    "unknown_both": 3,
    "not_applicable": 4,
}


def said_differing(diffs: Sequence[FieldDiff]) -> str:
    """How many fields of the record differ, and how many of these define the regime or are observed only."""
    found = [one for one in diffs if one.state == "differs"]
    regime = sum(one.regime for one in found)
    observed = sum((one.group, one.field) in VARYING_FIELDS for one in found)
    parts = [f"{regime} of the regime"] * bool(regime)
    parts += ["observed only" if observed == len(found) else f"{observed} observed only"] * bool(observed)
    return f"{len(found)} differ{'s' if len(found) == 1 else ''}" + (f" ({', '.join(parts)})" if parts else "")


@dataclass(frozen=True, slots=True)
class IdentityDiff:
    """Differing fields first, then those unknown on one side; inside each in the order of the record."""

    rows: tuple[FieldDiff, ...]

    def count(self, *states: State) -> int:
        """How many fields are in one of the states."""
        return sum(row.state in states for row in self.rows)

    @property
    def differing(self) -> int:
        """Fields known on both sides with different values."""
        return self.count("differs")

    @property
    def unknown(self) -> int:
        """Fields unknown on one side or both: neither a match nor a mismatch."""
        return self.count(*_UNKNOWN)

    @property
    def regime_differs(self) -> tuple[FieldDiff, ...]:
        """Differing fields that define the regime: with any of these the pair is not like for like."""
        return tuple(row for row in self.rows if row.regime and row.state == "differs")


def identity(store: Store, left: str, right: str) -> IdentityDiff:
    """The diff of two runs' identities."""

    def make() -> IdentityDiff:
        rows = diff(store.bundle(left).identity, store.bundle(right).identity)
        return IdentityDiff(tuple(sorted(rows, key=lambda row: _ORDER[row.state])))

    store.bundle(left), store.bundle(right)
    found: IdentityDiff = store.remember(("identity", left, right), make)
    return found


def repeats(store: Store, run_id: str) -> list[str]:
    """Other measured runs of the store whose identity says the same experiment, by id.

    Every field is the same on both sides or unknown on both, but for VARYING_FIELDS, and ESSENTIAL_FIELDS are known.
    Altered runs are left out, the same recording under another name, and runs that failed a check of their own: what
    went wrong in them is no noise. So a run that failed one has no repeats.
    """
    if failed_checks(store, run_id):
        return []
    return [other for other in _alike(store, run_id) if not failed_checks(store, other)]


def failed_repeats(store: Store, run_id: str) -> list[str]:
    """Runs of the same experiment that failed a check of their own, by id."""
    return [other for other in _alike(store, run_id) if failed_checks(store, other)]


def one_experiment(store: Store, left: str, right: str) -> bool:
    """Whether two runs have one identity, as :func:`repeats` wants it, whatever became of them."""
    return not in_the_way(store, left, right)


def failed_checks(store: Store, run_id: str) -> list[str]:
    """Names of the checks that a run failed when it was qualified."""
    return [check.check for check in store.bundle(run_id).qualification if check.verdict == "fail"]


def same_recording(store: Store, left: str, right: str) -> bool:
    """Whether two runs hold the same data: one content, or the same rows under another name or read another way."""
    if left.rpartition("-")[2] == right.rpartition("-")[2]:
        return True
    files = [store.catalog.manifest(run_id).manifest["files"] for run_id in (left, right)]
    for table in ("requests.parquet", "passes.parquet"):
        found = [one.get(table) for one in files]
        if all(found):
            return bool(found[0]["content"] == found[1]["content"])
    return False


def _alike(store: Store, run_id: str) -> list[str]:
    return sorted(
        other
        for other in other_measured(store, run_id)
        if not in_the_way(store, run_id, other) and not same_recording(store, run_id, other)
    )


@dataclass(frozen=True, slots=True)
class NearRepeat:
    """A measured run that is no repeat, with the fields that keep it from being one."""

    run_id: str
    fields: tuple[FieldDiff, ...]


def near_repeats(store: Store, run_id: str, most: int = 5) -> list[NearRepeat]:
    """Measured runs that nearly repeat this one, those first that the fewest fields keep from it."""
    found = [NearRepeat(other, in_the_way(store, run_id, other)) for other in other_measured(store, run_id)]
    near = sorted((one for one in found if one.fields), key=lambda one: (len(one.fields), one.run_id))
    return near[:most]


def other_measured(store: Store, run_id: str) -> list[str]:
    """Sound measured runs of other content; none of a run that is not measured itself."""
    if store.bundle(run_id).kind != "measured":
        return []
    content = run_id.rpartition("-")[2]  # the same recording under another name is no repeat of itself
    return [
        e.run_id
        for e in store.catalogue()
        if e.kind == "measured" and e.state == "ok" and e.run_id.rpartition("-")[2] != content
    ]


def in_the_way(store: Store, run_id: str, other: str) -> tuple[FieldDiff, ...]:
    """What keeps two runs from being one experiment.

    Fields that differ or that only one of them knows, but for VARYING_FIELDS; and essential ones that neither knows.
    """

    def make() -> tuple[FieldDiff, ...]:
        rows = diff(store.catalog.manifest(run_id).identity, store.catalog.manifest(other).identity)
        known = {(row.group, row.field) for row in rows if row.state != "unknown_both"}
        return tuple(row for row in rows if _bars(row, known))

    found: tuple[FieldDiff, ...] = store.remember(("in the way", run_id, other), make)
    return found


def _bars(row: FieldDiff, known: set[tuple[str, str]]) -> bool:
    """Whether a field keeps two runs from being one experiment; ``known`` are those that at least one of them knows."""
    field = (row.group, row.field)
    if row.state == "unknown_both":
        return field in ESSENTIAL_FIELDS and known.isdisjoint(_OR_KNOWN.get(field, ()))
    return row.state not in ("same", "not_applicable") and field not in VARYING_FIELDS
