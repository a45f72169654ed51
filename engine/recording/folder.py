"""A recording as a folder of files, in the format that the importer of recordings reads."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from engine.errors import GapscopeError
from engine.importers.recording.files import RUN_SCHEMA, SWEEP_SCHEMA
from engine.jsonl import read_object
from engine.recording.joining import Rows, ServerHalf

IDENTITY, REQUESTS, SHAPES = "identity.json", "requests.jsonl", "shapes.jsonl"
PASSES, EVENTS = "fpm.jsonl.gz", "kv_events.jsonl.gz"


def write_client_half(folder: Path, identity: Mapping[str, Any], requests: Rows) -> None:
    """Write what the client recorded.

    Raises:
        GapscopeError: the folder cannot be written.
    """
    _write(folder, REQUESTS, _lines(requests))
    _write_identity(folder, _client_half(identity))


def begin_client_half(folder: Path, identity: Mapping[str, Any]) -> None:
    """Write what is known of a recording whose requests are still to come.

    Raises:
        GapscopeError: the folder cannot be written.
    """
    _write(folder, IDENTITY, json.dumps(_client_half(identity), indent=1).encode())


def finish_client_half(folder: Path, identity: Mapping[str, Any]) -> None:
    """Put the requests of a recording, that were written as they ended, into the order in which they were sent, and
    write its identity. A last row that was cut off is left out.

    Raises:
        GapscopeError: the folder cannot be written.
    """
    path = folder / REQUESTS
    try:
        lines = path.read_bytes().splitlines(keepends=True)
        lines = lines if not lines or lines[-1].endswith(b"\n") else lines[:-1]
        lines.sort(key=lambda line: orjson.loads(line)["dispatch_s"])
        beside = path.with_suffix(".sorted")  # so that the rows are there at every moment
        beside.write_bytes(b"".join(lines))
        beside.replace(path)
    except OSError as error:
        raise GapscopeError(f"The recording cannot be written to {folder}: {error.strerror or error}.") from error
    _write_identity(folder, _client_half(identity))


def mend_client_half(folder: Path) -> None:
    """Give a recording whose program was killed its end: that of the last request which was over.

    Raises:
        GapscopeError: the folder cannot be written, or no request was over.
    """
    identity = read_identity(folder)
    end = identity.get("end")
    if not isinstance(end, dict) or "t_end_s" not in end or end["t_end_s"] is not None:
        return
    finish_client_half(folder, identity)
    ends = [orjson.loads(line)["end_s"] for line in (folder / REQUESTS).read_bytes().splitlines()]
    if not ends:
        raise GapscopeError(f"{folder} has no request that was over: there is nothing to lay rows under.")
    asked, last = identity["phases"], max(ends)
    asked["duration_s"] = asked["duration_s"] or max(0, last - asked["warmup_s"])
    identity["end"] = {**end, "t_stop_s": last, "t_end_s": last}
    _write_identity(folder, identity)


def holds_requests(folder: Path) -> bool:
    """Whether a folder has rows of requests."""
    path = folder / REQUESTS
    return path.is_file() and path.stat().st_size > 0


def _client_half(identity: Mapping[str, Any]) -> dict[str, Any]:
    return {"schema": RUN_SCHEMA, "recorded": "client", **identity}


def lay_server_half(folder: Path, half: ServerHalf, facts: Mapping[str, Any]) -> None:
    """Lay the server's rows beside the client's; ``facts`` is what the server told of itself, for the identity.

    Raises:
        GapscopeError: the folder cannot be written, or holds no recording.
    """
    write_passes(folder, half.meta, half.passes)
    if half.events is not None:
        _write(folder, EVENTS, gzip.compress(_lines(half.events), mtime=0))
    identity = read_identity(folder)
    kept = {"lost": half.lost, "unsure": half.unsure}
    _write_identity(folder, {**identity, **facts, "recorded": "both", "server_rows": kept})


def write_passes(folder: Path, meta: Mapping[str, Any], passes: Rows) -> None:
    """Write the passes behind the row that describes their scheduler.

    Raises:
        GapscopeError: the folder cannot be written.
    """
    _write(folder, PASSES, gzip.compress(_lines([{**meta, "kind": "meta"}, *passes]), mtime=0))


def write_sweep(folder: Path, identity: Mapping[str, Any], meta: Mapping[str, Any], passes: Rows, shapes: Rows) -> None:
    """Write a sweep: its passes and what shapes they were meant to have.

    Raises:
        GapscopeError: the folder cannot be written.
    """
    write_passes(folder, meta, passes)
    _write(folder, SHAPES, _lines(shapes))
    _write_identity(folder, {"schema": SWEEP_SCHEMA, "measured": True, **identity})


def read_identity(folder: Path) -> dict[str, Any]:
    """The identity of the recording in a folder.

    Raises:
        GapscopeError: there is none.
    """
    identity = read_object(folder / IDENTITY)
    if identity.get("schema") != RUN_SCHEMA:
        raise GapscopeError(f"{folder} holds no recording: expected {IDENTITY} with the schema {RUN_SCHEMA}.")
    return identity


def _write_identity(folder: Path, identity: Mapping[str, Any]) -> None:
    """Write the identity with the digests of the files that are there."""
    files = {}
    for name in (REQUESTS, SHAPES, PASSES, EVENTS):
        path = folder / name
        if path.exists():
            files[name] = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "bytes": path.stat().st_size}
    _write(folder, IDENTITY, json.dumps({**identity, "files": files}, indent=1).encode())


def _lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(orjson.dumps(row) + b"\n" for row in rows)


def _write(folder: Path, name: str, data: bytes) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    except OSError as error:
        raise GapscopeError(f"The recording cannot be written to {folder}: {error.strerror or error}.") from error
