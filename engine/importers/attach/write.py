"""A run of a client with the streams of its engine becomes a new run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from engine.bundle import Bundle, BundleWriter, Check, Phase
from engine.identity import Identity
from engine.importers.attach.align import Alignment, align, offset_of
from engine.importers.attach.checks import checks_of
from engine.importers.attach.client_side import ClientSide, batches, bounds_of, filled, read_client_side
from engine.importers.attach.engine_side import TABLES_OF_ENGINE, EngineSide, NotAttachable, follow, read_engine_side
from engine.importers.attach.ids import match
from engine.importers.contract import Options

_NO_CLOCK = "Say how they lie with --clock OFFSET_S: seconds from profile start to the first pass or event."


def attach_streams(
    run: Bundle,
    streams: Sequence[Bundle],
    store: Path,
    scratch: Path,
    options: Options,
    clock: str = "auto",
    files: Mapping[str, str] | None = None,
) -> str:
    """Write a new measured run into ``store``: that of the client with what the streams hold; returns its id.

    ``streams`` are the runs that the engine's files were imported into. ``clock`` is ``wall``, ``ids``, a number of
    seconds from profile start to the first pass or event, or ``auto``: wall where both sides recorded it, else ids.

    Raises:
        NotAttachable: the run is none of a client or has these tables, or nothing tells how the clocks lie.
    """
    if run.kind != "measured":
        raise NotAttachable(f"Run {run.run_id} is of kind {run.kind}: streams are attached to measured runs.")
    engine = read_engine_side(streams, scratch)
    for table in ("passes", "kv_events"):
        if table in engine.spools and run.rows(table):
            raise NotAttachable(
                f"Run {run.run_id} has {table.replace('_', ' ').replace('kv', 'KV')} already: attach to the run as "
                "its client alone recorded it."
            )
    client = read_client_side(run)
    options.step(None, "following the requests through the passes")
    joined = _join(client, engine)
    alignment = _align(client, engine, joined, clock)
    options.step(None, "writing the run")
    return _write(client, engine, joined, alignment, store, options, files or {})


def _join(client: ClientSide, engine: EngineSide) -> dict[str, str]:
    """Client's id by engine's; the passes are followed on the way."""
    known = client.requests
    guess: dict[str, int | None] = {}

    def prompt_tokens(engine_id: str) -> int | None:
        if engine_id not in guess:
            mine = match([engine_id], known).get(engine_id)
            told = engine.facts.get(engine_id, {}).get("input_tokens")
            guess[engine_id] = told if told is not None or mine is None else known[mine]["input_tokens"]
        return guess[engine_id]

    follow(engine, prompt_tokens)
    return match((*engine.facts, *engine.served), known)


def _align(client: ClientSide, engine: EngineSide, joined: Mapping[str, str], clock: str) -> Alignment:
    bounds = bounds_of(client, engine, joined)
    start = client.bundle.manifest["profile_start_unix_ns"]
    has_wall = engine.epoch and start is not None
    by_ids = offset_of(bounds)
    method = ("wall" if has_wall else "ids" if by_ids is not None else "none") if clock == "auto" else clock
    if method == "wall":
        if not has_wall:
            side = "streams" if not engine.epoch else "run"
            raise NotAttachable(f"The {side} recorded no time of day, so wall times cannot align them. {_NO_CLOCK}")
        _same_time(client, engine, -int(start), by_ids)
        return align("wall", -int(start), bounds)
    if method == "ids":
        if by_ids is None:
            raise NotAttachable(
                f"No request is known to both sides with its times, so request ids cannot align them. {_NO_CLOCK}"
            )
        return align("ids", by_ids, bounds)
    if method == "none":
        raise NotAttachable(
            "Nothing tells how the clocks of run and streams lie: not both have times of day, and no request is known "
            f"to both. {_NO_CLOCK}"
        )
    return align("given", _given(method) - engine.first_ns, bounds)


def _given(clock: str) -> int:
    try:
        seconds = float(clock)
        if abs(seconds) > 1e9:
            raise ValueError
        return round(seconds * 1e9)
    except ValueError:
        raise NotAttachable(f"Clock {clock!r:.60}: expected auto, wall, ids or a number of seconds.") from None


def _same_time(client: ClientSide, engine: EngineSide, offset_ns: int, by_ids: int | None) -> None:
    """Raise where streams and run do not overlap."""
    first, last = engine.first_ns + offset_ns, engine.last_ns + offset_ns
    if client.first_ns is None or client.last_ns is None or (first <= client.last_ns and last >= client.first_ns):
        return
    hint = "The requests are known to both, so --clock ids can align them." if by_ids is not None else _NO_CLOCK
    raise NotAttachable(
        f"By their times of day the streams are of another time: they lie {first / 1e9:,.1f} to {last / 1e9:,.1f} s "
        f"from profile start, the run from {client.first_ns / 1e9:,.1f} to {client.last_ns / 1e9:,.1f} s. {hint}"
    )


def _write(
    client: ClientSide,
    engine: EngineSide,
    joined: Mapping[str, str],
    alignment: Alignment,
    store: Path,
    options: Options,
    files: Mapping[str, str],
) -> str:
    run, offset = client.bundle, alignment.offset_ns
    identity, theirs = run.identity.copy(), _identity(engine)
    for group, name, found in theirs:
        if identity.get(group, name) is None:
            identity.set(group, name, found.value, f"attached: {found.source}")
    identity.set("telemetry", "clock", alignment.words, "computed when the streams were attached")
    checks = [check for check in run.qualification if check.check != "ledger_balances"]
    names = {check.check for check in checks}
    checks += [Check(_name(c.check, names), c.verdict, c.detail) for c in engine.checks]
    checks += [alignment.check(), *checks_of(client, engine, joined, offset, theirs)]
    with BundleWriter(store, "measured", run.run_id.rpartition("-")[0], options.title or run.title, identity) as writer:
        for table in run.tables:
            if table not in engine.spools:
                rows = filled(client, engine, joined, offset) if table == "requests" else batches(run, table)
                writer.write_table(table, rows)
        for table in TABLES_OF_ENGINE:
            if table in engine.spools:
                writer.write_table(table, _renamed(table, engine.batches(table, offset), joined, run.phases))
        total = (run.ledger or {}).get("total") or {}
        return writer.seal(
            phases=run.phases,
            never_issued=total.get("never_issued"),
            lineage={
                **run.lineage,
                "attached_to": run.run_id,
                "attached_files": dict(files),
                "alignment": {**alignment.to_json(), "joined": len(joined)},
            },
            qualification=checks,
            profile_start_unix_ns=run.manifest["profile_start_unix_ns"],
            clocks=run.manifest["clocks"],
        )


def _identity(engine: EngineSide) -> Identity:
    """What the streams say of the engine: the first to say something stands."""
    identity = Identity()
    for bundle in engine.bundles:
        for group, name, found in bundle.identity:
            if group not in ("client", "definitions") and identity.get(group, name) is None:
                identity.set(group, name, found.value, found.source)
    return identity


def _name(name: str, taken: set[str]) -> str:
    """The name of a stream's check where the run has one of that name, too."""
    while name in taken:
        name = f"engine_{name}"
    taken.add(name)
    return name


