"""KV events as engines and recorders keep them, alone and under the run of a client."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import msgpack
import pytest
from engine_streams import EPOCH_S, S, client_run, exchange
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.bundle import Bundle, open_bundle
from engine.errors import GapscopeError
from engine.importers import import_any
from engine.importers.attaching import attach
from engine.importers.contract import Options
from engine.importers.kv_events.events import rows_of

STORED = {
    "type": "BlockStored",
    "block_hashes": [-1, 2**63],
    "parent_block_hash": -2,
    "token_ids": [1, 2],
    "block_size": 1,
    "lora_id": None,
    "medium": "GPU",
}
REMOVED = {"type": "BlockRemoved", "block_hashes": [2**63], "medium": "CPU"}
CLEARED = {"type": "AllBlocksCleared"}
EVENTS = [STORED, REMOVED, CLEARED]
BY_PLACE = [["BlockStored", [-1, 2**63], -2, [1, 2], 1, None, "GPU"], ["BlockRemoved", [2**63], "CPU"]]
ANSWERS = [
    ("store", "device", 2, [2**64 - 1, 2**63], 2**64 - 2),
    ("evict", "host", 1, [2**63], None),
    ("clear", None, None, None, None),
]


def lines(values: list[Any]) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def packed(values: list[Any]) -> bytes:
    return b"".join(map(msgpack.packb, values))


def behind_lengths(values: list[Any]) -> bytes:
    return b"".join(len(one).to_bytes(4, "big") + one for one in map(msgpack.packb, values))


def imported(folder: Path, data: bytes, **options: Any) -> Bundle:
    (folder / "events").write_bytes(data)
    (run_id,) = import_any(folder / "events", folder / "store", **options)
    return open_bundle(folder / "store" / run_id)


def events(bundle: Bundle) -> list[dict[str, Any]]:
    table = bundle.table("kv_events")
    assert table is not None
    return table.to_pylist()


def told(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [tuple(row[c] for c in ("kind", "tier", "num_blocks", "block_hashes", "parent_hash")) for row in rows]


def checks(bundle: Bundle) -> dict[str, tuple[str, str]]:
    return {check.check: (check.verdict, check.detail) for check in bundle.qualification}


BATCH = {"ts": EPOCH_S + 0.25, "events": EVENTS, "data_parallel_rank": 3}
FORMS = {
    "lines": lines([BATCH]),
    "maps": packed([BATCH]),
    "by place": packed([[EPOCH_S + 0.25, [*BY_PLACE, ["AllBlocksCleared"]], 3]]),
    "behind lengths": behind_lengths([[EPOCH_S + 0.25, [*BY_PLACE, ["AllBlocksCleared"]], 3]]),
    "published": packed([[b"kv-events", (7).to_bytes(8, "big"), msgpack.packb(BATCH)]]),
    "payload": packed([{"topic": "kv-events", "seq": 7, "payload": msgpack.packb(BATCH)}]),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_batch_in_every_form(tmp_path: Path, form: str) -> None:
    bundle = imported(tmp_path, FORMS[form])
    rows = events(bundle)
    assert (bundle.kind, bundle.tables) == ("imported_summary", ("kv_events",))
    assert told(rows) == ANSWERS
    assert [row["event_index"] for row in rows] == [0, 1, 2]
    assert {(row["time_ns"], row["dp_rank"]) for row in rows} == {(0, 3)}  # profile start is the first event
    assert bundle.manifest["profile_start_unix_ns"] == EPOCH_S * S + S // 4
    assert checks(bundle)["events_timed"] == ("pass", "3 of 3 events have a time")


def test_events_of_a_router_have_workers(tmp_path: Path) -> None:
    """Dynamo's recorder: milliseconds, and the worker beside each event."""

    def event(number: int, data: Any) -> dict[str, Any]:
        inner = {"event_id": number, "dp_rank": 1, "data": data}
        return {"timestamp": EPOCH_S * 1000 + number, "event": {"worker_id": 7 + 2**60, "event": inner}}

    block = {"block_hash": 2**64 - 1, "tokens_hash": 5}
    values = [
        event(0, {"stored": {"parent_hash": 9, "blocks": [block]}}),
        event(2, {"removed": {"block_hashes": [2**64 - 1]}}),
        event(5, "cleared"),
    ]
    rows = events(imported(tmp_path, lines(values)))
    assert told(rows) == [
        ("store", "device", 1, [2**64 - 1], 9),
        ("evict", "device", 1, [2**64 - 1], None),
        ("clear", "device", None, None, None),
    ]
    assert [row["time_ns"] for row in rows] == [0, 2_000_000, 5_000_000]
    assert {(row["worker_id"], row["dp_rank"]) for row in rows} == {(str(7 + 2**60), 1)}


