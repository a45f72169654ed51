"""A recording as a folder of files, in the format that the importer of recordings reads."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from engine.errors import GapscopeError
from engine.importers.recording.files import RUN_SCHEMA, SWEEP_SCHEMA
from engine.importers.recording.mending import was_killed, with_end
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
    with _refusing(folder):
        _sort_requests(folder / REQUESTS)
    _write_identity(folder, _client_half(identity))


def _sort_requests(path: Path) -> None:
    """Sort the rows by when they were sent; in memory are their places alone."""
    places: list[tuple[float, int, int]] = []
    beside = path.with_suffix(".sorted")  # so that the rows are there at every moment
    with path.open("rb") as file, beside.open("wb") as out:
        start = 0
        for line in file:
            if line.endswith(b"\n"):
                places.append((orjson.loads(line)["dispatch_s"], start, len(line)))
            start += len(line)
        for _, start, size in sorted(places):
            file.seek(start)
            out.write(file.read(size))
    beside.replace(path)


def mend_client_half(folder: Path) -> None:
    """Give a recording whose program was killed its end: that of the last request which was over.

    Raises:
        GapscopeError: the folder cannot be written, or no request was over.
    """
    identity = read_identity(folder)
    if not was_killed(identity):
        return
    with _refusing(folder):
        _sort_requests(folder / REQUESTS)
        with (folder / REQUESTS).open("rb") as file:
            last_s = max((orjson.loads(line)["end_s"] for line in file), default=None)
    if last_s is None:
        raise GapscopeError(f"{folder} has no request that was over: there is nothing to lay rows under.")
    _write_identity(folder, with_end(identity, last_s))


def holds_requests(folder: Path) -> bool:
    """Whether a folder has rows of requests that a run can be made of."""
    path = folder / REQUESTS
    return (folder / IDENTITY).is_file() and path.is_file() and path.stat().st_size > 0


def _client_half(identity: Mapping[str, Any]) -> dict[str, Any]:
    return {"schema": RUN_SCHEMA, "recorded": "client", **identity}


def lay_server_half(folder: Path, half: ServerHalf, facts: Mapping[str, Any]) -> None:
    """Lay the server's rows beside the client's; ``facts`` is what the server told of itself, for the identity.

    Raises:
        GapscopeError: the folder cannot be written, or holds no recording.
    """
    identity = read_identity(folder)
    kept = {"lost": half.lost, "unsure": half.unsure}
    try:
        write_passes(folder, half.meta, half.passes)
        if half.events is not None:
            _write(folder, EVENTS, gzip.compress(_lines(half.events), mtime=0))
        _write_identity(folder, {**identity, **facts, "recorded": "both", "server_rows": kept})
    except BaseException:  # passes without what their scheduler says of itself are no half
        for name in (PASSES, EVENTS):
            (folder / name).unlink(missing_ok=True)
        raise


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
    with _refusing(folder):
        for name in (REQUESTS, SHAPES, PASSES, EVENTS):
            path = folder / name
            if path.exists():
                with path.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                files[name] = {"sha256": digest, "bytes": path.stat().st_size}
    _write(folder, IDENTITY, json.dumps({**identity, "files": files}, indent=1).encode())


def _lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(orjson.dumps(row) + b"\n" for row in rows)


def _write(folder: Path, name: str, data: bytes) -> None:
    """Write a file whole, or leave the one that is there."""
    beside = folder / f"{name}.new"
    with _refusing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            beside.write_bytes(data)
            beside.replace(folder / name)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise


@contextmanager
def _refusing(folder: Path) -> Iterator[None]:
    """What the disk does not take or give, as one sentence."""
    try:
        yield
    except OSError as error:
        raise GapscopeError(f"The recording cannot be written to {folder}: {error.strerror or error}.") from error