def _renamed(
    table: str, rows: Iterator[pa.RecordBatch], joined: Mapping[str, str], phases: Sequence[Phase]
) -> Iterator[pa.RecordBatch]:
    """Rows under the client's ids, passes in the phase of their start."""

    def client_id(engine_id: str | None) -> str | None:
        return engine_id if engine_id is None else joined.get(engine_id, engine_id)

    for batch in rows:
        names = batch.schema.names
        if "request_id" in names:
            batch = _with(batch, "request_id", _mapped(batch.column("request_id"), client_id))
        if "members" in names and batch.column("members").null_count < batch.num_rows:
            batch = _with(batch, "members", _members(batch.column("members"), client_id))
        if table == "passes" and phases:
            ends = np.array([phase.end_ns for phase in phases])
            starts = batch.column("start_ns").to_numpy(zero_copy_only=False)
            place = np.searchsorted(ends, starts, side="right").clip(max=len(phases) - 1)
            batch = _with(batch, "phase", pa.array([phases[i].name for i in place], pa.string()))
        yield batch


def _with(batch: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    return batch.set_column(batch.schema.get_field_index(name), name, column)


Rename = Callable[[str | None], str | None]


def _mapped(column: pa.Array, rename: Rename) -> pa.Array:
    coded = column.dictionary_encode()
    names = pa.array([rename(name) for name in coded.dictionary.to_pylist()], pa.string())
    return pa.DictionaryArray.from_arrays(coded.indices, names).cast(pa.string())


def _members(column: pa.ListArray, rename: Rename) -> pa.ListArray:
    inside = column.flatten()
    fields = dict(zip((f.name for f in inside.type), inside.flatten(), strict=True))
    fields["request_id"] = _mapped(fields["request_id"], rename)
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    items = pa.StructArray.from_arrays(list(fields.values()), list(fields))
    return pa.ListArray.from_arrays(offsets, items, mask=column.is_null())
