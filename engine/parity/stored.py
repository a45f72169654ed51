"""What the recorded stores of blocks tell about contents that the client did not record."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from engine.serving.contract import ServerConfig
from engine.serving.members import Members


class StoredBlocks:
    """Which block of which request each recorded store is, and how a block of unknown content is named.

    The engine stores the blocks of a batch in its order, so that the n-th stored block is the n-th block that the
    members of the passes filled.
    """

    def __init__(self, events: pa.Table, batches: Members, config: ServerConfig) -> None:
        self._parent: dict[int, int | None] = {}
        self._content: dict[int, int] = {}
        hashes = self._learn(events)
        first = batches.computed_before // config.block_size
        filled = (batches.computed_before + batches.scheduled_tokens) // config.block_size - first
        self._hash_at: dict[tuple[int, int], int] = {}
        if config.prefix_caching and filled.sum() == len(hashes):
            request = np.repeat(batches.index, filled).tolist()
            ordinal = np.arange(filled.sum()) - np.repeat(np.cumsum(filled) - filled, filled)
            position = (np.repeat(first, filled) + ordinal).tolist()
            self._hash_at = dict(zip(zip(request, position, strict=True), hashes, strict=True))
        self._first_stored: dict[int, int] = {}
        for owner, at in self._hash_at:
            self._first_stored.setdefault(owner, at)

    def _learn(self, events: pa.Table) -> list[int]:
        stored: list[int] = []
        for event in events.select(["kind", "block_hashes", "content_hashes", "parent_hash"]).to_pylist():
            if event["kind"] != "store":
                continue
            parent = event["parent_hash"]
            blocks = event["block_hashes"] or []
            contents = event["content_hashes"] or [None] * len(blocks)
            for block, content in zip(blocks, contents, strict=True):
                self._parent[block] = parent
                if content is not None:
                    self._content[block] = content
                parent = block
            stored += blocks
        return stored

    def continue_keys(self, request: int, given: list[Any]) -> list[Any]:
        """The content of a request's blocks by position: as given and, past that, as the engine stored them."""
        keys = list(given)
        if not keys and request in self._first_stored:
            keys = self._ancestors(request, self._first_stored[request])
        while (block := self._hash_at.get((request, len(keys)))) is not None:
            keys.append(self._name(block))
        return keys

    def _ancestors(self, request: int, position: int) -> list[Any]:
        """Names of the blocks that a request hit before the first that it stored; empty if they are not recorded."""
        chain: list[Any] = []
        block: int | None = self._hash_at[request, position]
        while (block := self._parent.get(block) if block is not None else None) is not None:
            chain.append(self._name(block))
        return chain[::-1] if len(chain) == position else []

    def _name(self, block: int) -> Any:
        return self._content.get(block, ("engine", block))
