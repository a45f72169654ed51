"""KV blocks in host memory: what requests computed is kept there after the GPU lost it, and loaded instead of computed.

As in vLLM's offloading connector and in SGLang's hierarchical cache with their default of writing through: every full
block has a copy on the host, the host forgets what was used least recently, and a copy stays when it is loaded. Nobody
needs the copy of a block that a running request holds, so it is made when the request lets go of the block.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from engine.serving.contract import HostMemory

OFFLOAD, FORGET = 0, 1
"""``kind`` of an event of the host tier: blocks were copied to the host, or the host took them for others."""

_COLUMNS = ("kind", "pass_index", "index", "first_key", "num_keys")


class HostTier:
    """At most ``memory.blocks`` blocks, named by their content keys; the least recently used goes first.

    ``pass_index`` is the pass that was scheduled last. ``record`` says whether :meth:`record` is to have what happened.
    """

    def __init__(self, memory: HostMemory, record: bool) -> None:
        self.memory = memory
        self.pass_index = -1
        self._held: OrderedDict[int, None] = OrderedDict()
        self._record = record
        self._events: list[int] = []
        self._event_keys: list[int] = []

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: int) -> bool:
        return key in self._held

    def reach(self, keys: Iterable[int]) -> int:
        """How many of ``keys``, from the first on, are held without a gap."""
        held, count = self._held, 0
        for key in keys:
            if key not in held:
                break
            count += 1
        return count

    def use(self, keys: Sequence[int]) -> None:
        """A request loads these blocks of its own, all held, in the order of its tokens."""
        move = self._held.move_to_end
        for key in reversed(keys):
            move(key)

    def keep(self, keys: Sequence[int], index: int) -> None:
        """Request ``index`` lets go of its blocks with content, in the order of its tokens: they count as used.

        The last goes first, so that a prefix outlives what was built on it. What was not held is copied.
        """
        held, room = self._held, self.memory.blocks
        copied: list[int] = []
        for key in reversed(keys):
            if key in held:
                held.move_to_end(key)
                continue
            held[key] = None
            copied.append(key)
        lost = [held.popitem(last=False)[0] for _ in range(len(held) - room)]
        if self._record:
            for kind, moved in ((OFFLOAD, copied), (FORGET, lost)):
                if moved:
                    self._events += (kind, self.pass_index, index, len(self._event_keys), len(moved))
                    self._event_keys += moved

    def record(self) -> dict[str, Any]:
        """``host_events`` and ``host_keys`` of a :class:`~engine.serving.contract.ServerRecord`, where wanted."""
        if not self._record:
            return {}
        rows = np.array(self._events, np.int64).reshape(-1, len(_COLUMNS))
        events = {name: np.ascontiguousarray(rows[:, at]) for at, name in enumerate(_COLUMNS)}
        return {"host_events": events, "host_keys": np.array(self._event_keys, np.int64)}
