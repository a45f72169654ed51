"""Events of vLLM (maps or by position, alone or in batches) and of Dynamo, each as a row of ``kv_events``.

A hash is kept as an unsigned 64-bit number, an integer modulo 2^64: what vLLM makes of its bytes (big end first) where
it publishes integers, so both forms of a hash are one number. Text is hexadecimal or decimal digits. Hashes are equal
only within the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engine.importers.clients.values import count, mapping
from engine.importers.messages import one_message
from engine.intake.rows import number

Row = dict[str, Any]
_STORED = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
)
_REMOVED = ("block_hashes", "medium", "group_idx")
_FIELDS: Mapping[str, Sequence[str]] = {"BlockStored": _STORED, "BlockRemoved": _REMOVED, "AllBlocksCleared": ()}
_KINDS = {"BlockStored": "store", "BlockRemoved": "evict", "AllBlocksCleared": "clear"}
_TIERS = {"gpu": "device", "device": "device", "cpu": "host", "host": "host", "host_pinned": "host"}
_TOLD = ("start", "gap", "restart", "malformed", "end")
_NS_BELOW_S = 1e11
"""An epoch time below this is in seconds, above it in nanoseconds or what lies between."""


def rows_of(message: Any) -> Iterator[Row]:
    """The events of one message.

    Raises:
        ValueError: it holds something else; the reason in words that follow "line 7: ".
    """
    if isinstance(message, bytes):
        message = one_message(message)
    if isinstance(message, dict):
        yield from _of_map(message)
    elif isinstance(message, list):
        yield from _of_list(message)
    else:
        raise ValueError("expected an event or a batch of events")


def told_by_recorder(message: Any) -> int | None:
    """How many messages a row of the project's own recorder says were lost; None of anything else than such a row.

    Between the batches it tells its start, gaps, restarts, malformed frames, and an account at the end.
    """
    if not isinstance(message, dict) or message.get("kind") not in _TOLD:
        return None
    if "type" in message or isinstance(message.get("events"), list):
        return None
    return int(message["got"]) - int(message["expected"]) if message["kind"] == "gap" else 0


def is_events(message: Any) -> bool:
    """Whether a message is of this kind, whatever is wrong with its values."""
    try:
        return next(rows_of(message), None) is not None
    except ValueError:
        return False


def _of_map(message: Mapping[str, Any]) -> Iterator[Row]:
    if "payload" in message:
        yield from rows_of(message["payload"])
    elif isinstance(message.get("events"), list):
        time, rank = _time(message), count(message.get("data_parallel_rank", message.get("dp_rank")))
        for event in message["events"]:
            yield {"time_ns": time, "dp_rank": rank, **_event(event)}
    elif "event" in message and isinstance(message["event"], dict):  # of a recorder, or of a worker
        worker = message.get("worker_id")
        for row in rows_of(message["event"]):
            time = row.get("time_ns") or _time(message)
            yield {**row, "time_ns": time, "worker_id": row.get("worker_id") if worker is None else str(worker)}
    elif "data" in message:
        rank = count(message.get("dp_rank"))
        yield {"time_ns": _time(message), "dp_rank": rank, **_dynamo(message)}
    else:
        rank = count(message.get("data_parallel_rank", message.get("dp_rank")))
        yield {"time_ns": _time(message), "dp_rank": rank, **_event(message)}


def _of_list(message: list[Any]) -> Iterator[Row]:
    """A batch by position ``[time, events, rank]``, the parts of a published message, or one event by position."""
    if len(message) >= 2 and number(message[0]) is not None and isinstance(message[1], list):
        time = _ns(message[0])
        rank = count(message[2]) if len(message) > 2 else None
        for event in message[1]:
            yield {"time_ns": time, "dp_rank": rank, **_event(event)}
    elif len(message) == 3 and isinstance(message[2], bytes):
        yield from rows_of(message[2])
    elif message and isinstance(message[0], str):
        yield {"time_ns": None, "dp_rank": None, **_event(message)}
    else:
        raise ValueError("expected [time, events] or an event by position")


def _event(event: Any) -> Row:
    """One event of vLLM."""
    tag: Any
    if isinstance(event, list) and event and isinstance(event[0], str) and event[0] in _FIELDS:
        tag, given = event[0], dict(zip(_FIELDS[event[0]], event[1:], strict=False))
    elif isinstance(event, dict):
        tag, given = event.get("type", event.get("event_type")), event
    else:
        tag, given = None, {}
    if not isinstance(tag, str) or tag not in _FIELDS:
        raise ValueError(f"{tag!r:.40} is no event: expected {', '.join(_FIELDS)}")
    row: Row = {"kind": _KINDS[tag], "num_blocks": None, "tier": _tier(given.get("medium"))}
    if tag == "AllBlocksCleared":
        return row
    hashes = given.get("block_hashes")
    if not isinstance(hashes, list):
        raise ValueError(f"block_hashes of {tag} is {hashes!r:.40}, expected a list")
    row |= {"block_hashes": [block_hash(value) for value in hashes], "num_blocks": len(hashes)}
    if tag == "BlockStored" and given.get("parent_block_hash") is not None:
        row["parent_hash"] = block_hash(given["parent_block_hash"])
    return row


def _dynamo(message: Mapping[str, Any]) -> Row:
    """One event of Dynamo's router: stored, removed or cleared."""
    data = message["data"]
    row: Row = {"tier": _tier(message.get("tier", message.get("storage_tier"))) or "device"}
    if data == "cleared" or (isinstance(data, dict) and "cleared" in data):
        return {**row, "kind": "clear", "num_blocks": None}
    stored, removed = mapping(mapping(data).get("stored")), mapping(mapping(data).get("removed"))
    if isinstance(stored.get("blocks"), list):
        hashes = [block_hash(mapping(block).get("block_hash")) for block in stored["blocks"]]
        parent = stored.get("parent_hash")
        row |= {"kind": "store", "parent_hash": None if parent is None else block_hash(parent)}
    elif isinstance(removed.get("block_hashes"), list):
        hashes = [block_hash(value) for value in removed["block_hashes"]]
        row["kind"] = "evict"
    else:
        raise ValueError("data holds none of stored, removed and cleared")
    return {**row, "block_hashes": hashes, "num_blocks": len(hashes)}