TIMES = [EPOCH_S, EPOCH_S * 10**3, EPOCH_S * 10**6, EPOCH_S * 10**9]


@pytest.mark.parametrize("time", TIMES, ids=["s", "ms", "us", "ns"])
def test_the_unit_of_a_time_is_told_by_its_size(time: int) -> None:
    (row,) = rows_of({"ts": time, "events": [CLEARED]})
    assert row["time_ns"] == EPOCH_S * S


def test_events_without_a_time_say_so(tmp_path: Path) -> None:
    bundle = imported(tmp_path, lines(EVENTS))
    assert [row["time_ns"] for row in events(bundle)] == [None, None, None]
    assert checks(bundle)["events_timed"] == ("unknown", "0 of 3 events have a time")
    assert bundle.manifest["profile_start_unix_ns"] is None


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"type": "BlockMoved"}, "'BlockMoved' is no event"),
        ({"type": "BlockRemoved", "block_hashes": 5}, "block_hashes of BlockRemoved is 5, expected a list"),
        ({"type": "BlockRemoved", "block_hashes": [1.5]}, "1.5 is no block hash"),
        ({"type": "BlockRemoved", "block_hashes": ["salt"]}, "'salt' is no block hash"),
    ],
)
def test_a_batch_with_an_event_that_cannot_be_read_is_left_out(tmp_path: Path, wrong: Any, reason: str) -> None:
    data = lines([BATCH, {**BATCH, "events": [CLEARED, wrong]}, BATCH])
    with pytest.raises(GapscopeError, match="events line 2") as refused:
        imported(tmp_path, data)
    assert reason in str(refused.value)
    bundle = imported(tmp_path, data, skip_bad_rows=True)
    assert told(events(bundle)) == [*ANSWERS, *ANSWERS]
    verdict, detail = checks(bundle)["rows_used"]
    assert verdict == "fail"
    assert reason in detail


def test_a_stream_that_is_cut_off_keeps_what_came_before(tmp_path: Path) -> None:
    data = packed([BATCH, BATCH])[:-3]
    with pytest.raises(GapscopeError, match=r"events message 2.*cut off"):
        imported(tmp_path, data)
    assert told(events(imported(tmp_path, data, skip_bad_rows=True))) == ANSWERS


HASHES = st.integers(-(2**63), 2**64 - 1)
EVENT = st.one_of(
    st.builds(
        lambda hashes, parent, medium: {
            **STORED,
            "block_hashes": hashes,
            "parent_block_hash": parent,
            "medium": medium,
        },
        st.lists(HASHES, max_size=4),
        st.none() | HASHES,
        st.sampled_from(["GPU", "CPU", "disk", None]),
    ),
    st.builds(lambda hashes: {**REMOVED, "block_hashes": hashes}, st.lists(HASHES, max_size=4)),
    st.just(CLEARED),
)


def by_place(event: dict[str, Any]) -> list[Any]:
    names = {
        "BlockStored": ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"),
        "BlockRemoved": ("block_hashes", "medium"),
    }
    return [event["type"], *(event[name] for name in names.get(event["type"], ()))]


@given(st.lists(st.lists(EVENT, min_size=1, max_size=3), min_size=1, max_size=4))
@settings(max_examples=15, deadline=None)
def test_the_same_events_in_every_form_are_the_same_rows(batches: list[list[dict[str, Any]]]) -> None:
    maps = [{"ts": EPOCH_S + n, "events": batch, "data_parallel_rank": 0} for n, batch in enumerate(batches)]
    places = [[EPOCH_S + n, [by_place(one) for one in batch], 0] for n, batch in enumerate(batches)]
    found = []
    for data in (lines(maps), packed(maps), packed(places), behind_lengths(places)):
        with tempfile.TemporaryDirectory() as folder:
            found.append(events(imported(Path(folder), data)))
    assert all(rows == found[0] for rows in found)
    flat = [event for batch in batches for event in batch]
    assert [row["block_hashes"] for row in found[0]] == [
        [value % 2**64 for value in event["block_hashes"]] if "block_hashes" in event else None for event in flat
    ]
    assert [row["time_ns"] for row in found[0]] == [n * S for n, batch in enumerate(batches) for _ in batch]


