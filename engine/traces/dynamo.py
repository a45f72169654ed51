"""Request traces of NVIDIA Dynamo (``dynamo.request.trace.v1``), as JSON Lines, one record of the frontend each.

A ``request_end`` tells when a request arrived and ended, its tokens and the hashes of the blocks of its prompt, which
are chained; its ``agent_context`` names its session and that session's parent. ``tool_end`` and ``tool_error`` tell
what agents did between requests; of them only the launch and the join of child sessions are used, since the times of
the requests already hold how long tools took. Other records are passed over. How requests become plays is said in
:mod:`engine.traces.dynamo_graph`.
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

from engine.collector import collector_paused
from engine.errors import GapscopeError
from engine.jsonl import NUMBER, OBJECT, TEXT, Spec, Type, list_of, problem_of
from engine.traces.dynamo_graph import Launch, Request, plays_of
from engine.traces.fields import LENGTH, OUTPUT, sampled
from engine.traces.files import Head, name_of, place, rows
from engine.traces.tree import Trace

NAME = "Dynamo request trace"
SCHEMA = "dynamo.request.trace.v1"
_TOOLS = ("tool_end", "tool_error")

_TIME = Type("a number from 0 to 9e12", lambda v: NUMBER.accepts(v) and 0 <= v <= 9e12)  # ms of this era that fit as ns
_HASHES = list_of(Type("a whole number of 64 bits", lambda v: type(v) is int and -(1 << 63) <= v < 1 << 64))
_RECORD: Spec = {"schema": TEXT, "event_type": TEXT, "event_time_unix_ms": _TIME, "request": OBJECT}
_REQUEST: Spec = {"request_id": TEXT, "output_tokens": OUTPUT, "replay": OBJECT}
_REPLAY: Spec = {"trace_block_size": LENGTH, "input_length": LENGTH, "input_sequence_hashes": _HASHES}


def looks_like(head: Head) -> bool:
    """Whether a file that begins like this is a trace of Dynamo; writers put each record into an ``event`` or not."""
    record = _record(head.row)
    return isinstance(record, dict) and record.get("schema") == SCHEMA


@collector_paused()
def read(path: Path, data: bytes) -> Trace:
    """The trace in ``data``.

    Raises:
        GapscopeError: a record that lacks a field, named by its line; records of another schema or block size; only
            some requests with a session; or none at all.
    """
    reader = _Reader(path, data)
    for number, row in rows(path, data):
        record = _record(row)
        if isinstance(record, dict):
            reader.take(number, record)
    return reader.trace()


def _record(row: Any) -> Any:
    return row["event"] if isinstance(row, dict) and isinstance(row.get("event"), dict) else row


class _Reader:
    def __init__(self, path: Path, data: bytes) -> None:
        self._path = path
        self._data = data
        self._requests: dict[str, Request] = {}
        self._launches: list[Launch] = []
        self._parents: dict[str, str] = {}
        self._ids: dict[int, int] = {}  # hashes, numbered as they come, so that keys are small
        self._block: int | None = None
        self._without: tuple[int, int] | None = None  # first line and number of requests without a session
        self._silent = 0

    def take(self, number: int, record: dict[str, Any]) -> None:
        kind = record.get("event_type")
        if kind in _TOOLS:
            self._take_tool(record)
        elif kind == "request_end":
            self._take_request(number, record)

    def _take_request(self, number: int, record: dict[str, Any]) -> None:
        self._check(number, record, _RECORD, "")
        if record["schema"] != SCHEMA:
            raise self._error(number, f"schema is {record['schema']!r}, expected {SCHEMA!r}")
        request = record["request"]
        self._check(number, request, _REQUEST, "request.")
        replay = request["replay"]
        self._check(number, replay, _REPLAY, "request.replay.")
        block, tokens, hashes = (replay[name] for name in _REPLAY)
        if self._block not in (None, block):
            raise self._error(number, f"trace_block_size is {block} here and {self._block} before, expected one size")
        self._block = block
        if len(hashes) != -(-tokens // block):
            raise self._error(
                number, f"{len(hashes)} input_sequence_hashes for {tokens} tokens in blocks of {block}, one per block"
            )
        name = request["request_id"]
        if name in self._requests:
            raise self._error(number, f"the request {name!r} ended before already")
        end, received, total = record["event_time_unix_ms"], request.get("request_received_ms"), _time_of(request)
        if received is None:
            if total is None:
                raise self._error(number, "neither request_received_ms nor total_time_ms says when it began")
            received = end - total
        elif not _TIME.accepts(received):
            raise self._error(number, f"request_received_ms is {received!r}, expected {_TIME.name}")
        if total is not None:
            end = received + total
        session = self._session(number, record.get("agent_context"))
        self._silent += request["output_tokens"] == 0
        ids = array("q", [self._ids.setdefault(hash_, len(self._ids)) for hash_ in hashes])
        self._requests[name] = Request(
            name=name,
            session=session or name,
            start_ns=_ns(received),
            end_ns=_ns(max(end, received)),
            prompt_tokens=tokens,
            output_tokens=max(1, request["output_tokens"]),
            ids=ids,
        )

    def _session(self, number: int, context: Any) -> str | None:
        if not isinstance(context, dict):
            first, count = self._without or (number, 0)
            self._without = (first, count + 1)
            return None
        self._check(number, context, {"session_id": TEXT}, "agent_context.")
        session: str = context["session_id"]
        parent = context.get("parent_session_id")
        if isinstance(parent, str) and parent != session and self._parents.setdefault(session, parent) != parent:
            raise self._error(
                number, f"the session {session!r} has the parents {self._parents[session]!r} and {parent!r}"
            )
        return session

    def _take_tool(self, record: dict[str, Any]) -> None:
        tool = record.get("tool")
        if not isinstance(tool, dict):
            return
        known = tool["claude"] if isinstance(tool.get("claude"), dict) else tool
        source, child = known.get("source_request_id"), known.get("child_session_id")
        if isinstance(source, str) and isinstance(child, str):
            consumer = known.get("consumer_request_id")
            background = known.get("execution_mode") == "background"
            self._launches.append(Launch(child, source, consumer if isinstance(consumer, str) else None, background))

    def trace(self) -> Trace:
        if not self._requests:
            raise GapscopeError(f"{self._path}: no request_end record; expected at least one.")
        if self._without and self._without[1] < len(self._requests):
            raise self._error(
                self._without[0],
                f"{self._without[1]} of {len(self._requests)} requests have no agent_context, expected it on all or on "
                "none: their place in their session is unknown",
            )
        notes: dict[str, str] = {}
        plays = plays_of(list(self._requests.values()), self._parents, self._launches, notes, str(self._path))
        if self._silent:
            notes["requests without output"] = sampled(self._silent)
        return Trace(name_of(self._path), "dynamo", "", plays, self._block, notes)

    def _check(self, number: int, row: Any, spec: Spec, where: str) -> None:
        problem = problem_of(row, spec)
        if problem:
            raise self._error(number, where + problem)

    def _error(self, number: int, problem: str) -> GapscopeError:
        return GapscopeError(f"{place(self._path, self._data, number)}: {problem}.")


def _time_of(request: dict[str, Any]) -> float | None:
    total = request.get("total_time_ms")
    return max(0.0, float(total)) if total is not None and NUMBER.accepts(total) else None


def _ns(ms: float) -> int:
    """Milliseconds of this era as nanoseconds; a float holds whole nanoseconds only of its fraction."""
    return int(ms) * 1_000_000 + round(ms % 1 * 1e6)
