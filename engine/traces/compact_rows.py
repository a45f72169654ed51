"""Compact traces as they were first written, with hash ids in full. They are only read, for stores that have them."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pyarrow as pa

from engine.traces.tree import Conversation, Play, Segment, Turn

SCHEMA = "gapscope-trace/1"
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


def plays_and_content(table: pa.Table) -> tuple[list[Play], str]:
    """The plays of a table, and the SHA-256 over its values.

    Raises:
        KeyError, TypeError, ValueError, pa.ArrowException: rows that are no trace.
    """
    rows = table.select(_COLUMNS.names).cast(_COLUMNS).to_pylist()
    return _plays(rows), hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()


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