def test_events_come_under_the_run_of_a_client(tmp_path: Path) -> None:
    """Both sides recorded times of day: an event half a second after profile start stays there."""
    run = client_run(tmp_path / "in", exchange()[0])
    file = tmp_path / "kv.msgpack"
    file.write_bytes(packed([{**BATCH, "ts": EPOCH_S + at} for at in (0.5, 2.5)]))
    made = open_bundle(tmp_path / "out" / attach(run, [file], tmp_path / "out", Options()))
    assert made.tables == ("requests", "kv_events")
    rows = events(made)
    assert told(rows) == [*ANSWERS, *ANSWERS]
    assert [row["time_ns"] for row in rows] == [S // 2] * 3 + [5 * S // 2] * 3
    assert made.table("requests").to_pylist() == run.table("requests").to_pylist()
    assert list(made.lineage["attached_files"]) == ["kv.msgpack"]
    assert made.lineage["alignment"]["method"] == "wall"
    assert checks(made)["clocks_aligned"][0] == "unknown"  # no event names a request


def test_passes_and_events_of_one_engine_come_together(tmp_path: Path) -> None:
    """A recorder's pass of 20 ms that was received 1 s after profile start began at 980 ms."""
    counts = {"num_prefill_requests": 0, "sum_prefill_tokens": 0, "sum_prefill_kv_tokens": 0}
    counts |= {"num_decode_requests": 1, "sum_decode_kv_tokens": 40}
    metrics = {"version": 1, "worker_id": "w", "dp_rank": 0, "wall_time": 0.02, "scheduled_requests": counts}
    records = [
        {"received_at_ns": (EPOCH_S + n) * S, "wire_counter": n, "metrics": metrics | {"counter_id": n}} for n in (1, 2)
    ]
    (tmp_path / "fpm.jsonl").write_bytes(lines(records))
    (tmp_path / "kv.jsonl").write_bytes(lines([{**BATCH, "ts": EPOCH_S + 1.5}]))
    run = client_run(tmp_path / "in", exchange()[0])
    files = [tmp_path / "fpm.jsonl", tmp_path / "kv.jsonl"]
    made = open_bundle(tmp_path / "out" / attach(run, files, tmp_path / "out", Options()))
    passes = made.table("passes")
    assert passes is not None
    assert passes["start_ns"].to_pylist() == [980_000_000, 1_980_000_000]
    assert passes["phase"].to_pylist() == ["profile", "profile"]
    assert [row["time_ns"] for row in events(made)] == [3 * S // 2] * 3


@pytest.mark.parametrize("clock", ["auto", "0.5"])
def test_what_has_no_times_has_no_place_in_a_run(tmp_path: Path, clock: str) -> None:
    """Not even a given offset would place it: a stream of durations begins nowhere."""
    run = client_run(tmp_path / "in", exchange()[0])
    (tmp_path / "kv.jsonl").write_bytes(lines(EVENTS))
    with pytest.raises(GapscopeError, match="no times, so nothing places them in a run"):
        attach(run, [tmp_path / "kv.jsonl"], tmp_path / "out", Options(), clock)


def test_a_recorders_own_rows_are_no_bad_rows_and_its_gaps_are_told(tmp_path: Path) -> None:
    rows = [
        {"kind": "start", "stream": 0, "seq": 0, "received_ns": 1},
        {"seq": 0, "dp_rank": 0, "ts": EPOCH_S, "received_ns": 1, "replayed": False, "events": [STORED]},
        {"kind": "gap", "stream": 0, "expected": 1, "got": 4},
        {"seq": 4, "dp_rank": 0, "ts": EPOCH_S + 1, "received_ns": 2, "replayed": False, "events": [CLEARED]},
        {"kind": "end", "messages": 2, "events": 2, "gaps": 1, "lost_messages": 3, "complete": False},
    ]
    file = tmp_path / "kv_raw-0.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (imported,) = import_any(file, tmp_path / "store")
    bundle = open_bundle(tmp_path / "store" / imported)
    assert bundle.rows("kv_events") == 2
    checks = {check.check: check for check in bundle.qualification}
    assert checks["rows_used"].verdict == "pass"
    assert checks["events_complete"].verdict == "fail"
    assert "3 messages were lost" in checks["events_complete"].detail
