"""A window of a run as a Chrome trace, which Perfetto and chrome://tracing open.

Passes are slices of their rank with their composition as arguments, requests are asynchronous slices of their lane with
their stages inside, counters follow the passes, and evictions and preemptions are instants. Times are whole
microseconds since the first slice, rounded down on both ends, so that nothing is reordered and what touched still
touches; the exact nanoseconds from profile start stand in the arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from engine.bundle.chrome_rows import BEGIN, COLUMNS, MOST, Row, find_request, rows_of, stages, timed, window_of
from engine.bundle.reader import Bundle
from engine.errors import GapscopeError

MEMBERS = 32
CLIENT = 1
_PASSES, _CACHE = 1, 900

Event = dict[str, Any]


@dataclass(frozen=True)
class ChromeTrace:
    """A trace with what it holds. ``cut`` is a sentence where the window ended early, else empty."""

    data: bytes
    passes: int
    requests: int
    events: int
    from_ns: int
    to_ns: int
    cut: str = ""


def chrome_trace(
    bundle: Bundle, from_s: float | None = None, span_s: float | None = None, request: str = ""
) -> ChromeTrace:
    """A window of a run as Chrome trace JSON.

    Args:
        bundle: the run.
        from_s: where the window begins, in seconds from profile start; 0, or the dispatch of ``request``.
        span_s: its length in seconds; 10, or to the end of ``request``.
        request: a request id, or ``conversation/turn`` as in s0003/2; its passes say what they did for it.

    Raises:
        GapscopeError: no such request, no such window, or the run recorded neither passes nor requests.
    """
    chosen = find_request(bundle, request) if request else None
    start, end = window_of(from_s, span_s, chosen)
    if bundle.file("passes") is None and bundle.file("requests") is None:
        raise GapscopeError(f"Run {bundle.run_id} has neither passes nor requests: there is nothing to trace.")
    found = {name: rows_of(bundle, name, start, end) for name in MOST}
    stop = min(until for _, until in found.values())
    full = [f"{MOST[name]:,} {_WORDS[name]}" for name, (_, until) in found.items() if until < end]
    cut = f"The window was cut at {stop / 1e9:.6f} s: a trace holds at most {', '.join(full)}." if full else ""
    held = {name: [row for row in rows if row[BEGIN[name]] < stop] for name, (rows, _) in found.items()}
    passes, requests, events = held["passes"], [timed(row, stop) for row in held["requests"]], held["kv_events"]
    origin = min([start, *(row["start_ns"] for row in passes), *(row["dispatched_ns"] for row in requests)])
    clock = _Clock(origin)
    ranks = sorted({_rank(row) for row in (*passes, *events)}, key=str)
    pids = {rank: CLIENT + 1 + index for index, rank in enumerate(ranks)}
    told = [
        *_names(pids),
        *_pass_events(passes, pids, clock, chosen["request_id"] if chosen else ""),
        *_request_events(requests, clock),
        *_cache_events(events, passes, pids, clock),
    ]
    if cut:
        told.append(
            {"ph": "i", "s": "g", "pid": CLIENT, "tid": 0, "ts": clock.at(stop), "name": "cut here", "cat": "cut"}
        )
    about = {
        "run_id": bundle.run_id,
        "title": bundle.title,
        "kind": bundle.kind,
        "from_ns": start,
        "to_ns": stop,
        "origin_ns": origin,
        "times": "ts is in microseconds from origin_ns; *_ns are nanoseconds from profile start",
        "cut": cut or None,
    }
    data = orjson.dumps({"displayTimeUnit": "ms", "otherData": about, "traceEvents": told})
    return ChromeTrace(data, len(passes), len(requests), len(events), start, stop, cut)


_WORDS = {"passes": "passes", "requests": "requests", "kv_events": "cache events"}


class _Clock:
    """Nanoseconds as whole microseconds since the origin, rounded down."""

    def __init__(self, origin: int) -> None:
        self._origin = origin

    def at(self, time_ns: int) -> int:
        return (time_ns - self._origin) // 1000

    def slice(self, start_ns: int, end_ns: int) -> dict[str, int]:
        """Begin and length: the end is rounded, not the length, so that slices that touch do not overlap."""
        return {"ts": self.at(start_ns), "dur": self.at(end_ns) - self.at(start_ns)}


def _rank(row: Row) -> tuple[str, int | None]:
    return row["worker_id"] or "", row["dp_rank"]


def _names(pids: Mapping[tuple[str, int | None], int]) -> Iterator[Event]:
    yield from _process(CLIENT, "client: lanes")
    for (worker, rank), pid in pids.items():
        said = " ".join(filter(None, [worker and f"worker {worker}", "" if rank is None else f"rank {rank}"]))
        yield from _process(pid, f"engine {said}".strip())


def _process(pid: int, name: str) -> Iterator[Event]:
    yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": name}}
    yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_sort_index", "args": {"sort_index": pid}}


def _thread(pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}


def tracks(spans: Iterable[tuple[int, int]]) -> list[int]:
    """The track of each span, in order of their beginnings: the first one on which nothing is in its way."""
    free: list[int] = []
    found = []
    for start, end in spans:
        at = next((index for index, until in enumerate(free) if until <= start), len(free))
        free[at : at + 1] = [end]
        found.append(at)
    return found


def _pass_events(
    passes: Sequence[Row], pids: Mapping[tuple[str, int | None], int], clock: _Clock, chosen: str
) -> Iterator[Event]:
    for rank, pid in pids.items():
        own = [row for row in passes if _rank(row) == rank]
        places = tracks((row["start_ns"], row["end_ns"]) for row in own)
        for at in range(max(places, default=-1) + 1):
            yield _thread(pid, _PASSES + at, "passes" if at == 0 else f"passes, overlapping {at}")
        for row, at in zip(own, places, strict=True):
            yield {
                "ph": "X",
                "pid": pid,
                "tid": _PASSES + at,
                "cat": "pass",
                "name": _composition(row),
                **clock.slice(row["start_ns"], row["end_ns"]),
                "args": _pass_arguments(row, chosen),
            }
            yield from _counters(row, pid, clock)


def _composition(row: Row) -> str:
    """What a pass is called: its class, and how many requests of either kind it holds."""
    prefills, decodes = row["num_prefill_requests"], row["num_decode_requests"]
    if prefills and decodes:
        return f"mixed {prefills}p+{decodes}d"
    return f"prefill {prefills}" if prefills else f"decode {decodes}" if decodes else "idle"


def _pass_arguments(row: Row, chosen: str) -> dict[str, Any]:
    shown = {
        name: row[name]
        for name in COLUMNS["passes"]
        if name not in ("members", "worker_id", "dp_rank") and row[name] is not None
    }
    members = row["members"] or []
    if members:
        shown["members"] = {
            one["request_id"]: f"{one['computed_before']} + {one['scheduled_tokens']}" for one in members[:MEMBERS]
        }
    if len(members) > MEMBERS:
        shown["more_members"] = len(members) - MEMBERS
    if chosen:
        shown["holds_request"] = any(one["request_id"] == chosen for one in members)
    return shown


def _counters(row: Row, pid: int, clock: _Clock) -> Iterator[Event]:
    used, total = row["kv_blocks_used"], row["kv_blocks_total"]
    groups = {
        "requests": {"running": row["num_running"], "waiting": row["num_waiting"]},
        "KV blocks": {
            "used": used,
            "cached": row["kv_blocks_cached"],
            "free": None if used is None or total is None else total - used,
        },
    }
    for name, values in groups.items():
        known = {key: value for key, value in values.items() if value is not None}
        if known:
            yield {"ph": "C", "pid": pid, "tid": 0, "name": name, "ts": clock.at(row["start_ns"]), "args": known}


def _request_events(requests: Sequence[Row], clock: _Clock) -> Iterator[Event]:
    """Each lane is an asynchronous slice around those of its requests; children beside their parent get one more."""
    lanes: dict[int | None, list[Row]] = {}
    for row in requests:
        lanes.setdefault(row["lane"], []).append(row)
    for lane in sorted(lanes, key=lambda one: (one is None, one or 0)):
        own = lanes[lane]
        places = tracks((row["dispatched_ns"], row["end_ns"]) for row in own)
        for at in range(max(places) + 1):
            held = [row for row, place in zip(own, places, strict=True) if place == at]
            name = "no lane" if lane is None else f"lane {lane}"
            name += "" if at == 0 else f", beside {at}"
            begin, end = held[0]["dispatched_ns"], held[-1]["end_ns"]
            key: Event = {"pid": CLIENT, "tid": 0, "cat": "request", "id": name}
            yield {"ph": "b", **key, "name": name, "ts": clock.at(begin)}
            for row in held:
                yield {"ph": "b", **key, "name": _turn(row), "ts": clock.at(row["dispatched_ns"]), "args": _facts(row)}
                for stage, start, until in stages(row):
                    exact = {"start_ns": start, "end_ns": until}
                    yield {"ph": "b", **key, "name": stage, "ts": clock.at(start), "args": exact}
                    yield {"ph": "e", **key, "name": stage, "ts": clock.at(until)}
                yield {"ph": "e", **key, "name": _turn(row), "ts": clock.at(row["end_ns"])}
            yield {"ph": "e", **key, "name": name, "ts": clock.at(end)}


def _turn(row: Row) -> str:
    if row["conversation_id"] is None or row["turn_index"] is None:
        return str(row["request_id"])
    return f"{row['conversation_id']}/{row['turn_index']}"


def _facts(row: Row) -> dict[str, Any]:
    return {name: row[name] for name in (*COLUMNS["requests"], "open") if row[name] is not None}


def _cache_events(
    events: Sequence[Row], passes: Sequence[Row], pids: Mapping[tuple[str, int | None], int], clock: _Clock
) -> Iterator[Event]:
    """Evictions, preemptions and what follows them; preemptions that no event names are told by their pass."""
    named = [row for row in events if row["kind"] == "preempt"]
    passes = [] if named else [row for row in passes if row["num_preempted"]]
    for rank in {_rank(row): None for row in (*events, *passes)}:
        yield _thread(pids[rank], _CACHE, "evictions and preemptions")
    for row in events:
        args = {name: row[name] for name in COLUMNS["kv_events"] if row[name] is not None}
        yield _instant(pids[_rank(row)], clock.at(row["time_ns"]), f"{row['kind']} {row['num_blocks']}", args)
    for row in passes:
        args = {"pass_index": row["pass_index"], "time_ns": row["start_ns"], "requests": row["num_preempted"]}
        yield _instant(pids[_rank(row)], clock.at(row["start_ns"]), f"preempt {row['num_preempted']}", args)


def _instant(pid: int, ts: int, name: str, args: dict[str, Any]) -> Event:
    return {"ph": "i", "s": "t", "pid": pid, "tid": _CACHE, "cat": "cache", "name": name, "ts": ts, "args": args}


def write_chrome_trace(trace: ChromeTrace, path: Path) -> Path:
    """Write a trace into a new or existing file; returns its path.

    Raises:
        GapscopeError: it cannot be written.
    """
    try:
        path.write_bytes(trace.data)
    except OSError as error:
        raise GapscopeError(f"{path} cannot be written: {error.strerror or error}. Give another file.") from None
    return path
