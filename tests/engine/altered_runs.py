"""Sample runs, and what other recordings of the same passes would have looked like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from engine.bundle.reader import Bundle, open_bundle

SAMPLES = Path(__file__).parents[2] / "sample_runs"


def sample(name: str) -> Bundle:
    (path,) = SAMPLES.glob(f"{name}-" + "[0-9a-f]" * 12)
    return open_bundle(path)


class AlteredRun:
    """A run with other tables (None: not recorded) or another identity; what is not given is the run's own."""

    def __init__(self, bundle: Any, identity: dict[tuple[str, str], Any] | None = None, **tables: pa.Table | None):
        self.run_id = bundle.run_id
        self.identity = _Identity(bundle.identity, identity or {})
        self._bundle, self._tables = bundle, tables

    def table(self, name: str, columns: list[str] | None = None) -> pa.Table | None:
        if name not in self._tables:
            return self._bundle.table(name, columns)
        table = self._tables[name]
        return table if table is None or columns is None else table.select(columns)


class _Identity:
    def __init__(self, identity: Any, changes: dict[tuple[str, str], Any]):
        self._identity, self._changes = identity, changes

    def value(self, group: str, field: str) -> Any:
        key = (group, field)
        return self._changes[key] if key in self._changes else self._identity.value(group, field)


def without(table: pa.Table, *columns: str) -> pa.Table:
    """The table with columns that nobody recorded."""
    for name in columns:
        place, field = table.schema.get_field_index(name), table.schema.field(name)
        table = table.set_column(place, field, pa.nulls(len(table), field.type))
    return table


def every(table: pa.Table, step: int, keep: bool) -> pa.Table:
    """Each ``step``-th row alone, or all the others."""
    return table.filter(pa.array([(n % step == 0) == keep for n in range(len(table))]))


def begun_at(bundle: Any, pass_index: int) -> AlteredRun:
    """The recording as it would be, had it begun before that pass, when the engine was idle."""
    passes, requests, events = (bundle.table(name) for name in ("passes", "requests", "kv_events"))
    start = passes.filter(pc.equal(passes["pass_index"], pass_index))["start_ns"][0].as_py()
    before = pc.max(passes.filter(pc.less(passes["start_ns"], start))["end_ns"]).as_py()
    return AlteredRun(
        bundle,
        passes=passes.filter(pc.greater_equal(passes["start_ns"], start)),
        requests=requests.filter(pc.greater_equal(requests["received_ns"], before)),
        kv_events=events.filter(pc.greater_equal(events["pass_index"], pass_index)),
    )


def idle_starts(bundle: Any) -> list[int]:
    """Passes that computed something after the engine had been idle, the first pass left out."""
    passes = bundle.table("passes", ["pass_index", "period_ns", "members"])
    computing = pc.greater(pc.list_value_length(passes["members"]), 0)
    found: list[int] = passes.filter(pc.and_(pc.is_null(passes["period_ns"]), computing))["pass_index"].to_pylist()
    return found[1:]


def one_after_the_other(first: Any, second: Any) -> AlteredRun:
    """Two recordings as one; the second begins with the clear that began it."""
    later, further = 10**13, 10**6
    passes = _shift(second.table("passes"), start_ns=later, end_ns=later, pass_index=further)
    events = _shift(second.table("kv_events"), time_ns=later, pass_index=further, event_index=further)
    requests = _shift(second.table("requests"), received_ns=later, released_ns=later, dispatched_ns=later)
    return AlteredRun(
        first,
        passes=_joined(first.table("passes"), passes),
        requests=_joined(first.table("requests"), requests),
        kv_events=_joined(first.table("kv_events"), events),
    )


def _shift(table: pa.Table, **amounts: int) -> pa.Table:
    for name, amount in amounts.items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.schema.field(name), pc.add(table[name], amount))
    return table


def _joined(first: pa.Table, second: pa.Table) -> pa.Table:
    return pa.concat_tables([first.unify_dictionaries(), second.unify_dictionaries()]).combine_chunks()
