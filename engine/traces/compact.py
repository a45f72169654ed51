"""Traces as small Parquet files: the whole session tree, content names in place of token ids.

One row per turn, in the order of plays, conversations and turns; the trace's identity is in the file's metadata.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from engine.errors import GapscopeError
from engine.traces.files import Head
from engine.traces.tree import Conversation, Play, Segment, Trace, Turn

NAME = "the compact Parquet form of a recording's trace"
SCHEMA = "gapscope-trace/1"
_KEY = b"gapscope.trace"
_COLUMNS = pa.schema(
    [
        ("play", pa.int64()),
        ("source_trace_id", pa.string()),
        ("arrival_ns", pa.int64()),
        ("conversation_id", pa.string()),
        ("parent", pa.string()),
        ("after_turn", pa.int64()),
        ("mode", pa.string()),
        ("depth", pa.int64()),
        ("output_tokens", pa.int64()),
        ("think_ns", pa.int64()),
        ("new_content", pa.list_(pa.string())),
        ("new_tokens", pa.list_(pa.int64())),
        ("spawn", pa.list_(pa.string())),
        ("prompt_tokens", pa.int64()),
        ("hash_ids", pa.list_(pa.int64())),
    ]
)


def compact_name(trace: Trace) -> str:
    """File name of the compact form: the trace's name and the first 12 hex digits of its digest."""
    return f"{trace.name}-{trace.digest[:12]}.parquet"


def write_compact(trace: Trace, path: Path) -> None:
    """Write ``trace`` to ``path`` in one step: a crash leaves either the old file or the new one.

    Raises:
        GapscopeError: the file cannot be written, or the trace says edge by edge what turns wait for.
    """
    turns = (turn for play in trace.plays for talk in play.conversations for turn in talk.turns)
    if any(turn.edges is not None or turn.not_before_ns is not None for turn in turns):
        raise GapscopeError(
            f"The trace {trace.name} names what its turns wait for, which the compact form cannot hold: keep its file."
        )
    rows = [
        {
            "play": number,
            "source_trace_id": play.source_trace_id,
            "arrival_ns": play.arrival_ns,
            "conversation_id": talk.conversation_id,
            "parent": talk.parent,
            "after_turn": talk.after_turn,
            "mode": talk.mode,
            "depth": talk.depth,
            "output_tokens": turn.output_tokens,
            "think_ns": turn.think_ns,
            "new_content": [s.content for s in turn.new_input],
            "new_tokens": [s.tokens for s in turn.new_input],
            "spawn": list(turn.spawn),
            "prompt_tokens": turn.prompt_tokens,
            "hash_ids": None if turn.hash_ids is None else list(turn.hash_ids),
        }
        for number, play in enumerate(trace.plays)
        for talk in play.conversations
        for turn in talk.turns
    ]
    head = {
        "schema": SCHEMA,
        "name": trace.name,
        "format": trace.format,
        "digest": trace.digest,
        "hash_block_tokens": trace.hash_block_tokens,
        "notes": trace.notes,
        "content": _content(rows),
    }
    table = pa.Table.from_pylist(rows, _COLUMNS).replace_schema_metadata({_KEY: json.dumps(head, sort_keys=True)})
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, draft, compression="zstd", compression_level=9)
        os.replace(draft, path)
    except OSError as error:
        raise GapscopeError(f"Cannot write the compact trace {path}: {error.strerror or error}.") from error
    finally:
        with suppress(OSError):
            draft.unlink()


def looks_like(head: Head) -> bool:
    """Whether a file that begins like this is a Parquet file, which only a compact trace may be."""
    return head.line[:4] == b"PAR1"


def read(path: Path, _data: bytes) -> Trace:
    """See :func:`read_compact`."""
    return read_compact(path)


def is_compact(path: Path) -> bool:
    """Whether ``path`` is a compact trace (a Parquet file that says so)."""
    return _head(path) is not None


def read_compact(path: Path) -> Trace:
    """The trace that :func:`write_compact` was given.

    Raises:
        GapscopeError: not a compact trace, one that does not hold together, or altered since it was written.
    """
    head = _head(path)
    if head is None:
        raise GapscopeError(f"{path} is not a compact trace: expected a Parquet file with the metadata {SCHEMA}.")
    try:
        rows = pq.read_table(path, columns=_COLUMNS.names).cast(_COLUMNS).to_pylist()
        plays = _plays(rows)
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError) as error:
        raise GapscopeError(f"The compact trace {path} is damaged ({error}): write it anew from its source.") from error
    if _content(rows) != head.get("content"):
        raise GapscopeError(
            f"The compact trace {path} was altered after it was written: write it anew from its source."
        )
    return Trace(
        name=head["name"],
        format=head["format"],
        digest=head["digest"],
        plays=plays,
        hash_block_tokens=head["hash_block_tokens"],
        notes=head["notes"],
    )


def _content(rows: list[dict[str, Any]]) -> str:
    """The SHA-256 over the values of all rows, which the digest of the source file cannot vouch for."""
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()


def _plays(rows: list[dict[str, Any]]) -> list[Play]:
    plays: list[Play] = []
    number = None
    for row in rows:
        if row["play"] != number:
            number = row["play"]
            plays.append(Play(row["source_trace_id"], [], row["arrival_ns"]))
        talks = plays[-1].conversations
        if not talks or talks[-1].conversation_id != row["conversation_id"]:
            talks.append(
                Conversation(
                    row["conversation_id"],
                    [],
                    parent=row["parent"],
                    after_turn=row["after_turn"],
                    mode=row["mode"],
                    depth=row["depth"],
                )
            )
        talks[-1].turns.append(
            Turn(
                output_tokens=row["output_tokens"],
                think_ns=row["think_ns"],
                new_input=tuple(map(Segment, row["new_content"], row["new_tokens"])),
                spawn=tuple(row["spawn"]),
                prompt_tokens=row["prompt_tokens"],
                hash_ids=None if row["hash_ids"] is None else tuple(row["hash_ids"]),
            )
        )
    return plays


def _head(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as file:
            if file.read(4) != b"PAR1":
                return None
        metadata = pq.read_schema(path).metadata or {}
        head = json.loads(metadata[_KEY])
    except (OSError, KeyError, ValueError, pa.ArrowException):
        return None
    return head if isinstance(head, dict) and head.get("schema") == SCHEMA else None
