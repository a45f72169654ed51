"""Two turns over a handful of passes, measured and replayed, small enough to take apart by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from small_runs import MS, identity, request, write

from dashboard.store import Store

CLOCK = identity(telemetry__clock="one clock")


def a_pass(
    index: int, start_ms: float, end_ms: float, members: list[tuple[str, int, int]], decodes: int = 0
) -> dict[str, Any]:
    """A pass over (request, tokens computed before, tokens computed here); ``decodes`` of them only decode."""
    prefills = len(members) - decodes
    return {
        "pass_index": index,
        "phase": "profile",
        "start_ns": round(start_ms * MS),
        "end_ns": round(end_ms * MS),
        "duration_ns": round((end_ms - start_ms) * MS),
        "num_prefill_requests": prefills,
        "num_decode_requests": decodes,
        "members": [{"request_id": r, "computed_before": b, "scheduled_tokens": t} for r, b, t in members],
    }


def chunks(**times_ms: Sequence[float]) -> list[dict[str, Any]]:
    """One token per chunk and moment, by request."""
    rows = [
        {"request_id": name, "ordinal": k, "time_ns": round(at * MS), "tokens": 1, "visible": True}
        for name, times in times_ms.items()
        for k, at in enumerate(times)
    ]
    return sorted(rows, key=lambda row: (row["time_ns"], row["request_id"]))


def admission(name: str, ordinal: int, at_ms: float, cached: int) -> dict[str, Any]:
    row = {"request_id": name, "ordinal": ordinal, "time_ns": round(at_ms * MS)}
    return row | {"cached_tokens": cached, "is_readmission": ordinal > 0}


def ns(**values: float | None) -> dict[str, int | None]:
    """Moments in ms as columns."""
    return {f"{name}_ns": None if value is None else round(value * MS) for name, value in values.items()}


def measured_rows() -> dict[str, list[dict[str, Any]]]:
    """``a`` finds the engine idle; ``b`` comes while a pass runs, waits, is preempted, and computes 30 tokens again.

    Passes (ms): 10-40 prefill a · 41-61 decode a · 62-92 mixed (b prefill, a decode) · 93-103 decode a, b
    · 104-114 decode a alone, b preempted · 115-145 prefill b again · 146-156 decode b
    """
    a = request("a", input_tokens=100, cached_tokens=0, output_tokens=5, recomputed_tokens=0) | ns(
        dispatched=4, received=9, first_admit=9.5, first_visible=42, last_visible=118, end=118, released=114
    )
    b = request("b", input_tokens=60, cached_tokens=20, output_tokens=4, recomputed_tokens=30, preemptions=1) | ns(
        dispatched=40, received=61, first_admit=61.5, first_visible=97, last_visible=160, end=160, released=156
    )
    return {
        "requests": [a, b],
        "passes": [
            a_pass(0, 10, 40, [("a", 0, 100)]),
            a_pass(1, 41, 61, [("a", 100, 1)], 1),
            a_pass(2, 62, 92, [("a", 101, 1), ("b", 20, 40)], 1),
            a_pass(3, 93, 103, [("a", 102, 1), ("b", 60, 1)], 2),
            a_pass(4, 104, 114, [("a", 103, 1)], 1),
            a_pass(5, 115, 145, [("b", 31, 30)]),
            a_pass(6, 146, 156, [("b", 61, 1)], 1),
        ],
        "kv_events": [{"event_index": 0, "time_ns": 104 * MS, "kind": "preempt", "request_id": "b", "num_blocks": 2}],
        "admissions": [
            admission("a", 0, 9.5, 0),
            admission("b", 0, 61.5, 20),
            admission("b", 1, 115, 32),
        ],
        "chunks": chunks(a=(42, 64, 95, 106, 118), b=(97, 108, 149, 160)),
    }


def replay_rows() -> dict[str, list[dict[str, Any]]]:
    """The same turns and one more, ``c``; ``b`` reuses 40 tokens, is not preempted, and the answer takes 5 ms.

    Passes (ms): 10-30 prefill a · 31-51 decode a · 52-72 mixed (b prefill, a decode) · 73-93, 94-114 decode a, b
    · 115-125 decode b · 200-210 prefill c
    """
    a = request("x", conversation_id="a", input_tokens=100, cached_tokens=0, output_tokens=5, recomputed_tokens=0) | ns(
        dispatched=4, received=10, first_admit=10, first_visible=35, last_visible=119, end=119, released=114
    )
    b = request("y", conversation_id="b", input_tokens=60, cached_tokens=40, output_tokens=4, recomputed_tokens=0) | ns(
        dispatched=40, received=52, first_admit=52, first_visible=77, last_visible=130, end=130, released=125
    )
    c = request("z", conversation_id="c", input_tokens=60, cached_tokens=40, output_tokens=1, recomputed_tokens=0) | ns(
        dispatched=195, received=200, first_admit=200, first_visible=215, last_visible=215, end=215, released=210
    )
    return {
        "requests": [a, b, c],
        "passes": [
            a_pass(0, 10, 30, [("x", 0, 100)]),
            a_pass(1, 31, 51, [("x", 100, 1)], 1),
            a_pass(2, 52, 72, [("x", 101, 1), ("y", 40, 20)], 1),
            a_pass(3, 73, 93, [("x", 102, 1), ("y", 60, 1)], 2),
            a_pass(4, 94, 114, [("x", 103, 1), ("y", 61, 1)], 2),
            a_pass(5, 115, 125, [("y", 62, 1)], 1),
            a_pass(6, 200, 210, [("z", 40, 20)]),
        ],
        "chunks": chunks(x=(35, 56, 77, 98, 119), y=(77, 98, 119, 130), z=(215,)),
    }


def pair(root: Path, left: dict[str, Any] | None = None, right: dict[str, Any] | None = None) -> tuple[Store, str, str]:
    left, right = left or measured_rows(), right or replay_rows()
    measured = write(root, "m", left.pop("requests"), record=CLOCK, **left)
    replay = write(root, "r", right.pop("requests"), kind="replay", **right)
    return Store([root]), measured, replay
