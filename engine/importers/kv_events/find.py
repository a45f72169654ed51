"""Streams of KV events among the files of an input."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pyarrow.compute as pc

from engine.bundle import BundleWriter, Check, Phase, Spool, slugify
from engine.collector import collector_paused
from engine.errors import GapscopeError
from engine.identity import Identity
from engine.importers.contract import Options, Part, Use
from engine.importers.kv_events.events import is_events, rows_of, told_by_recorder
from engine.importers.messages import framing, messages, noun, peek
from engine.intake import BadRows, InputFile, Intake

_COLUMNS = (
    "event_index",
    "time_ns",
    "worker_id",
    "dp_rank",
    "kind",
    "tier",
    "num_blocks",
    "block_hashes",
    "parent_hash",
)
_STEP = 5_000


class KvEventImporter:
    """Each file is a stream of its own."""

    name = "kv events"
    describes = "KV events of vLLM (msgpack or JSON Lines) and of Dynamo (JSON Lines): stored, removed, cleared blocks"

    def find(self, intake: Intake) -> Sequence[Part]:
        """One part per file."""
        return [self._part(intake, file) for file in intake.files if any(map(is_events, peek(file)))]

    def _part(self, intake: Intake, file: InputFile) -> Part:
        form = "JSON Lines" if framing(file.head) == "json" else "msgpack"
        return Part(
            format=self.name,
            tool="KV events of an engine",
            version=None,
            name=file.base.partition(".")[0],
            kind="imported_summary",
            side="engine",
            uses=(Use(file, f"stored, removed and cleared blocks, as {form}"),),
            run=partial(_import, intake, file),
            notes=(
                "KV events alone make no run to look at: `gapscope attach RUN FILE` lays them under a client's run.",
            ),
        )


def _import(intake: Intake, file: InputFile, store: Path, options: Options) -> str:
    bad, spool = BadRows(options.skip_bad_rows), Spool("kv_events", _COLUMNS, intake.scratch)
    word, timed, lost = noun(file), 0, 0
    with collector_paused():
        for place, message in messages(file, bad):
            if (told := told_by_recorder(message)) is not None:
                lost += told
                continue
            try:
                rows = list(rows_of(message))
            except ValueError as error:
                bad.add(f"{file.name} {word} {place}", str(error))
                continue
            for row in rows:
                timed += row.get("time_ns") is not None
                spool.append({"event_index": spool.rows, **row})
            if place % _STEP == 0:
                options.step(None, f"{spool.rows:,} events")
    options.step(None, "writing the run")
    if not spool.rows:
        raise GapscopeError(f"{file.name} holds no event that can be used: expected stored, removed or cleared blocks.")
    origin = pc.min(spool.column("time_ns")).as_py() if timed else None
    last = pc.max(spool.column("time_ns")).as_py() if timed else None
    identity = Identity()
    identity.set("telemetry", "kv_event_producer", "events as the engine published them", file.name)
    clock = "wall clock of the engine" if timed else "none is recorded"
    identity.set("telemetry", "clock", clock, f"{file.name}: time of each batch")
    every = "pass" if timed == spool.rows else "fail" if timed else "unknown"
    title = options.title or f"{file.base}: {spool.rows:,} KV events, events only"
    with BundleWriter(store, "imported_summary", slugify(file.base.partition(".")[0]), title, identity) as writer:
        writer.write_table("kv_events", spool.batches(origin or 0))
        return writer.seal(
            phases=[Phase("profile", 0, last - origin)] if origin is not None and last is not None else [],
            lineage={
                "format": KvEventImporter.name,
                "source_files": {file.name: file.sha256},
                "rows_left_out": bad.count,
                "not_recorded": ["Requests and passes: events only.", "Why a block was removed."],
            },
            qualification=[
                Check("rows_used", "fail" if bad.count else "pass", bad.words),
                Check("events_timed", every, f"{timed:,} of {spool.rows:,} events have a time"),
                *([Check("events_complete", "fail", f"{lost:,} messages were lost on the way")] if lost else []),
            ],
            profile_start_unix_ns=origin,
        )
