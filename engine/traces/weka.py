"""Recorded agent sessions as Weka published them (kv-cache-tester, cc-traces-weka): one JSON object per session.

``{id, block_size, hash_id_scope: "local", requests: [...]}``, one in a file, one to a line, or the files of a folder. A
request has ``t`` (s, since the session began), ``model``, ``in``, ``out``, ``hash_ids`` of the blocks of its prompt (a
partial last one need not have any) and perhaps ``api_time`` (s). An entry of ``"type": "subagent"`` has requests of its
own. Who continues, forks and waits for whom is no part of the format: see :mod:`engine.traces.weka_chains` and
:mod:`engine.traces.weka_tree`.

Times inside a subagent count from the beginning of the session (*absolute*) or of the subagent (*relative*), alike in a
whole trace. They are relative where any request would otherwise come before the subagent that it belongs to.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from engine.collector import collector_paused
from engine.errors import GapscopeError
from engine.jsonl import COUNT, DURATION, TEXT, Spec, Type, optional, problem_of
from engine.traces.fields import hash_ids_of, sampled
from engine.traces.files import Head, name_of, place, rows
from engine.traces.local_ids import LocalIds
from engine.traces.tree import Trace
from engine.traces.weka_chains import EPSILON_NS, Request, S
from engine.traces.weka_tree import Malformed, Scope, Subagent, play_of

NAME = "Weka sessions (JSON)"
Basis = Literal["auto", "absolute", "relative"]
DEEPEST = 50
"""Levels of subagents inside subagents."""

MOST_TOKENS = 1 << 40
_POSITIVE = Type("a whole number of at least 1", lambda v: COUNT.accepts(v) and 0 < v <= MOST_TOKENS)
_OUTPUT = Type("a whole number of at least 0", lambda v: COUNT.accepts(v) and v <= MOST_TOKENS)
_LIST = Type("a list", lambda v: type(v) is list)
_SESSION: Spec = {"id": TEXT, "block_size": _POSITIVE, "requests": _LIST}
_REQUEST: Spec = {"t": DURATION, "in": _POSITIVE, "out": _OUTPUT}
_REQUEST_OPTIONAL: Spec = {"model": optional(TEXT), "hash_ids": optional(_LIST), "api_time": optional(DURATION)}
_SUBAGENT: Spec = {"t": DURATION, "agent_id": TEXT, "requests": _LIST}
_SUBAGENT_OPTIONAL: Spec = {"status": optional(TEXT), "duration_ms": optional(DURATION)}
COMPLETED, BACKGROUND = "completed", "async_launched"


def looks_like(head: Head) -> bool:
    """Whether a file that begins like this holds such sessions."""
    return isinstance(head.row.get("requests"), list) and "block_size" in head.row


@collector_paused()
def read(path: Path, data: bytes, nested_timestamps: Basis = "auto") -> Trace:
    """The sessions in ``data``, which was read from ``path``, as plays.

    Args:
        path: for the name of the trace and for messages.
        data: all rows.
        nested_timestamps: what times inside subagents count from; auto: found out, and said in the trace's notes.

    Raises:
        GapscopeError: a row that is no session, or an entry of it that cannot be used, named by its place.
    """
    reader, ids = _Reader(), LocalIds()
    sessions: list[tuple[int, str, Scope]] = []
    names: Counter[str] = Counter()
    for number, row in rows(path, data):
        try:
            scope = reader.session(row)
        except Malformed as error:
            raise GapscopeError(f"{place(path, data, number)}: {error}.") from None
        requests = scope.everything()
        for request, numbered in zip(requests, ids.renumber([r.ids for r in requests]), strict=True):
            request.ids = numbered
        names[row["id"]] += 1
        again = f"~{names[row['id']]}" if names[row["id"]] > 1 else ""
        sessions.append((number, f"{row['id']}{again}", scope))
    if not sessions:
        raise GapscopeError(f"{path}: an empty trace; expected one JSON object per session.")
    relative = reader.early is not None if nested_timestamps == "auto" else nested_timestamps == "relative"
    plays = []
    for number, name, scope in sessions:
        try:
            _place_inside(scope, 0, relative)
            plays.append(play_of(name, scope))
        except Malformed as error:
            raise GapscopeError(f"{place(path, data, number)}: {error}.") from None
    notes = reader.notes(nested_timestamps, relative)
    return Trace(name_of(path), "weka", "", plays, reader.block_tokens, notes)


@dataclass
class _Reader:
    """Reads session after session and counts what a reader of the trace should know of."""

    block_tokens: int | None = None
    early: str | None = None  # the first subagent with a request before it
    subagents: int = 0
    empty: int = 0
    background: int = 0
    failed: int = 0
    without_output: int = 0
    more_ids: int = 0
    fewer_ids: int = 0

    def __post_init__(self) -> None:
        self._models: dict[str, None] = {}

    def session(self, row: Any) -> Scope:
        """A row as entries whose times are as recorded.

        Raises:
            Malformed: something of it cannot be used.
        """
        _check(row, _SESSION, {})
        if row.get("hash_id_scope", "local") != "local":
            raise Malformed(f"hash_id_scope is {row['hash_id_scope']!r}, expected 'local' (ids of one session)")
        if self.block_tokens not in (None, row["block_size"]):
            raise Malformed(
                f"block_size is {row['block_size']} but {self.block_tokens} in earlier sessions: expected one for all"
            )
        self.block_tokens = row["block_size"]
        scope = self._scope(row["requests"], "", row["id"], 0)
        if not scope.requests:
            raise Malformed("no request of its own, expected at least one that is no subagent")
        return scope

    def _scope(self, entries: list[Any], where: str, session_id: str, depth: int) -> Scope:
        if depth > DEEPEST:
            raise Malformed(f"subagents inside subagents more than {DEEPEST} deep")
        scope = Scope()
        for order, entry in enumerate(entries):
            at = f"{where}requests[{order}]"
            kind = entry.get("type", "n") if type(entry) is dict else None
            if kind == "subagent":
                scope.subagents.append(self._subagent(entry, order, at, session_id, depth))
            elif kind in ("n", "s"):
                scope.requests.append(self._request(entry, order, at))
            elif kind is None:
                raise Malformed(f"{at}: expected a JSON object")
            else:
                raise Malformed(f"{at}: type is {kind!r}, expected 'n', 's' or 'subagent'")
        return scope

    def _request(self, entry: dict[str, Any], order: int, at: str) -> Request:
        _check(entry, _REQUEST, _REQUEST_OPTIONAL, at)
        assert self.block_tokens is not None
        model, api_s, tokens = entry.get("model") or "", entry.get("api_time"), entry["in"]
        try:
            ids = hash_ids_of(entry.get("hash_ids") or [])
        except (TypeError, OverflowError):
            raise Malformed(f"{at}: hash_ids holds something that is no whole number of 64 bits") from None
        blocks = -(-tokens // self.block_tokens)
        if len(ids) > blocks:
            self.more_ids += 1
            ids = ids[:blocks]
        self.fewer_ids += len(ids) < tokens // self.block_tokens
        self.without_output += not entry["out"]
        self._models[model] = None
        start_ns, api_ns = round(entry["t"] * S), None if api_s is None else round(api_s * S)
        return Request(order, start_ns, api_ns, model, tokens, entry["out"], ids)

    def _subagent(self, entry: dict[str, Any], order: int, at: str, session_id: str, depth: int) -> Subagent:
        _check(entry, _SUBAGENT, _SUBAGENT_OPTIONAL, at)
        status, duration_ms = entry.get("status"), entry.get("duration_ms")
        inside = self._scope(entry["requests"], f"{at}.", session_id, depth + 1)
        if inside.subagents and not inside.requests:
            raise Malformed(f"{at}: a subagent with subagents but no request that launched them")
        start_ns = round(entry["t"] * S)
        if self.early is None and any(e.start_ns < start_ns - EPSILON_NS for e in _entries(inside)):
            self.early = f"subagent {entry['agent_id']} of {session_id}"
        self.subagents += 1
        self.empty += not inside.requests
        self.background += status == BACKGROUND
        self.failed += status not in (None, COMPLETED, BACKGROUND)
        return Subagent(
            order,
            start_ns,
            None if duration_ms is None else round(duration_ms * 1e6),
            entry["agent_id"],
            status != BACKGROUND,
            inside,
            at,
        )

    def notes(self, asked: Basis, relative: bool) -> dict[str, str]:
        """What was found, and what became of what a replay cannot play as it is."""
        notes = {}
        if self.subagents > self.empty:
            basis = "relative to the subagent" if relative else "absolute"
            why = "as asked" if asked != "auto" else f"{self.early} has a request before it" if relative else "detected"
            notes["nested timestamps"] = f"{basis} ({why})"
        if self.without_output:
            notes["requests without output"] = sampled(self.without_output)
        if self.more_ids:
            notes["hash ids"] = f"{self.more_ids:,} requests have more than their prompt has blocks; those are left out"
        if self.fewer_ids:
            notes["missing hash ids"] = (
                f"{self.fewer_ids:,} requests have fewer than their prompt has full blocks; the others cannot be hit"
            )
        if self.empty:
            notes["empty subagents"] = (
                f"{self.empty:,} of {self.subagents:,} subagents made no request and are left out"
            )
        if self.failed:
            notes["subagent status"] = f"{self.failed:,} subagents did not complete; they are waited for as if they had"
        if len(self._models) > 1:
            notes["models"] = f"{', '.join(sorted(self._models))}; all of them are sent to the one deployment"
        return notes


def _entries(scope: Scope) -> list[Request | Subagent]:
    return [*scope.requests, *scope.subagents]


def _place_inside(scope: Scope, begin_ns: int, relative: bool) -> None:
    """Let all times in ``scope`` count from the beginning of the session; ``begin_ns`` is that of the scope.

    Raises:
        Malformed: times that count from the session's beginning, and a request before its subagent.
    """
    if relative:
        for entry in _entries(scope):
            entry.start_ns += begin_ns
    for subagent in scope.subagents:
        for entry in () if relative else _entries(subagent.inside):
            if entry.start_ns < subagent.start_ns - EPSILON_NS:
                raise Malformed(
                    f"{subagent.where}: holds a request {(subagent.start_ns - entry.start_ns) / S:g} s before itself, "
                    "expected times from the beginning of the session on"
                )
            entry.start_ns = max(entry.start_ns, subagent.start_ns)  # recorded seconds are rounded
        _place_inside(subagent.inside, subagent.start_ns, relative)


def _check(row: Any, needed: Spec, optional_fields: Spec, at: str = "") -> None:
    problem = problem_of(row, needed) or problem_of(row, {k: v for k, v in optional_fields.items() if k in row})
    if problem:
        raise Malformed(f"{at}: {problem}" if at else problem)
