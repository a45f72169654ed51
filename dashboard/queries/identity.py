"""Two identity records side by side, and which runs repeat one experiment."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.store import Store
from engine.identity import FieldDiff, State, diff

VARYING_FIELDS = frozenset({("hardware", "load")})
"""Fields that may differ between repeats: sampled values that nobody sets. An identity holds no run names."""

_UNKNOWN: tuple[State, ...] = ("unknown_left", "unknown_right", "unknown_both")
_ORDER: dict[State, int] = {
    "differs": 0,
    "unknown_left": 1,
    "unknown_right": 1,
    "same": 2,
    "unknown_both": 3,
    "not_applicable": 4,
}


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

    Every field is the same on both sides or unknown on both, but for VARYING_FIELDS. Altered runs are left out.
    """
    if store.bundle(run_id).kind != "measured":
        return []
    others = [e.run_id for e in store.catalogue() if e.kind == "measured" and e.state == "ok" and e.run_id != run_id]
    return sorted(other for other in others if _same_experiment(store, run_id, other))


def _same_experiment(store: Store, run_id: str, other: str) -> bool:
    def make() -> bool:
        rows = diff(store.catalog.manifest(run_id).identity, store.catalog.manifest(other).identity)
        return all(
            row.state in ("same", "unknown_both", "not_applicable") or (row.group, row.field) in VARYING_FIELDS
            for row in rows
        )

    found: bool = store.remember(("same experiment", run_id, other), make)
    return found
