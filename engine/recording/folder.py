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
    _write_identity(folder, {"schema": RUN_SCHEMA, "recorded": "client", **identity})


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
