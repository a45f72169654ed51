"""No trace, however malformed, ends in anything but a refusal in words; and each format is told from the others."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from engine.errors import GapscopeError
from engine.traces import load_trace
from engine.workload.hash_ids import block_keys_of
from tests.engine.test_traces_dynamo import end, tool
from tests.engine.test_traces_lengths import AGENT, chat
from tests.engine.test_traces_linked import row as linked
from tests.engine.test_traces_mooncake import row

SOUND: dict[str, list[dict[str, Any]]] = {
    "mooncake": [
        row("a", 32, 8, (1, 2), timestamp=0),
        row("a", 64, 8, (1, 2, 3, 4), delay=2),
        row("b", 16, 8, (1,), timestamp=3),
        row("b", 16, 8, (1,), timestamp=5),
    ],
    "mooncake-linked": [
        linked(0, 32, [1, 2], sess=4),
        linked(5, 16, [9], sess=4, dep=0, think_ms=20),
        linked(6, 48, [3], hp=[0, 2], sess=4, dep=0, joins=[1], think_ms=7),
    ],
    "dynamo": [
        end("p0", 0, 1, "p"),
        end("c0", 4, 5, "c", "p"),
        end("p1", 9, 10, "p"),
        tool("p", source_request_id="p0", consumer_request_id="p1", child_session_id="c", execution_mode="blocking"),
    ],
    "bailian": [chat(1, -1, 0, 16, 1), chat(2, 1, 3, 16, 1), chat(3, 1, 2, 16, 1)],
    "applied-compute": [AGENT],
    "arrivals": [{"arrived_at": at, "num_prefill_tokens": 472, "num_decode_tokens": 18} for at in (5, 6)],
    "aiperf-inputs": [
        {"text": "h", "input_length": 3, "output_length": 4},
        {"session_id": "a", "turns": [{"text": "h", "input_length": 32, "output_length": 4, "timestamp": 1}]},
        {"session_id": "b", "turns": [{"text": "i", "input_tokens": 1, "output_tokens": 4, "delay": 2.5}]},
    ],
}
STRANGE: list[Any] = [None, -1, 0, 1.5, True, 1e300, 2**53, 2**63, 2**64 - 1, "", "x", [], [None], [[1]], [2**63], {}]


def places(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in items:
        yield (*before, key)
        yield from places(below, (*before, key))


def read(path: Path, data: bytes) -> bool:
    """Whether ``data`` is a trace whose blocks can be named; anything but a refusal fails the test."""
    path.write_bytes(data)
    try:
        trace = load_trace(path)
    except GapscopeError:
        return False
    keys = block_keys_of(trace, trace.hash_block_tokens or 4096)
    for play in trace.plays:
        for conversation in play.conversations:
            keys.walk(conversation, None, 0)
    return True


def lines(rows: list[Any]) -> bytes:
    return b"\n".join(map(orjson.dumps, rows))


@pytest.mark.parametrize("name", SOUND)
def test_each_format_is_told_from_the_others(name: str, tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(lines(SOUND[name]))
    assert load_trace(tmp_path / "t").format == name


@pytest.mark.parametrize("name", SOUND)
def test_strange_values_are_refused_or_read(name: str, tmp_path: Path) -> None:
    read_so_far = 0
    for place in places(SOUND[name]):
        for value in STRANGE:
            rows: Any = copy.deepcopy(SOUND[name])
            at = rows
            for key in place[:-1]:
                at = at[key]
            at[place[-1]] = value
            read_so_far += read(tmp_path / "t", lines(rows))
    assert read_so_far  # not all of them matter


@pytest.mark.parametrize("name", SOUND)
def test_what_is_cut_off_is_refused_or_read(name: str, tmp_path: Path) -> None:
    data = lines(SOUND[name])
    for size in range(0, len(data), 7):
        read(tmp_path / "t", data[:size])
