"""Records the KV events that vLLM publishes (--kv-events-config, publisher zmq), and asks again for what is missing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.importers.kv_events.events import block_hash
from engine.importers.messages import one_message
from engine.recording.server.listener import Listener, Malformed

_REPLAY_S = 5.0
_END = (-1).to_bytes(8, "big", signed=True)
_STORED = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium")
_SAID = ("token_ids", "block_size", "session_id", "medium", "lora_name", "group_idx")


class KvEventRecorder(Listener):
    """Writes one row per batch of events, hashes as 16 hex digits.

    vLLM binds its endpoint where that has a wildcard, and connects to any other: then this side has to bind
    (``bind=True``). ``replay`` is the address of vLLM's replay socket (``replay_endpoint``).
    """

    def __init__(
        self, endpoint: str, path: Path, topic: str = "", bind: bool | None = None, replay: str | None = None
    ) -> None:
        super().__init__(endpoint, path, topic, bind)
        self._replay = replay

    def decode(self, payload: bytes, seq: int, received_ns: int) -> tuple[int, dict[str, Any], int]:
        """The rank, the row, and the number of events of a batch ``[time, events, rank]``."""
        try:
            batch = one_message(payload)
        except ValueError as error:
            raise Malformed(f"number {seq}: {error}") from error
        if not isinstance(batch, list) or len(batch) < 2 or not isinstance(batch[1], list):
            raise Malformed(f"number {seq} is no batch [time, events, rank]")
        rank = batch[2] if len(batch) > 2 and isinstance(batch[2], int) else 0
        events = [_event(event, seq) for event in batch[1]]
        row = {"seq": seq, "dp_rank": rank, "ts": batch[0], "received_ns": received_ns, "replayed": False}
        return rank, {**row, "events": events}, len(events)

    def missed(self, stream: Any, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """What vLLM's replay socket still has of these batches."""
        if self._replay is None:
            return
        import zmq

        socket: Any = zmq.Context.instance().socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        deadline = time.monotonic() + _REPLAY_S
        try:
            socket.connect(self._replay)
            socket.send_multipart([b"", first.to_bytes(8, "big")])
            while socket.poll(max(0, int(1000 * (deadline - time.monotonic())))):
                number, payload = socket.recv_multipart()[-2:]
                seq = int.from_bytes(number, "big")
                if number == _END or seq > last:
                    return
                yield seq, payload
        finally:
            socket.close()


def _event(event: Any, seq: int) -> dict[str, Any]:
    """An event by name or by position."""
    if isinstance(event, list) and event:
        names = _STORED if event[0] == "BlockStored" else ("block_hashes", "medium")
        event = {"type": event[0], **dict(zip(names, event[1:], strict=False))}
    kind = event.get("type") if isinstance(event, dict) else event
    if kind not in ("BlockStored", "BlockRemoved", "AllBlocksCleared"):
        raise Malformed(f"number {seq} holds {kind!r:.60}, which is no event of KV blocks")
    row: dict[str, Any] = {"type": event["type"]}
    if event["type"] == "AllBlocksCleared":
        return row
    try:
        row["block_hashes"] = [_hex(value) for value in event["block_hashes"]]
        if event["type"] == "BlockStored":
            parent = event["parent_block_hash"]
            row["parent_block_hash"] = None if parent is None else _hex(parent)
    except (KeyError, TypeError, ValueError) as error:
        raise Malformed(f"number {seq} holds an event without its block hashes ({error})") from error
    return row | {name: event[name] for name in _SAID if name in event}


def _hex(value: Any) -> str:
    return f"{block_hash(value):016x}"
