"""The server's half of a recording: passes and KV events, in the columns, ids and time of the client's half."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from engine.errors import GapscopeError
from engine.importers.attach.ids import match
from engine.recording.clocks import ServerClock
from engine.recording.rows import Series

Rows = list[dict[str, Any]]
_CALLS = ("iter", "empty")
_TIMES = ("t_start", "t_sched_end", "t_output", "t_end")
_DROPPED = {"kind", "iter", "ts", "arrivals", "finished", "finished_before", "preempted", "reqs", "dp_rank"}
_DROPPED |= {f"{name}_ns" for name in _TIMES}
_META_DROPPED = ("part", "first_iter", "deleted_parts", "deleted_bytes", "pid", "boot_id", "mono_ns", "wall_ns", "ts")


@dataclass
class ServerHalf:
    """Rows of ``fpm.jsonl.gz`` and ``kv_events.jsonl.gz``; ``lost`` are sentences on what is missing, ``unsure`` on
    what may be."""

    meta: dict[str, Any]
    passes: Rows
    events: Rows | None = None
    lost: list[str] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)


def names_of(series: Sequence[Series], client_ids: Collection[str]) -> Callable[[str], str]:
    """The client's id for an engine's; an id that the client does not know stays as it is."""
    known = match((name for one in series for row in one.rows for name in _ids_of(row)), client_ids)
    return lambda engine_id: known.get(engine_id, engine_id)


def _ids_of(row: Mapping[str, Any]) -> Iterator[str]:
    for name in ("arrivals", "reqs", "finished", "finished_before"):
        yield from (entry[0] for entry in row.get(name, ()))


def server_half(
    series: Sequence[Series],
    clocks: Sequence[ServerClock],
    client_ids: Collection[str],
    started_ns: int,
    ended_ns: int,
    events: Sequence[Path] = (),
) -> ServerHalf:
    """What the server did between start and end of a load (on the client's monotonic clock), in seconds from its start.

    ``clocks`` are those of ``series``, one for each rank. ``events`` are the files of KV-event recorders.

    Raises:
        GapscopeError: the engine schedules ahead, so nobody recorded its batches; or a file cannot be read.
    """
    for one in series:
        require_batches(one)
    names, several = names_of(series, client_ids), len(series) > 1
    passes: Rows = []
    places: dict[tuple[int, int], dict[str, Any]] = {}  # by rank and number of a batch of KV events
    for one, clock in zip(series, clocks, strict=True):
        for row in one.rows:
            at = clock.client_ns(row["t_start_ns"] if row["kind"] in _CALLS else row["mono_ns"])
            if row["kind"] in _CALLS and started_ns <= at <= ended_ns:
                made = _pass(row, clock, started_ns, names)
                if several:
                    made["dp_rank"] = one.dp_rank
                passes.append(made)
                if row["kv_event_seq"] is not None:
                    places[one.dp_rank, row["kv_event_seq"]] = made
    passes.sort(key=lambda row: (row["t_start_s"], row.get("dp_rank", 0)))
    for number, row in enumerate(passes):
        row["iter"] = number
    meta = {name: value for name, value in series[0].meta.items() if name not in _META_DROPPED}
    half = ServerHalf(meta, passes, lost=[sentence for one in series for sentence in one.lost])
    by_rank = {one.dp_rank: clock for one, clock in zip(series, clocks, strict=True)}
    for path in events:
        half.events = half.events or []
        for batch in _batches(path, half.lost):
            half.events += _events(batch, by_rank, places, set(client_ids), started_ns, ended_ns)
    return half


def require_batches(series: Series) -> None:
    """Make sure that a recorder could tell who was in which batch.

    Raises:
        GapscopeError: the engine schedules ahead.
    """
    if not series.meta["exact_batches"]:
        raise GapscopeError(
            f"The server's recorder cannot tell the batches of rank {series.dp_rank}: "
            f"{'; '.join(series.meta['notes'])} Start the engine without asynchronous scheduling, or record without "
            "--rows and lay its aggregates under the run with `gapscope attach`."
        )


def _pass(row: Mapping[str, Any], clock: ServerClock, started_ns: int, names: Callable[[str], str]) -> dict[str, Any]:
    def s(server_ns: int) -> float:
        return round((clock.client_ns(server_ns) - started_ns) / 1e9, 6)

    return {
        "kind": row["kind"],
        "iter": None,
        "engine_iter": row["iter"],
        **{f"{name}_s": s(row[f"{name}_ns"]) for name in _TIMES},
        **{name: value for name, value in row.items() if name not in _DROPPED},
        "preempted": [names(name) for name in row["preempted"]],
        "reqs": [[names(name), *rest] for name, *rest in row["reqs"]],
        "arrivals": [[names(name), s(at), *rest] for name, at, *rest in row["arrivals"]],
        "finished": [[names(name), *rest, s(at)] for name, *rest, at in row["finished"]],
        "finished_before": [[names(name), *rest, s(at)] for name, *rest, at in row["finished_before"]],
    }


def _batches(path: Path, lost: list[str]) -> Iterator[dict[str, Any]]:
    """Batches of KV events; what is missing of them goes into ``lost``."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise GapscopeError(f"{path} cannot be read: {error.strerror or error}.") from error
    for number, line in enumerate(lines, 1):
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            lost.append(f"line {number} of the KV events is cut off")
            continue
        if row.get("kind") == "gap":
            lost.append(f"KV events: batches {row['expected']:,} to {row['got'] - 1:,} are missing")
        elif row.get("kind") in ("restart", "malformed"):
            lost.append(f"KV events, line {number}: {row['kind']}")
        elif "seq" in row and "events" in row:
            yield row


def _events(
    batch: Mapping[str, Any],
    clocks: Mapping[int, ServerClock],
    places: Mapping[tuple[int, int], Mapping[str, Any]],
    client_ids: set[str],
    started_ns: int,
    ended_ns: int,
) -> Iterator[dict[str, Any]]:
    rank = batch.get("dp_rank") or 0
    clock = clocks.get(rank)
    place = places.get((rank, batch["seq"]))
    if clock is None:
        return
    at = clock.of_wall(batch["ts"])
    if place is None and not started_ns <= at <= ended_ns:
        return
    members = {name for name, *_ in place["reqs"]} if place else set()
    for number, event in enumerate(batch["events"]):
        made: dict[str, Any] = {
            "t_s": round((at - started_ns) / 1e9, 6),
            "seq": batch["seq"],
            "n": number,
            "iter": place["iter"] if place else None,
            "type": event["type"],
        }
        if event["type"] != "AllBlocksCleared":
            made["hashes"] = event["block_hashes"]
        if event["type"] == "BlockStored":
            session = event.get("session_id")  # the client names its requests so
            owner = session if session in members or session in client_ids else None
            made |= {
                "request_id": owner,
                "parent": event["parent_block_hash"],
                "block_size": event["block_size"],
                "token_ids": event["token_ids"],
            }
        yield made
