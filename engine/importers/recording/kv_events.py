"""Cache events: the engine's stores, evictions and clears, and the hits, preemptions and readmissions of the passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.importers.recording.content import Contents
from engine.importers.recording.files import Recording
from engine.importers.recording.history import History
from engine.importers.recording.tables import Rows
from engine.traces.content import ROOT_KEY, block_key, token_ids


@dataclass
class CacheEvents:
    """Rows of the ``kv_events`` table, and how well the engine's events agree with everything else."""

    rows: Rows
    stored_blocks: int = 0
    unjoined: int = 0
    """Engine events that no pass published."""
    foreign: int = 0
    """Stored blocks whose tokens are not those that their request has at that point."""
    unnamed_hits: int = 0
    """Admissions that hit blocks which no recorded event stored."""
    untold_blocks: int = 0
    untold_hits: int = 0
    """Stored blocks and admissions with hits of requests whose prompts nobody can rebuild: nothing is known of them."""


def cache_events(recording: Recording, seen: Mapping[str, History], contents: Contents) -> CacheEvents:
    """All cache events in order of time.

    Hits, readmissions and preemptions happen when the pass is scheduled (its start); the engine publishes stores and
    evictions at the end of the pass, on another clock, so among themselves they keep the engine's order.
    """
    names = _Names(recording, contents)
    result = CacheEvents([])
    timed: list[tuple[int, int, dict[str, Any]]] = []
    for event in recording.events or ():
        row = names.engine_row(event, result)
        timed.append((row["time_ns"], 1, row))
        result.unjoined += event["iter"] is None
    for request, history in seen.items():
        for row in _pass_rows(recording, request, history, names, result):
            timed.append((row["time_ns"], 0, row))
    timed.sort(key=lambda item: item[:2])  # stable: within a time, the order in which rows were made
    result.rows = [{"event_index": n, **row} for n, (_, _, row) in enumerate(timed)]
    return result


def _pass_rows(
    recording: Recording, request: str, history: History, names: _Names, result: CacheEvents
) -> list[dict[str, Any]]:
    rows = []
    size = recording.block_size
    assert size is not None  # passes come with the settings of their scheduler
    for admission in history.admissions:
        hits = admission.cached_tokens // size
        if not hits and not admission.again:
            continue
        row = names.request_row(request, hits)
        if request in names.untold:
            result.untold_hits += 1
        elif row["block_hashes"] is None and recording.events is not None:
            result.unnamed_hits += 1
        kind = "readmit" if admission.again else "hit"
        rows.append(
            {**row, "kind": kind, "time_ns": recording.ns(admission.time_s), "pass_index": admission.pass_index}
        )
    for preemption in history.preemptions:
        row = names.request_row(request, preemption.computed_tokens // size)
        row["num_blocks"] = -(-preemption.computed_tokens // size)  # a partly filled block is given up as well
        time_ns = recording.ns(preemption.time_s)
        rows.append({**row, "kind": "preempt", "time_ns": time_ns, "pass_index": preemption.pass_index})
    return rows


class _Names:
    """The two names of a block: the engine's hash and the content key."""

    def __init__(self, recording: Recording, contents: Contents) -> None:
        self._recording = recording
        self.untold = set(contents.unknown)
        """Requests whose content is not known."""
        self._keys = {name: content.keys for name, content in contents.by_request.items()}
        self._key_of: dict[int, int] = {}
        self._hash_of: dict[int, int] = {}
        # The engine may have been further than what arrived, so their last blocks are not known.
        self._cut_short = {r["request_id"] for r in recording.requests if r["status"] != "ok"}
        for event in recording.events or ():
            if event["type"] == "BlockStored":
                self._learn(event)

    def _learn(self, event: Mapping[str, Any]) -> None:
        parent = ROOT_KEY if event["parent"] is None else self._key_of.get(int(event["parent"], 16))
        size = event["block_size"]
        if parent is None or size < 1 or len(event["token_ids"]) != size * len(event["hashes"]):
            return
        ids = token_ids(event["token_ids"])
        for n, text in enumerate(event["hashes"]):
            parent = block_key(parent, ids[n * size : (n + 1) * size])
            self._key_of[int(text, 16)] = parent
            self._hash_of[parent] = int(text, 16)

    def _keys_of(self, hashes: Sequence[int]) -> list[int] | None:
        keys = [self._key_of.get(h) for h in hashes]
        return None if None in keys else [k for k in keys if k is not None]

    def engine_row(self, event: Mapping[str, Any], result: CacheEvents) -> dict[str, Any]:
        """The row of one engine event; counts it in ``result``."""
        row: dict[str, Any] = {"time_ns": self._recording.ns(event["t_s"]), "pass_index": event["iter"]}
        if event["type"] == "AllBlocksCleared":
            return {**row, "kind": "clear", "num_blocks": None, "reason": "clear"}
        hashes = [int(text, 16) for text in event["hashes"]]
        keys = self._keys_of(hashes)
        row |= {"num_blocks": len(hashes), "block_hashes": hashes, "content_hashes": keys}
        if event["type"] == "BlockRemoved":
            return {**row, "kind": "evict"}
        result.stored_blocks += len(hashes)
        known = self._keys.get(event["request_id"] or "")
        if event["request_id"] in self.untold:
            result.untold_blocks += len(hashes)
        elif keys is None or known is None:
            result.foreign += len(hashes)
        elif event["request_id"] not in self._cut_short:
            result.foreign += len(set(keys) - set(known))
        parent = None if event["parent"] is None else int(event["parent"], 16)
        return {**row, "kind": "store", "request_id": event["request_id"], "parent_hash": parent}

    def request_row(self, request: str, blocks: int) -> dict[str, Any]:
        """The first blocks of a request; hashes are None where they are not known."""
        keys = self._keys.get(request, [])
        content = keys[:blocks] if len(keys) >= blocks else None
        hashes = None if content is None else [self._hash_of.get(k) for k in content]
        return {
            "request_id": request,
            "num_blocks": blocks,
            "content_hashes": content,
            "block_hashes": None if hashes is None or None in hashes else hashes,
        }
