"""Whether the engine's hashes of KV blocks can be names of their contents.

They are not computed again: how depends on the engine. But whatever it is, one content has one hash, one hash one
content, and what is named as a parent or removed was stored before. A wrong hash of a block that is stored once and
never named again contradicts nothing, and is not found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engine.bundle import Check
from engine.importers.recording.files import Recording
from engine.importers.recording.verdict import verdict
from engine.traces.content import ROOT_KEY, block_key, token_ids


def hashes_name_contents(recording: Recording) -> Check:
    """The check ``kv_hash_content`` over all stored and removed blocks, contents being chains of tokens."""
    events = recording.events or []
    cleared = recording.identity.get("phases", {}).get("prefix_cache_reset") is True
    cleared |= bool(events) and events[0]["type"] == "AllBlocksCleared"
    return verdict(
        "kv_hash_content",
        list(_contradictions(events, cleared)),
        sum(len(event.get("hashes", ())) for event in events),
        "stored and removed blocks have one hash for each content (parents and tokens) and one content for each hash",
        "stored and removed blocks contradict the others",
    )


def _contradictions(events: Sequence[Mapping[str, Any]], cleared: bool) -> Iterator[str]:
    """What is wrong, a sentence for each block. ``cleared``: no block was held before the first event."""
    key_of: dict[str, int] = {}
    hash_of: dict[int, str] = {}
    # What was held before may have any hash, and so may what follows it.
    for event in events:
        if event["type"] == "BlockRemoved" and cleared:
            yield from (f"{name} is removed, but was never stored" for name in event["hashes"] if name not in key_of)
        if event["type"] != "BlockStored":
            continue
        size, ids = event["block_size"], token_ids(event["token_ids"])
        if len(ids) != size * len(event["hashes"]):
            yield f"{event['hashes'][:1]} has {len(ids)} tokens for {len(event['hashes'])} blocks of {size}"
            continue
        parent = ROOT_KEY if event["parent"] is None else key_of.get(event["parent"])
        if parent is None:
            if cleared:
                yield f"{event['parent']} is named as a parent, but was never stored"
            continue
        for n, name in enumerate(event["hashes"]):
            parent = block_key(parent, ids[n * size : (n + 1) * size])
            if hash_of.setdefault(parent, name) != name:
                yield f"{name} holds what {hash_of[parent]} holds"
            elif key_of.get(name, parent) != parent:
                yield f"{name} is stored with two contents"
            key_of.setdefault(name, parent)
