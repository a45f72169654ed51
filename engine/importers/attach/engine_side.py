"""The engine's side of a run: passes, KV events and admissions of one or more streams, and what became of each request.

Times are those of the engine's own clock: epoch nanoseconds where every stream has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from engine.bundle import Bundle, Check, Spool
from engine.bundle.schema import CLOCKS, TABLES
from engine.errors import GapscopeError

TABLES_OF_ENGINE = ("passes", "kv_events", "admissions")
_NUMBERED = {"passes": "pass_index", "kv_events": "event_index"}
_PIECE = 20_000


class NotAttachable(GapscopeError):
    """Run and streams may each be sound, but they do not go together."""


@dataclass(slots=True)
class Served:
    """One request as the passes show it. Times on the engine's clock."""

    first_start_ns: int
    worker_id: str | None
    dp_rank: int | None
    cached_tokens: int
    """Tokens that had been computed when it was first scheduled."""
    scheduled_tokens: int = 0
    recomputed_tokens: int = 0
    """Scheduled at positions that had been scheduled before."""
    reached: int = 0
    first_token_end_ns: int | None = None
    """End of the pass that computed the last token of its prompt."""
    last_end_ns: int = 0


@dataclass
class EngineSide:
    """Streams of one engine, put together."""

    spools: dict[str, Spool]
    facts: dict[str, dict[str, Any]]
    """Rows of ``requests`` that streams have of their own (received, released, tokens), by the engine's id."""
    bundles: Sequence[Bundle]
    epoch: bool
    """Whether the times are epoch nanoseconds."""
    first_ns: int
    last_ns: int
    served: dict[str, Served] = field(default_factory=dict)

    @property
    def names_requests(self) -> bool:
        """Whether any stream says which requests it served."""
        return bool(self.served or self.facts)

    @property
    def checks(self) -> list[Check]:
        """What the streams' own imports found."""
        return [check for bundle in self.bundles for check in bundle.qualification if check.check != "ledger_balances"]

    def batches(self, table: str, offset_ns: int) -> Iterator[pa.RecordBatch]:
        """Rows of a table in order, ``offset_ns`` added to their times."""
        return self.spools[table].batches(-offset_ns)


def read_engine_side(bundles: Sequence[Bundle], scratch: Path) -> EngineSide:
    """Put the runs that streams were imported into together.

    Raises:
        NotAttachable: there is nothing in them, they have no times, or some have epoch times and some have not.
    """
    bundles = [bundle for bundle in bundles if any(bundle.rows(table) for table in TABLES_OF_ENGINE)]
    if not bundles:
        raise NotAttachable("The files hold neither passes nor KV events: nothing could be attached.")
    epochs = {bundle.manifest["profile_start_unix_ns"] is not None for bundle in bundles}
    if len(epochs) == 2:
        raise NotAttachable(
            "Some of the files have times of day and some have not, so their clocks cannot be told from each other: "
            "attach files of one clock, or give the others to a second attach."
        )
    spools: dict[str, Spool] = {}
    for table in TABLES_OF_ENGINE:
        spool = _spool(table, bundles, scratch)
        if spool is not None:
            spools[table] = spool
    first, last = _span(spools)
    return EngineSide(spools, _facts(bundles), bundles, epochs == {True}, first, last)


def _origin(bundle: Bundle) -> int:
    return int(bundle.manifest["profile_start_unix_ns"] or 0)


def _spool(table: str, bundles: Sequence[Bundle], scratch: Path) -> Spool | None:
    """The rows of all bundles; passes and events are numbered on from one bundle to the next."""
    sources = [bundle for bundle in bundles if bundle.rows(table)]
    if not sources:
        return None
    spool = Spool(table, TABLES[table].columns, scratch)
    pass_base = base = 0
    for bundle in bundles:
        passes = _most(bundle, "passes", "pass_index")
        if bundle in sources:
            for batch in _read(bundle, table):
                batch = _moved(batch, table, _origin(bundle))
                if table == "passes" or table in _NUMBERED:
                    batch = _added(batch, _NUMBERED[table], base)
                if table != "passes" and "pass_index" in batch.schema.names:
                    batch = _added(batch, "pass_index", pass_base)
                spool.extend(batch)
            if table in _NUMBERED:
                base += _most(bundle, table, _NUMBERED[table])
        pass_base += passes
    return spool


def _read(bundle: Bundle, table: str) -> Iterator[pa.RecordBatch]:
    path = bundle.file(table)
    assert path is not None
    with pq.ParquetFile(path) as file:
        yield from file.iter_batches(_PIECE)


def _most(bundle: Bundle, table: str, column: str) -> int:
    """One more than the largest number of a table."""
    rows = bundle.table(table, [column])
    most = None if rows is None else pc.max(rows[column]).as_py()
    return 0 if most is None else most + 1


def _moved(batch: pa.RecordBatch, table: str, by: int) -> pa.RecordBatch:
    for name in CLOCKS[table]:
        batch = _added(batch, name, by)
    return batch


def _added(batch: pa.RecordBatch, name: str, number: int) -> pa.RecordBatch:
    place = batch.schema.get_field_index(name)
    if place < 0 or not number:
        return batch
    return batch.set_column(place, batch.schema.field(place), pc.add_checked(batch.column(place), number))


def _span(spools: dict[str, Spool]) -> tuple[int, int]:
    starts, ends = [], []
    for table, (start, end) in {"passes": ("start_ns", "end_ns"), "kv_events": ("time_ns", "time_ns")}.items():
        if table in spools:
            starts.append(pc.min(spools[table].column(start)).as_py())
            ends.append(pc.max(spools[table].column(end)).as_py())
    known = [s for s in starts if s is not None], [e for e in ends if e is not None]
    if not known[0]:
        raise NotAttachable(
            "The files have no times, so nothing places them in a run: import them as a run of their own, "
            "passes can be fitted on without times."
        )
    return min(known[0]), max(known[1], default=max(known[0]))


def _facts(bundles: Sequence[Bundle]) -> dict[str, dict[str, Any]]:
    facts = {}
    for bundle in bundles:
        if bundle.rows("requests"):
            for batch in _read(bundle, "requests"):
                for row in _moved(batch, "requests", _origin(bundle)).to_pylist():
                    facts[row["request_id"]] = {name: value for name, value in row.items() if value is not None}
    return facts


def follow(side: EngineSide, prompt_tokens: Callable[[str], int | None]) -> None:
    """Fill ``side.served`` from the members of the passes; ``prompt_tokens`` gives a prompt's length by engine id."""
    if "passes" not in side.spools:
        return
    served = side.served
    for batch in side.batches("passes", 0):
        if batch.column("members").null_count == batch.num_rows:
            continue
        columns = ("start_ns", "end_ns", "worker_id", "dp_rank", "members")
        for start, end, worker, rank, members in zip(*(batch.column(c).to_pylist() for c in columns), strict=True):
            for member in members or ():
                name, before, tokens = member["request_id"], member["computed_before"], member["scheduled_tokens"]
                request = served.get(name)
                if request is None:
                    request = served[name] = Served(start, worker, rank, before)
                after = before + tokens
                request.scheduled_tokens += tokens
                request.recomputed_tokens += max(0, min(after, request.reached) - before)
                request.reached = max(request.reached, after)
                request.last_end_ns = end
                if request.first_token_end_ns is None:
                    prompt = prompt_tokens(name)
                    if prompt is not None and after >= prompt:
                        request.first_token_end_ns = end
