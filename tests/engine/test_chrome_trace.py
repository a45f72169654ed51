"""A window of a run as a Chrome trace: times and counts of the tables, proper nesting, and a visible cut."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from engine.bundle import Bundle, find_bundle
from engine.bundle import chrome_rows as rows
from engine.bundle.chrome import chrome_trace, tracks
from engine.cli.main import main
from engine.errors import GapscopeError

SAMPLES = Path(__file__).parents[2] / "sample_runs"
S = 1_000_000_000
FROM, SPAN = 20.0, 15.0


@pytest.fixture(scope="module", params=["tight8", "tight8-predicted"])
def bundle(request: pytest.FixtureRequest) -> Bundle:
    return find_bundle([SAMPLES], request.param)


def table(bundle: Bundle, name: str) -> list[dict[str, Any]]:
    found = bundle.table(name)
    assert found is not None
    return found.to_pylist()


def told(bundle: Bundle, *window: Any, **given: Any) -> dict[str, Any]:
    return json.loads(chrome_trace(bundle, *window, **given).data)


def of(trace: dict[str, Any], phase: str, category: str = "") -> list[dict[str, Any]]:
    return [one for one in trace["traceEvents"] if one["ph"] == phase and category in ("", one.get("cat"))]


def test_slices_are_the_passes_of_the_window(bundle: Bundle) -> None:
    trace = told(bundle, FROM, SPAN)
    inside = [
        one for one in table(bundle, "passes") if one["start_ns"] < (FROM + SPAN) * S and one["end_ns"] > FROM * S
    ]
    slices = of(trace, "X")
    assert len(slices) == len(inside) > 100
    origin = trace["otherData"]["origin_ns"]
    for shown, row in zip(slices, inside, strict=True):
        assert shown["args"]["start_ns"] == row["start_ns"]
        assert shown["args"]["end_ns"] == row["end_ns"]
        assert 0 <= row["start_ns"] - origin - 1000 * shown["ts"] < 1000
        assert 0 <= row["end_ns"] - origin - 1000 * (shown["ts"] + shown["dur"]) < 1000
        assert shown["args"]["num_prefill_requests"] == row["num_prefill_requests"]
        assert shown["args"]["sum_decode_kv_tokens"] == row["sum_decode_kv_tokens"]
        assert len(shown["args"].get("members", {})) == len(row["members"] or [])
        kind = {(True, True): "mixed", (True, False): "prefill", (False, True): "decode", (False, False): "idle"}
        assert shown["name"].startswith(kind[row["num_prefill_requests"] > 0, row["num_decode_requests"] > 0])


def test_no_slices_of_one_track_overlap_and_their_order_is_kept(bundle: Bundle) -> None:
    last: dict[tuple[int, int], int] = defaultdict(int)
    for one in of(told(bundle, -1e6, 2e6), "X"):
        track = (one["pid"], one["tid"])
        assert one["ts"] >= last[track]
        assert one["dur"] >= 0
        last[track] = one["ts"] + one["dur"]


def test_requests_are_nested_slices_of_their_lanes(bundle: Bundle) -> None:
    trace = told(bundle, FROM, SPAN)
    inside = [
        one
        for one in table(bundle, "requests")
        if one["dispatched_ns"] < (FROM + SPAN) * S and (one["end_ns"] is None or one["end_ns"] > FROM * S)
    ]
    open_: dict[str, list[dict[str, Any]]] = defaultdict(list)
    last: dict[str, int] = {}
    seen: dict[str, dict[str, Any]] = {}
    stages: dict[str, list[str]] = defaultdict(list)
    for one in [event for event in trace["traceEvents"] if event["ph"] in "be"]:
        track = one["id"]
        assert one["ts"] >= last.get(track, one["ts"])
        last[track] = one["ts"]
        if one["ph"] == "e":
            assert open_[track].pop()["name"] == one["name"]
            continue
        if len(open_[track]) == 1:
            seen[one["args"]["request_id"]] = one
            assert one["id"].startswith(f"lane {one['args']['lane']}")
        if len(open_[track]) == 2:
            stages[open_[track][1]["args"]["request_id"]].append(one["name"])
        open_[track].append(one)
        assert len(open_[track]) <= 3
    assert not any(open_.values())
    assert set(seen) == {one["request_id"] for one in inside}
    for row in inside:
        if row["status"] == "ok":
            assert stages[row["request_id"]] == ["way", "queue", "prefill", "decode"]


def test_instants_are_evictions_and_preemptions(bundle: Bundle) -> None:
    trace = told(bundle, FROM, SPAN)
    events = [one for one in table(bundle, "kv_events") if FROM * S <= one["time_ns"] < (FROM + SPAN) * S]
    for kind in ("evict", "clear", "readmit"):
        named = [one for one in of(trace, "i", "cache") if one["name"].startswith(kind)]
        assert len(named) == sum(one["kind"] == kind for one in events)
    blocks = sum(one["args"]["num_blocks"] for one in of(trace, "i", "cache") if one["name"].startswith("evict"))
    assert blocks == sum(one["num_blocks"] for one in events if one["kind"] == "evict") > 0
    every = told(bundle, -1e6, 2e6)
    preempted = [one for one in of(every, "i", "cache") if one["name"].startswith("preempt")]
    counted = sum(one["args"].get("requests", 1) for one in preempted)
    assert counted == sum(one["num_preempted"] or 0 for one in table(bundle, "passes")) > 0


def test_counters_follow_the_passes(bundle: Bundle) -> None:
    trace = told(bundle, FROM, 2.0)
    running = [one["args"]["running"] for one in of(trace, "C") if one["name"] == "requests"]
    free = [one["args"]["free"] for one in of(trace, "C") if one["name"] == "KV blocks"]
    shown = {one["args"]["pass_index"] for one in of(trace, "X")}
    inside = [one for one in table(bundle, "passes") if one["pass_index"] in shown]
    assert running == [one["num_running"] for one in inside]
    assert free == [one["kv_blocks_total"] - one["kv_blocks_used"] for one in inside]


def test_around_one_request(bundle: Bundle) -> None:
    row = next(one for one in table(bundle, "requests") if one["status"] == "ok" and one["dispatched_ns"] > 0)
    name = f"{row['conversation_id']}/{row['turn_index']}"
    trace = told(bundle, request=name)
    assert trace["otherData"]["from_ns"] == row["dispatched_ns"]
    assert trace["otherData"]["to_ns"] == row["end_ns"]
    own = [one for one in of(trace, "X") if one["args"]["holds_request"]]
    member = [
        one["pass_index"]
        for one in table(bundle, "passes")
        if any(who["request_id"] == row["request_id"] for who in one["members"] or [])
    ]
    assert [one["args"]["pass_index"] for one in own] == member
    assert trace == told(bundle, request=row["request_id"])


def test_a_window_that_holds_too_much_is_cut_and_says_where(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rows.MOST, "passes", 40)
    trace = chrome_trace(bundle, FROM, SPAN)
    held = json.loads(trace.data)
    inside = [
        one for one in table(bundle, "passes") if one["start_ns"] < (FROM + SPAN) * S and one["end_ns"] > FROM * S
    ]
    assert trace.to_ns == inside[40]["start_ns"] == held["otherData"]["to_ns"]
    assert [one["args"]["pass_index"] for one in of(held, "X")] == [one["pass_index"] for one in inside[:40]]
    assert "cut at" in trace.cut
    assert "40 passes" in held["otherData"]["cut"]
    (mark,) = of(held, "i", "cut")
    assert mark["ts"] == (trace.to_ns - held["otherData"]["origin_ns"]) // 1000
    assert all(
        one["args"]["dispatched_ns"] < trace.to_ns for one in of(held, "b") if "dispatched_ns" in one.get("args", {})
    )


def test_tracks_hold_no_two_spans_at_once() -> None:
    spans = [(0, 10), (0, 0), (3, 5), (5, 9), (9, 20), (10, 12), (11, 12)]
    assert tracks(spans) == [0, 1, 1, 1, 1, 0, 2]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [("way", 0, 2), ("queue", 2, 5), ("prefill", 5, 9), ("decode", 9, 20)]),
        ({"received_ns": None}, [("way and queue", 0, 5), ("prefill", 5, 9), ("decode", 9, 20)]),
        ({"received_ns": -3}, [("way", 0, 0), ("queue", 0, 5), ("prefill", 5, 9), ("decode", 9, 20)]),
        ({"first_visible_ns": None, "last_visible_ns": None},
         [("way", 0, 2), ("queue", 2, 5), ("prefill and decode", 5, 21)]),
        ({"last_visible_ns": 30}, [("way", 0, 2), ("queue", 2, 5), ("prefill", 5, 9), ("decode", 9, 21)]),
    ],
)  # fmt: skip
def test_stages_follow_each_other(changes: dict[str, Any], expected: list[tuple[str, int, int]]) -> None:
    row = {"dispatched_ns": 0, "received_ns": 2, "first_admit_ns": 5, "first_visible_ns": 9, "last_visible_ns": 20}
    assert list(rows.stages(row | {"end_ns": 21} | changes)) == expected


def test_a_run_of_passes_alone_and_one_of_requests_alone() -> None:
    sweep = chrome_trace(find_bundle([SAMPLES], "fpm_sweep"), -1e6, 2e6)
    assert (sweep.passes, sweep.requests) == (1217, 0)  # README
    client = find_bundle([SAMPLES], "stub_vllm_bench")
    trace = chrome_trace(client, -1e6, 2e6)
    assert trace.passes == 0
    assert trace.requests == client.rows("requests")
    assert of(json.loads(trace.data), "b")


def test_the_command_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t.json"
    run = ["export", "tight8", "--store", str(SAMPLES)]
    assert main([*run, "--chrome-trace", str(file), "--from", "20", "--span", "15"]) == 0
    assert file.read_bytes() == chrome_trace(find_bundle([SAMPLES], "tight8"), 20, 15).data
    assert "from 20.000 to 35.000 s" in capsys.readouterr().err
    for wrong, words in (
        (["--from", "3"], "--chrome-trace"),
        (["--chrome-trace", str(file), "--out", "x"], "leave out"),
        (["--chrome-trace", str(file), "--span", "0"], "above 0"),
        (["--chrome-trace", str(file), "--from", "nan"], "seconds from profile start"),
        (["--chrome-trace", str(file), "--request", "nobody/7"], "no request 'nobody/7'"),
        (["--chrome-trace", str(tmp_path / "no" / "t.json")], "cannot be written"),
    ):
        assert main([*run, *wrong]) == 2
        assert words in capsys.readouterr().err


def test_bad_names_are_said() -> None:
    with pytest.raises(GapscopeError, match="no request"):
        chrome_trace(find_bundle([SAMPLES], "tight8"), request="s0003#99/2")
