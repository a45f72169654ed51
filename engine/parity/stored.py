"""What the recorded stores of blocks tell about contents that the client did not record."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import pyarrow as pa

from engine.serving.contract import ServerConfig
from engine.serving.members import Members


class StoredBlocks:
    """The engine's hash of each block of each request, as far as its stores tell.

    The engine stores the blocks of a batch in its order, so that the n-th stored block is the n-th block that the
    members of the passes filled; and a store names the block before it, so that a request's hits are known too once
    it stored a block after them. ``request`` is the number that the members of the passes use.
    """

    def __init__(self, events: pa.Table, batches: Members, config: ServerConfig) -> None:
        self._parent: dict[int, int | None] = {}
        self._name: dict[int, Hashable] = {}
        self._hashes: dict[int, dict[int, int]] = {}
        stored = self._read(events)
        first = batches.computed_before // config.block_size
        filled = (batches.computed_before + batches.scheduled_tokens) // config.block_size - first
        if config.prefix_caching and filled.sum() == len(stored):
            owner = np.repeat(batches.index, filled).tolist()
            ordinal = np.arange(filled.sum()) - np.repeat(np.cumsum(filled) - filled, filled)
            position = (np.repeat(first, filled) + ordinal).tolist()
            for request, at, block in zip(owner, position, stored, strict=True):
                self._hashes.setdefault(request, {})[at] = block
        for hashes in self._hashes.values():
            self._add_ancestors(hashes)

    def _read(self, events: pa.Table) -> list[int]:
        stored: list[int] = []
        for event in events.select(["kind", "block_hashes", "content_hashes", "parent_hash"]).to_pylist():
            if event["kind"] != "store":
                continue
            parent = event["parent_hash"]
            blocks = event["block_hashes"] or []
            for block, content in zip(blocks, event["content_hashes"] or [None] * len(blocks), strict=True):
                self._parent[block] = parent
                if content is not None:
                    self._name[block] = content
                parent = block
            stored += blocks
        return stored

    def _add_ancestors(self, hashes: dict[int, int]) -> None:
        position = min(hashes)
        block: int | None = hashes[position]
        while position > 0 and block is not None and (block := self._parent.get(block)) is not None:
            position -= 1
            hashes[position] = block

    def learn(self, request: int, keys: list[Any]) -> None:
        """Take note that the contents of a request's blocks are known by these names."""
        for position, block in self._hashes.get(request, {}).items():
            if position < len(keys):
                self._name.setdefault(block, keys[position])

    def hash_of(self, request: int, position: int) -> int | None:
        """The engine's hash of a block of a request; None where nothing tells it."""
        return self._hashes.get(request, {}).get(position)

    def continued(self, request: int, keys: list[Any]) -> list[Any]:
        """``keys`` and, past them, the contents of the request's further blocks as far as they are known."""
        names = list(keys)
        while (block := self.hash_of(request, len(names))) is not None:
            names.append(self._name.get(block, ("engine", block)))
        return names
