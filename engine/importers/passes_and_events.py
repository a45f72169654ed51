"""An engine's passes and its KV events in one folder without a client: one run of kind sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from engine.bundle import Bundle, BundleWriter, Check, Phase, Spool, open_bundle, working_folder
from engine.bundle.schema import TABLES
from engine.importers.attach.client_side import batches
from engine.importers.contract import Options, Part

_WRITERS = "ledger_balances"
"""A check that the writer of a bundle adds itself."""


def together(passes: Part, events: Sequence[Part]) -> Part:
    """One part of the stream of passes and the streams of events beside it."""
    return replace(
        passes,
        format=f"{passes.format} + {events[0].format}",
        uses=(*passes.uses, *(use for part in events for use in part.uses)),
        notes=(*passes.notes, "KV events of the same folder become part of the run"),
        run=lambda store, options: _import(passes, events, store, options),
    )


def _import(passes: Part, events: Sequence[Part], store: Path, options: Options) -> str:
    with working_folder(store) as scratch:
        apart = scratch / "apart"
        run = open_bundle(apart / passes.run(apart, options))
        streams = [open_bundle(apart / part.run(apart, replace(options, title=None))) for part in events]
        return _write(run, streams, store, scratch)


def _write(run: Bundle, streams: Sequence[Bundle], store: Path, scratch: Path) -> str:
    starts = [start for b in streams if (start := b.manifest["profile_start_unix_ns"]) is not None]
    start = run.manifest["profile_start_unix_ns"]
    timed = any(batch.column("start_ns").null_count < batch.num_rows for batch in batches(run, "passes"))
    one_clock = not starts or not timed or start is not None
    if not timed:  # passes that nothing places in time: the events' clock is the run's
        start = min(starts, default=None)
    spool = Spool("kv_events", TABLES["kv_events"].columns, scratch)
    if one_clock:
        for stream in streams:
            _add(spool, stream, (stream.manifest["profile_start_unix_ns"] or 0) - (start or 0) if starts else 0)
    identity = run.identity.copy()
    checks = [check for check in run.qualification if check.check != _WRITERS]
    names = {check.check for check in checks}
    for stream in streams:
        for group, name, found in stream.identity:
            if identity.get(group, name) is None:
                identity.set(group, name, found.value, found.source)
        theirs = [check for check in stream.qualification if check.check != _WRITERS]
        checks += [replace(c, check=f"events_{c.check}") if c.check in names else c for c in theirs]
    checks.append(_clock(spool.rows, timed, one_clock))
    with BundleWriter(store, run.kind, run.run_id.rpartition("-")[0], run.title, identity) as writer:
        for table in run.tables:
            writer.write_table(table, batches(run, table))
        if spool.rows:
            writer.write_table("kv_events", spool.batches())
        files = {**run.lineage["source_files"]}
        for stream in streams:
            files |= stream.lineage["source_files"]
        return writer.seal(
            phases=run.phases or _spanned(spool),
            lineage={**run.lineage, "source_files": files},
            qualification=checks,
            profile_start_unix_ns=start,
            clocks=run.manifest["clocks"],
        )


def _clock(events: int, timed: bool, one_clock: bool) -> Check:
    if not one_clock:
        words = "the passes have no times of day and the KV events have: left out, attach them with their clock"
        return Check("one_engine_clock", "fail", words)
    if not timed:
        return Check("one_engine_clock", "unknown", f"{events:,} KV events; the passes have no times")
    return Check("one_engine_clock", "pass", f"{events:,} KV events lie on the clock of the passes")


def _add(spool: Spool, stream: Bundle, later_ns: int) -> None:
    base = spool.rows
    for batch in batches(stream, "kv_events"):
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns["event_index"] = pc.add(columns["event_index"], base)
        columns["time_ns"] = pc.add(columns["time_ns"], later_ns)
        spool.extend(pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)))


def _spanned(events: Spool) -> list[Phase]:
    last = pc.max(events.column("time_ns")).as_py() if events.rows else None
    return [] if last is None else [Phase("profile", 0, last)]