def block_hash(value: Any) -> int:
    """A producer's hash as an unsigned 64-bit number.

    Raises:
        ValueError: neither an integer, nor bytes, nor digits.
    """
    if type(value) is int:
        return value % 2**64
    if isinstance(value, bytes) and value:
        return int.from_bytes(value[-8:], "big")
    if isinstance(value, str):
        digits = value.removeprefix("0x")
        try:
            whole = int(digits) if digits == value and value.lstrip("-").isdecimal() else int(digits[-16:], 16)
            return whole % 2**64
        except ValueError:
            pass
    raise ValueError(f"{value!r:.40} is no block hash, expected an integer, bytes or digits")


def _tier(medium: Any) -> str | None:
    return _TIERS.get(medium.lower(), medium) if isinstance(medium, str) else None


def _time(message: Mapping[str, Any]) -> int | None:
    return next((_ns(message[name]) for name in ("ts", "timestamp", "received_at_ns", "time") if name in message), None)


def _ns(value: Any) -> int | None:
    """Epoch nanoseconds of a time in seconds, milliseconds, microseconds or nanoseconds, told by its size."""
    found = number(value)
    if found is None or found < 0:
        return None
    if found >= _NS_BELOW_S * 1e6:
        return int(value)
    for scale in (10**9, 10**6, 10**3):
        if found < _NS_BELOW_S * (1e9 / scale):
            whole, rest = divmod(value, 1)  # a product would be a float: off by a hundred nanoseconds
            return int(whole) * scale + round(rest * scale)
    return None
