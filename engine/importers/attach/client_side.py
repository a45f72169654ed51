"""The client's side of a run: what its requests say of the clock, and their rows with the engine's facts filled in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from engine.bundle import Bundle
from engine.bundle.schema import TABLES
from engine.definitions import FIRST_CHUNK, ROLE_CHUNK
from engine.importers.attach.align import NOTHING, Bounds
from engine.importers.attach.engine_side import EngineSide

_PIECE = 20_000
_TIMES = ("dispatched_ns", "first_visible_ns", "last_visible_ns", "end_ns")
_KNOWN = ("status", *_TIMES, "input_tokens", "output_tokens", "cached_tokens")
_FILLED = {"received_ns": True, "first_admit_ns": True, "released_ns": True}
_FILLED |= dict.fromkeys(("worker_id", "dp_rank", "cached_tokens", "recomputed_tokens", "preemptions"), False)
"""Columns that the engine fills where the client has none; True: a time."""


@dataclass
class ClientSide:
    """The requests of a run by id, as far as the clocks and the checks need them."""

    bundle: Bundle
    requests: dict[str, dict[str, Any]]
    first_ns: int | None
    last_ns: int | None
    """From the first dispatch to the last thing that the client saw, or what the phases say; None where unknown."""


def read_client_side(bundle: Bundle) -> ClientSide:
    """The client's side of a run."""
    requests = {}
    for batch in batches(bundle, "requests", ["request_id", *_KNOWN]):
        for row in batch.to_pylist():
            requests[row.pop("request_id")] = row
    times = [row[name] for row in requests.values() for name in _TIMES if row[name] is not None]
    times += [t for phase in bundle.phases for t in (phase.start_ns, phase.end_ns)]
    return ClientSide(bundle, requests, min(times, default=None), max(times, default=None))


def batches(bundle: Bundle, table: str, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """A table of a run, piece by piece."""
    path = bundle.file(table)
    assert path is not None
    with pq.ParquetFile(path) as file:
        held = set(file.schema_arrow.names)
        for batch in file.iter_batches(_PIECE, columns=columns and [c for c in columns if c in held]):
            for name in columns or ():
                if name not in held:
                    batch = batch.append_column(name, pa.nulls(batch.num_rows, TABLES[table].schema.field(name).type))
            yield batch


def bounds_of(client: ClientSide, engine: EngineSide, joined: Mapping[str, str]) -> Bounds:
    """What the joined requests say about the offset of the engine's clock (:mod:`engine.importers.attach.align`)."""
    rule = client.bundle.identity.value("definitions", "first_token")
    first_is_a_token = rule not in (ROLE_CHUNK, FIRST_CHUNK)
    lower: list[int] = []
    upper: list[int] = []
    for engine_id, client_id in joined.items():
        seen, served = client.requests[client_id], engine.served.get(engine_id)
        taken = engine.facts.get(engine_id, {}).get("received_ns", served and served.first_start_ns)
        sent = seen["dispatched_ns"]
        lower.append(NOTHING if sent is None or taken is None else sent - taken)
        ends: list[tuple[int | None, int | None]] = []
        if served is not None and seen["status"] == "ok":
            ends.append((seen["last_visible_ns"], served.last_end_ns))
            if first_is_a_token:
                ends.append((seen["first_visible_ns"], served.first_token_end_ns))
        most = [visible - made for visible, made in ends if visible is not None and made is not None]
        upper.append(min(most, default=NOTHING))
    return Bounds(np.array(lower, np.int64), np.array(upper, np.int64))


def filled(
    client: ClientSide, engine: EngineSide, joined: Mapping[str, str], offset_ns: int
) -> Iterator[pa.RecordBatch]:
    """The rows of the requests with what the engine knows of them, where the client does not."""
    by_client = {client_id: engine_id for engine_id, client_id in joined.items()}
    for batch in batches(client.bundle, "requests"):
        names = batch.column("request_id").to_pylist()
        facts = [_facts(client, engine, by_client.get(name), name, offset_ns) for name in names]
        for name in _FILLED:
            type_ = TABLES["requests"].schema.field(name).type
            place = batch.schema.get_field_index(name)
            old = batch.column(place).to_pylist() if place >= 0 else [None] * batch.num_rows
            new = [fact.get(name) if value is None else value for value, fact in zip(old, facts, strict=True)]
            array = pa.array(new, type_.value_type if pa.types.is_dictionary(type_) else type_)
            batch = batch.set_column(place, name, array) if place >= 0 else batch.append_column(name, array)
        yield batch


def whole(client: ClientSide, engine: EngineSide, engine_id: str, client_id: str, offset_ns: int) -> bool:
    """Whether the streams show a request from its beginning: its arrival, or its first token, or they ran before it."""
    if "received_ns" in engine.facts.get(engine_id, {}):
        return True
    served, sent = engine.served.get(engine_id), client.requests[client_id]["dispatched_ns"]
    from_zero = served is not None and served.cached_tokens == 0
    return from_zero or (sent is not None and sent >= engine.first_ns + offset_ns)


def _facts(
    client: ClientSide, engine: EngineSide, engine_id: str | None, client_id: str, offset_ns: int
) -> dict[str, Any]:
    if engine_id is None:
        return {}
    known = engine.facts.get(engine_id, {})
    served = engine.served.get(engine_id)
    facts = {name: known[name] + offset_ns if time else known[name] for name, time in _FILLED.items() if name in known}
    if served is not None and whole(client, engine, engine_id, client_id, offset_ns):
        facts.setdefault("first_admit_ns", served.first_start_ns + offset_ns)
        facts.setdefault("cached_tokens", served.cached_tokens)
        facts.setdefault("recomputed_tokens", served.recomputed_tokens)
        facts.setdefault("worker_id", served.worker_id)
        facts.setdefault("dp_rank", served.dp_rank)
    return facts
