"""Agentic Mooncake (``dynamo.agentic_mooncake``): Mooncake rows that name the requests which they wait for.

Version 2 begins with a header ``{schema, version, block_size, hash_id_scope: "local", source}``. A row has
``request_id``, ``play_id``, ``session_id``, ``input_length``, ``output_length``, ``hash_ids``, ``not_before_ms`` (since
its play began), perhaps ``recorded_api_time_ms``, and ``dependencies`` ``{request_id, trigger, delay_ms, relation}``.
Its hash ids mean something inside a play only; plays come in order of ``source_play_ordinal``, where rows have one.

The older style has no header. ``wait_for`` lists request ids; ``delay`` and ``tool_wait_ms`` pass after the last of
them ended. A row that waits for nothing is due at its ``timestamp``; one with a ``delay`` but no ``wait_for`` follows
the row before it in its session, as in Mooncake. A play is what hangs together by ``wait_for`` and sessions. Its hash
ids are those of the whole file, and the block size is the one that explains all rows.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from engine.collector import collector_paused
from engine.errors import GapscopeError
from engine.jsonl import COUNT, DURATION, NUMBER, TEXT, Spec, Type, list_of, one_of, optional, problem_of
from engine.traces.agentic_mooncake_graph import Node, Ring, Wait, play_of, together
from engine.traces.fields import arrival_of, has_length, hash_ids_of, output_length, prompt_length, sampled, to_ns
from engine.traces.files import Head, name_of, place, rows
from engine.traces.local_ids import LocalIds
from engine.traces.mooncake import block_tokens
from engine.traces.tree import Play, Relation, Trace

NAME = "agentic Mooncake (dynamo.agentic_mooncake)"
SCHEMA = "dynamo.agentic_mooncake"
VERSION = 2
_OLDER = ("wait_for", "tool_wait_ms", "prefix_reset")

MOST_TOKENS = 1 << 40
_SIZE = Type("a whole number of at least 1", lambda v: COUNT.accepts(v) and 0 < v <= MOST_TOKENS)
_MS = Type("a number of milliseconds from 0 to 1e12", lambda v: NUMBER.accepts(v) and 0 <= v <= 1e12)
_HEADER: Spec = {"version": COUNT, "block_size": _SIZE}
_ROW: Spec = {"request_id": TEXT, "play_id": TEXT, "session_id": TEXT, "not_before_ms": _MS}
_ROW_OPTIONAL: Spec = {
    "recorded_api_time_ms": optional(_MS),
    "source_play_ordinal": optional(COUNT),
    "dependencies": optional(list_of(Type("an object", lambda v: type(v) is dict))),
}
_RELATIONS: dict[str, Relation] = {
    "sequence": "sequence",
    "spawn": "spawn",
    "join": "join",
    "replay_barrier": "barrier",
}
_DEPENDENCY: Spec = {
    "request_id": TEXT,
    "trigger": one_of("dispatch", "completion"),
    "delay_ms": _MS,
    "relation": one_of(*_RELATIONS),
}
_OLDER_ROW: Spec = {"request_id": TEXT}
_OLDER_OPTIONAL: Spec = {
    "session_id": optional(TEXT),
    "wait_for": optional(list_of(TEXT)),
    "delay": optional(DURATION),
    "delay_ms": optional(DURATION),
    "tool_wait_ms": optional(DURATION),
}


def looks_like(head: Head) -> bool:
    """Whether a file that begins like this is of either style."""
    if head.row.get("schema") == SCHEMA:
        return True
    return (
        has_length(head.row)
        and "request_id" in head.row
        and any(f'"{field}"'.encode() in head.start for field in _OLDER)
    )


@collector_paused()
def read(path: Path, data: bytes) -> Trace:
    """The trace in ``data``, which was read from ``path``.

    Raises:
        GapscopeError: a row that lacks a field, or waits for one that is not there or for itself, named by its place; a
            header of another version.
    """
    reader = _Reader(path, data)
    for number, row in rows(path, data):
        reader.take(number, row)
    return reader.trace()


class _Reader:
    def __init__(self, path: Path, data: bytes) -> None:
        self.path = path
        self.data = data
        self.block_tokens: int | None = None  # of the header
        self.nodes: dict[str, Node] = {}
        self.plays: dict[str, list[Node]] = defaultdict(list)
        self.ordinals: dict[str, int] = {}
        self.source = ""
        self._last_of: dict[str, Node] = {}  # by session

    def take(self, number: int, row: Any) -> None:
        if isinstance(row, dict) and row.get("schema") == SCHEMA:
            self._take_header(number, row)
            return
        new = self.block_tokens is not None
        self._check(number, row, _ROW if new else _OLDER_ROW, _ROW_OPTIONAL if new else _OLDER_OPTIONAL)
        if row["request_id"] in self.nodes:
            first = place(self.path, self.data, self.nodes[row["request_id"]].number)
            raise self._error(number, f"the request {row['request_id']} is there twice, first in {first}")
        node = self._node(number, row)
        if new:
            self._take_row(node, row)
        else:
            self._take_older(node, row)
        self.nodes[node.request_id] = node

    def _take_header(self, number: int, row: dict[str, Any]) -> None:
        self._check(number, row, _HEADER, {})
        if row["version"] != VERSION:
            raise self._error(number, f"version {row['version']} of {SCHEMA}, expected {VERSION}")
        if row.get("hash_id_scope", "local") != "local":
            raise self._error(number, f"hash_id_scope is {row['hash_id_scope']!r}, expected 'local' (ids of one play)")
        if self.nodes and self.block_tokens != row["block_size"]:  # of a second file in a folder
            raise self._error(number, f"block_size is {row['block_size']}, unlike that of the rows before")
        self.block_tokens = row["block_size"]
        source = row.get("source")
        if isinstance(source, dict):
            self.source = str(source.get("format") or "")

    def _node(self, number: int, row: dict[str, Any]) -> Node:
        try:
            tokens, output = prompt_length(row), output_length(row)
            ids = hash_ids_of(row.get("hash_ids") or [])
        except KeyError as error:
            raise self._error(number, f"the field {error.args[0].replace('_tokens', '_length')} is missing") from None
        except (TypeError, OverflowError):
            raise self._error(number, "hash_ids is not a list of whole numbers of 64 bits") from None
        if not _SIZE.accepts(tokens) or not COUNT.accepts(output) or output > MOST_TOKENS:
            raise self._error(
                number,
                f"input_length is {tokens!r}, output_length {output!r}; expected whole numbers of at least 1 and 0",
            )
        if self.block_tokens is not None and len(ids) > -(-tokens // self.block_tokens):
            raise self._error(number, f"{len(ids)} hash ids for {tokens} tokens in blocks of {self.block_tokens}")
        return Node(number, row["request_id"], row.get("session_id") or row["request_id"], tokens, output, ids)

    def _take_row(self, node: Node, row: dict[str, Any]) -> None:
        node.not_before_ns = to_ns(row["not_before_ms"])
        if row.get("recorded_api_time_ms") is not None:
            node.api_ns = to_ns(row["recorded_api_time_ms"])
        for position, given in enumerate(row.get("dependencies") or ()):
            self._check(node.number, given, _DEPENDENCY, {}, f"dependencies[{position}]: ")
            relation = _RELATIONS[given["relation"]]
            node.waits.append(Wait(given["request_id"], given["trigger"], to_ns(given["delay_ms"]), relation))
        self.plays[row["play_id"]].append(node)
        if row.get("source_play_ordinal") is not None:
            self.ordinals[row["play_id"]] = row["source_play_ordinal"]

    def _take_older(self, node: Node, row: dict[str, Any]) -> None:
        delay = row["delay"] if row.get("delay") is not None else row.get("delay_ms")
        delay_ns = to_ns((delay or 0) + (row.get("tool_wait_ms") or 0))
        sources = list(dict.fromkeys(row.get("wait_for") or ()))
        before = self._last_of.get(node.session)
        if not sources and before is not None and delay is not None:
            sources = [before.request_id]
        node.waits = [Wait(source, "completion", delay_ns, None) for source in sources]
        if not sources:
            try:
                node.arrival_ns = arrival_of(row)
            except (TypeError, ValueError, OverflowError):
                raise self._error(node.number, "timestamp is no number of milliseconds") from None
        self._last_of[node.session] = node

    def trace(self) -> Trace:
        if not self.nodes:
            raise GapscopeError(f"{self.path}: an empty trace; expected one JSON object per request.")
        self._check_waits()
        block = self.block_tokens
        if block is None:
            nodes = list(self.nodes.values())
            block = block_tokens(self.path, [n.tokens for n in nodes], [len(n.ids) for n in nodes])
            groups = [(group[0].session, group) for group in together(nodes)]
        else:
            groups = list(self.plays.items())
            if len(self.ordinals) == len(groups):
                groups.sort(key=lambda group: self.ordinals[group[0]])
            numbered = LocalIds()
            for _, group in groups:
                for node, ids in zip(group, numbered.renumber([n.ids for n in group]), strict=True):
                    node.ids = ids
        trace = Trace(name_of(self.path), "agentic-mooncake", "", self._plays(groups), block)
        silent = sum(not node.output for node in self.nodes.values())
        if silent:
            trace.notes["requests without output"] = sampled(silent)
        if self.source:
            trace.notes["made from"] = self.source
        return trace

    def _plays(self, groups: list[tuple[str, list[Node]]]) -> list[Play]:
        played_in: dict[str, set[str]] = defaultdict(set)
        for name, group in groups:
            for node in group:
                played_in[node.session].add(name)
        plays = []
        for name, group in groups:
            for node in group:
                node.conversation = node.session if len(played_in[node.session]) == 1 else f"{name}/{node.session}"
            try:
                plays.append(play_of(name, group))
            except Ring as ring:
                raise self._error(ring.node.number, f"the request {ring.node.request_id} waits for itself") from None
        return plays

    def _check_waits(self) -> None:
        where = {node.request_id: play for play, group in self.plays.items() for node in group}
        for node in self.nodes.values():
            for wait in node.waits:
                if wait.request_id not in self.nodes:
                    raise self._error(node.number, f"waits for the request {wait.request_id}, which is not there")
                if where and where[wait.request_id] != where[node.request_id]:
                    raise self._error(node.number, f"waits for the request {wait.request_id}, which is of another play")

    def _check(self, number: int, row: Any, needed: Spec, more: Spec, where: str = "") -> None:
        problem = problem_of(row, needed) or problem_of(row, {k: v for k, v in more.items() if k in row})
        if problem:
            raise self._error(number, where + problem)

    def _error(self, number: int, problem: str) -> GapscopeError:
        return GapscopeError(f"{place(self.path, self.data, number)}: {problem}.")
