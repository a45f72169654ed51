"""AIPerf recordings against one stub server whose behaviour is known, case by case, and an agentic run.

The stub's answer depends on the request's arrival; here the case of a request is read from what the server sent
(``profile_export_raw.jsonl``), apart from the importer.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.importers import plan_import
from engine.importers.clients.flags import BURST, NO_TOKEN_COUNT, UNFINISHED, ZERO_OUTPUT
from engine.intake import open_intake
from tests.engine.aiperf_runs import DATA, Run, imported

Answers = dict[str, dict[str, Any]]


def lines(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path) as file:
        return [json.loads(line) for line in file]


def document(path: Path) -> Any:
    with gzip.open(path) as file:
        return json.load(file)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def edge(store: Path) -> Run:
    (run,) = imported(DATA / "edge_cases", store)
    return run


@pytest.fixture(scope="module")
def records_alone(store: Path) -> Run:
    (run,) = imported(DATA / "edge_cases" / "profile_export.jsonl.gz", store)
    return run


@pytest.fixture(scope="module")
def cancellation(store: Path) -> Run:
    (run,) = imported(DATA / "cancellation", store)
    return run


@pytest.fixture(scope="module")
def mooncake(store: Path) -> Run:
    (run,) = imported(DATA / "mooncake", store)
    return run


@pytest.fixture(scope="module")
def native(store: Path) -> Run:
    (run,) = imported(DATA / "native", store)
    return run


@pytest.fixture(scope="module")
def answers() -> Answers:
    """What the server sent, by request: contents with their time, error objects, usage."""
    found = {}
    for row in lines(DATA / "edge_cases" / "profile_export_raw.jsonl.gz"):
        start, contents, answer = row["start_perf_ns"], [], {"status": row["status"], "error": None, "usage": None}
        for response in row["responses"]:
            for packet in response["packets"]:
                if packet["value"] == "[DONE]":
                    continue
                chunk = json.loads(packet["value"])
                answer["error"] = chunk.get("error") or answer["error"]
                answer["usage"] = chunk.get("usage") or answer["usage"]
                for choice in chunk.get("choices", []):
                    kinds = [k for k in ("content", "reasoning_content", "reasoning") if choice["delta"].get(k)]
                    for kind in kinds:
                        contents.append((response["perf_ns"] - start, kind, choice["delta"][kind]))
        found[row["metadata"]["x_request_id"]] = answer | {"contents": contents, "meta": row["metadata"]}
    return found


def case(answers: Answers, fits: Any) -> list[str]:
    """Profiling requests whose answer fits."""
    return [i for i, a in answers.items() if a["meta"]["benchmark_phase"] == "profiling" and fits(a)]


LATENCIES = ("first_visible_ns", "last_visible_ns", "first_output_ns")


def test_every_request_is_there_with_its_outcome(edge: Run) -> None:
    counts = Counter((row["phase"], row["status"]) for row in edge.requests.values())
    # 80 requests of the profile, four of each case: 500, 429 and the broken stream fail, the empty answer does not.
    assert counts == {("warmup", "ok"): 5, ("warmup", "error"): 1, ("profile", "ok"): 68, ("profile", "error"): 12}
    assert edge.manifest["ledger"]["profile"]["attempted"] == 80
    assert edge.check("ledger_balances")[0] == "pass"


@pytest.mark.parametrize(("code", "kind"), [(500, "Internal Server Error (500)"), (429, "Too Many Requests (429)")])
def test_http_errors(edge: Run, answers: Answers, code: int, kind: str) -> None:
    ids = case(answers, lambda a: a["status"] == code)
    assert len(ids) == 4
    for row in (edge.requests[i] for i in ids):
        assert (row["status"], row["error_type"], row["tool_status"]) == ("error", kind, "error")
        assert all(row[c] is None for c in LATENCIES)
        assert row["output_tokens"] is None
        assert row["end_ns"] >= row["dispatched_ns"]


def test_answer_without_content_is_zero_output(edge: Run, records_alone: Run, answers: Answers) -> None:
    ids = case(answers, lambda a: a["usage"] and a["usage"]["completion_tokens"] == 0)
    assert len(ids) == 4
    for run in (edge, records_alone):
        for row in (run.requests[i] for i in ids):
            assert (row["status"], row["output_tokens"], row["input_tokens"]) == ("ok", 0, 120)
            assert row["tool_status"] == "error: InvalidInferenceResultError"
            assert ZERO_OUTPUT in row["flags"]
            assert all(row[c] is None for c in LATENCIES)


def test_one_token_has_a_first_and_no_second(edge: Run, answers: Answers) -> None:
    ids = case(answers, lambda a: a["usage"] and a["usage"]["completion_tokens"] == 1)
    assert len(ids) == 4
    for row in (edge.requests[i] for i in ids):
        assert row["output_tokens"] == 1
        assert row["first_visible_ns"] == row["last_visible_ns"]
    profile = [row for row in edge.requests.values() if row["phase"] == "profile"]
    first = [row for row in profile if row["first_visible_ns"] is not None]
    several = [row for row in first if row["output_tokens"] >= 2]
    # 80 without 8 refused, 4 empty and 4 broken; and without the 4 of one token.
    assert (len(first), len(several)) == (64, 60)


def test_three_tokens_a_chunk(edge: Run, answers: Answers) -> None:
    ids = case(answers, lambda a: a["contents"] and a["contents"][1:] and len(a["contents"][1][2].split()) == 3)
    assert len(ids) == 4
    told = {r["metadata"]["x_request_id"]: r["metrics"] for r in lines(DATA / "edge_cases/profile_export.jsonl.gz")}
    for request_id in ids:
        row = edge.requests[request_id]
        assert (row["output_tokens"], row["flags"]) == (24, BURST)
        tpot_ms = (row["last_visible_ns"] - row["first_visible_ns"]) / 23 / 1e6
        assert tpot_ms == pytest.approx(told[request_id]["inter_token_latency"]["value"], abs=1e-5)
        chunks = [c for c in edge.table("chunks") if c["request_id"] == request_id and c["visible"]]
        assert len(chunks) == 8
        assert all(c["tokens"] is None for c in chunks)


def test_two_tokens_in_the_first_chunk(edge: Run, answers: Answers) -> None:
    ids = case(answers, lambda a: a["contents"] and a["contents"][0][2] == "w1 w2 ")
    assert len(ids) == 4
    for request_id in ids:
        row = edge.requests[request_id]
        assert (row["output_tokens"], row["flags"]) == (24, BURST)
        assert len([c for c in edge.table("chunks") if c["request_id"] == request_id and c["visible"]]) == 23


def test_reasoning_comes_before_the_output(edge: Run, answers: Answers) -> None:
    ids = case(answers, lambda a: a["contents"] and a["contents"][0][1] != "content")
    assert len(ids) == 4
    for request_id in ids:
        row, contents = edge.requests[request_id], answers[request_id]["contents"]
        assert row["first_visible_ns"] - row["dispatched_ns"] == contents[0][0]
        output = next(time for time, kind, _ in contents if kind == "content")
        assert row["first_output_ns"] - row["dispatched_ns"] == output
        assert output - contents[0][0] > 50_000_000  # twelve reasoning tokens, 8 ms apart
        assert (row["reasoning_tokens"], row["output_tokens"]) == (12, 24)


def test_error_inside_the_stream_is_an_error(edge: Run, answers: Answers) -> None:
    ids = case(answers, lambda a: a["error"] is not None)
    assert len(ids) == 4
    for row in (edge.requests[i] for i in ids):
        assert (row["status"], row["tool_status"]) == ("error", "success")
        assert (row["error_type"], row["error_message"]) == ("error inside the stream", "engine died")
        assert row["flags"] == UNFINISHED
        assert all(row[c] is None for c in LATENCIES)
    assert edge.check("streams_finished") == (
        "fail",
        "4 responses ended without a finish reason or the server's count",
    )


def test_without_the_raw_records_it_is_a_flagged_success(records_alone: Run, answers: Answers) -> None:
    for row in (records_alone.requests[i] for i in case(answers, lambda a: a["error"] is not None)):
        assert (row["status"], row["output_tokens"], row["input_tokens"]) == ("ok", None, None)
        assert UNFINISHED in row["flags"]
        assert NO_TOKEN_COUNT in row["flags"]
        assert row["first_visible_ns"] is not None
    ok = [row for row in records_alone.requests.values() if row["phase"] == "profile" and row["status"] == "ok"]
    assert sum(UNFINISHED in (row["flags"] or "") for row in ok) == 4
    assert any("How a stream ended" in words for words in records_alone.manifest["lineage"]["not_recorded"])


def test_times_are_those_of_the_contents(edge: Run, answers: Answers) -> None:
    """The role chunk, the finish chunk and the usage chunk are no content."""
    for request_id, row in edge.requests.items():
        contents = answers[request_id]["contents"]
        if row["status"] == "ok" and contents:
            assert row["first_visible_ns"] - row["dispatched_ns"] == contents[0][0]
            assert row["last_visible_ns"] - row["dispatched_ns"] == contents[-1][0]
            assert row["end_ns"] >= row["last_visible_ns"]
    first = [c for c in edge.table("chunks") if c["ordinal"] == 0]
    assert first
    assert not any(c["visible"] for c in first)


def test_cached_tokens(edge: Run) -> None:
    ok = [row for row in edge.requests.values() if row["status"] == "ok" and row["output_tokens"]]
    assert {row["cached_tokens"] for row in ok} == {48}  # floor(120 / 2 / 16) * 16


def test_windows_and_clock(edge: Run) -> None:
    assert edge.manifest["profile_start_unix_ns"] == 1795983518240200338
    assert edge.phase("profile") == (0, 1795983534213168024 - 1795983518240200338)
    assert edge.phase("warmup") == (
        1795983517642804429 - 1795983518240200338,
        1795983518227159952 - 1795983518240200338,
    )
    starts = {row["request_id"]: row for row in edge.requests.values()}
    for row in lines(DATA / "edge_cases/profile_export.jsonl.gz"):
        meta = row["metadata"]
        assert starts[meta["x_request_id"]]["dispatched_ns"] == meta["request_start_ns"] - 1795983518240200338
        assert starts[meta["x_request_id"]]["scheduled_ns"] == meta["credit_issued_ns"] - 1795983518240200338


@pytest.mark.parametrize("name", ["edge", "cancellation", "mooncake", "native"])
def test_summary_follows_from_the_rows(name: str, request: pytest.FixtureRequest) -> None:
    run: Run = request.getfixturevalue(name)
    verdict, detail = run.check("summary_reproduced")
    assert verdict == "pass", detail
    assert int(detail.split(" figures")[0].removeprefix("all ").replace(",", "")) > 500


@pytest.mark.parametrize(("tag", "column"), [("time_to_first_token", "first"), ("request_latency", "last")])
def test_bundle_has_the_summary_s_statistics(native: Run, tag: str, column: str) -> None:
    stated = document(DATA / "native/profile_export_aiperf.json.gz")[tag]
    rows = [row for row in native.requests.values() if row["phase"] == "profile"]
    values = np.array([row[f"{column}_visible_ns"] - row["dispatched_ns"] for row in rows]) / 1e6
    assert len(values) == stated["count"] == 238
    assert values.mean() == pytest.approx(stated["avg"], abs=1e-6)
    assert values.std() == pytest.approx(stated["std"], abs=1e-6)
    for percent in (1, 5, 10, 25, 50, 75, 90, 95, 99):
        assert np.percentile(values, percent) == pytest.approx(stated[f"p{percent}"], abs=1e-6)
    told = {r["statistic"]: r["value"] for r in native.table("reported") if r["name"] == tag and r["scope"] == "run"}
    assert told["mean"] == stated["avg"]
    assert told["p90"] == stated["p90"]


def test_both_denominators(edge: Run) -> None:
    verdict, detail = edge.check("throughput_denominator")
    assert verdict == "pass"
    # 1444 output tokens over 15.972968 s and over 15.647340 s.
    assert "90.403 tok/s over the phase window of 15.973 s" in detail
    assert "92.284 tok/s over the activity span of 15.647 s" in detail
    assert edge.identity("definitions", "throughput_denominator") == "phase window, grace and drain included"


def test_per_metric_n(edge: Run) -> None:
    told = {(r["name"], r["n"]) for r in edge.table("reported") if r["scope"] == "run" and r["statistic"] == "mean"}
    assert {("time_to_first_token", 68), ("output_sequence_length", 64), ("inter_token_latency", 60)} <= told


def test_concurrency(edge: Run) -> None:
    assert edge.check("concurrency_kept") == (
        "pass",
        "at most 4 requests were in flight, where 4 were allowed; the tool says 4 at most",
    )


def test_slices_and_server_samples(edge: Run) -> None:
    assert edge.check("slices_add_up")[0] == "pass"
    slices = {r["slice_start_ns"] for r in edge.table("reported") if r["scope"] == "slice"}
    assert len(slices) == 11
    assert min(slices) == 1795983518257522944 - 1795983518240200338
    samples = edge.table("telemetry")
    assert len(samples) == 37 * 5
    assert {s["kind"] for s in samples} == {"server"}
    running = [s["value"] for s in samples if s["name"] == "vllm:num_requests_running"]
    assert max(running) == 4


def test_definitions(edge: Run) -> None:
    found = {k: v["value"] for k, v in edge.manifest["identity"]["definitions"].items()}
    assert found["first_token"] == "first chunk with content of any kind, reasoning included"
    assert found["end_of_latency"] == "last content"
    assert found["token_source"] == "server usage"
    assert found["stream_errors"] == "status error, no latency"


def test_cancellation(cancellation: Run) -> None:
    told = lines(DATA / "cancellation/profile_export.jsonl.gz")
    canceled = {r["metadata"]["x_request_id"] for r in told if r["metadata"]["was_cancelled"]}
    rows = cancellation.requests
    assert len(rows) == len(told) == 103
    assert {i for i, row in rows.items() if row["status"] == "canceled"} == canceled
    assert len(canceled) == 21
    for row in (rows[i] for i in canceled):
        assert row["error_type"] == "RequestCancellationError (499)"
        assert all(row[c] is None for c in LATENCIES)
    # Nothing new starts after 6 s; what is in flight may finish within the grace.
    assert cancellation.phase("profile") == (0, 6_000_000_000)
    assert cancellation.phase("grace") == (6_000_000_000, 7_011_653_575)
    assert cancellation.check("window_length")[0] == "pass"
    assert any("canceled when the grace ended" in w for w in cancellation.manifest["lineage"]["not_recorded"])


def test_every_outcome_of_the_cancellation_run(cancellation: Run) -> None:
    """By the client's own words for each record: 66 without error, 6 of them broken or short; 37 with one."""
    rows = list(cancellation.requests.values())
    assert Counter((row["status"], row["error_type"]) for row in rows) == {
        ("ok", None): 72,  # 66, and 6 answers without content that AIPerf calls errors
        ("canceled", "RequestCancellationError (499)"): 21,
        ("error", "Too Many Requests (429)"): 5,
        ("error", "Internal Server Error (500)"): 5,
    }
    ok = [row for row in rows if row["status"] == "ok"]
    assert sum(row["output_tokens"] == 0 for row in ok) == 6
    # Streams that broke off have a first content and no count of the server: 62 of the 66 have tokens, 1350 of them.
    counted = [row["output_tokens"] for row in ok if row["output_tokens"]]
    assert (len(counted), sum(counted)) == (62, 1350)
    assert sum(UNFINISHED in (row["flags"] or "") for row in ok) == 4
    first = [row["first_visible_ns"] - row["dispatched_ns"] for row in ok if row["first_visible_ns"] is not None]
    assert (len(first), sum(first)) == (66, pytest.approx(2748.276402e6, abs=66))
    # Sent, and broken off by the client 0.12 s later, as it was told to; a busy machine wakes up later, never sooner.
    told = {r["metadata"]["x_request_id"]: r["metadata"] for r in lines(DATA / "cancellation/profile_export.jsonl.gz")}
    for request_id, row in cancellation.requests.items():
        if row["status"] == "canceled":
            meta = told[request_id]
            assert row["end_ns"] - row["dispatched_ns"] == meta["request_end_ns"] - meta["request_start_ns"]
            assert meta["cancellation_time_ns"] - meta["request_start_ns"] >= 120_000_000
    assert "192.537 tok/s over the phase window of 7.012 s" in cancellation.check("throughput_denominator")[1]
    assert "at most 6 requests were in flight, where 6 were allowed" in cancellation.check("concurrency_kept")[1]
    assert cancellation.identity("client", "loop") == ("closed; 30 % of the requests are canceled 0.12 s after sending")


def test_mooncake(mooncake: Run) -> None:
    by_turn = {(row["conversation_id"], row["turn_index"]): row for row in mooncake.requests.values()}
    assert len(by_turn) == 7
    broken = by_turn["s1", 0]
    assert (broken["status"], broken["error_type"], broken["output_tokens"]) == (
        "error",
        "error inside the stream",
        None,
    )
    assert broken["play_id"] == "fixed-schedule-s1"
    refused = [row for row in mooncake.requests.values() if row["error_type"] == "Too Many Requests (429)"]
    assert [row["conversation_id"] for row in refused] == ["s3"]
    # A later turn's prompt holds the turns before it, more than the 1100 and 700 tokens of the trace's row.
    assert {row["input_tokens"] for (_, turn), row in by_turn.items() if turn == 1} == {1706, 1220}


def test_native_counts_are_those_of_the_log(native: Run) -> None:
    assert native.manifest["ledger"]["profile"] == {
        "attempted": 238, "ok": 238, "error": 0, "rejected": 0, "canceled": 0, "in_flight": 0,
    }  # fmt: skip
    assert native.manifest["ledger"]["warmup"]["attempted"] == 5
    verdict, detail = native.check("requests_accounted")
    assert verdict == "pass"
    assert "the log 238 sent, 238 completed, 0 canceled; 0 have no record" in detail
    # sent_end_ns - start_ns and requests_end_ns - start_ns of the log
    assert native.phase("profile") == (0, 1795985592686093785 - 1795985517676385158)
    assert native.phase("grace")[1] == 1795985595678207386 - 1795985517676385158


def test_native_validity_and_identity(native: Run) -> None:
    assert native.check("submission_valid") == ("fail", "submission_valid is false: unsafe_override")
    assert native.check("concurrency_kept")[0] == "pass"
    assert native.check("client_responsive")[0] == "fail"  # the log has an event loop that was 1,749 ms late
    assert native.identity("capacity", "usable_kv_blocks") == 4095
    assert native.identity("source", "version") == "0.32.0"
    assert native.identity("client", "lanes") == 4


def test_native_subagents_know_who_spawned_them(native: Run) -> None:
    rows = native.requests
    children = [row for row in rows.values() if row["agent_depth"] == 1]
    assert children
    known = [row for row in children if row["parent_request_id"] is not None]
    assert known
    for row in known:
        parent = rows[row["parent_request_id"]]
        assert parent["play_id"] == row["play_id"]
        assert parent["agent_depth"] == 0
        assert parent["source_outer_index"] < row["source_outer_index"]
        assert parent["end_ns"] <= row["dispatched_ns"]


def test_plan_names_every_file(tmp_path: Path) -> None:
    with open_intake(DATA / "edge_cases") as intake:
        plan = plan_import(intake)
        (part,) = plan.parts
        named = {use.file.name for use in part.uses} | {name for name, _ in part.ignores}
        assert named == {file.name for file in intake.files}
        assert (part.tool, part.version, part.kind) == ("AIPerf", "0.13.0", "measured")
        assert all(why for _, why in part.ignores)


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("profile_export_aiperf.json.gz", "reported"),
        ("profile_export_aiperf.csv", "reported"),
        ("profile_export_aiperf_timeslices.json.gz", "reported"),
        ("profile_export_aiperf_timeslices.csv.gz", "reported"),
        ("server_metrics_export.json.gz", "reported"),
        ("server_metrics_export.csv", "reported"),
        ("server_metrics_export.jsonl.gz", "telemetry"),
        ("server_metrics_export.parquet", "telemetry"),
    ],
)
def test_a_file_alone_is_a_summary(tmp_path: Path, name: str, table: str) -> None:
    (run,) = imported(DATA / "edge_cases" / name, tmp_path)
    assert run.manifest["kind"] == "imported_summary"
    assert run.table(table)
    assert not run.table("requests")


def test_csv_and_json_say_the_same(tmp_path: Path) -> None:
    (exact,) = imported(DATA / "edge_cases/profile_export_aiperf.json.gz", tmp_path)
    (rounded,) = imported(DATA / "edge_cases/profile_export_aiperf.csv", tmp_path)
    stated = {(r["name"], r["statistic"]): r["value"] for r in exact.table("reported") if r["scope"] == "run"}
    compared = 0
    for row in rounded.table("reported"):
        if (row["name"], row["statistic"]) in stated and row["metric"]:
            assert row["value"] == pytest.approx(stated[row["name"], row["statistic"]], abs=0.0051)
            compared += 1
    assert compared > 80


def test_raw_records_alone(edge: Run, tmp_path: Path) -> None:
    """Without the records everything but the client's own token counts follows from the responses."""
    (run,) = imported(DATA / "edge_cases/profile_export_raw.jsonl.gz", tmp_path)
    assert run.manifest["lineage"]["tool_version"] == "0.13.0"
    origin = run.manifest["profile_start_unix_ns"] - edge.manifest["profile_start_unix_ns"]
    for request_id, row in run.requests.items():
        other = edge.requests[request_id]
        for column in ("status", "output_tokens", "cached_tokens", "conversation_id", "phase"):
            assert row[column] == other[column], (request_id, column)
        for column in ("dispatched_ns", "first_visible_ns", "last_visible_ns", "first_output_ns", "end_ns"):
            assert row[column] == (None if other[column] is None else other[column] - origin)


# What was to be sent: session, turn, time in ms (of first turns), tokens asked for, prompt as the server counted it.
SCHEDULE = (
    ("s1", 0, 0, 12, None),
    ("s1", 1, None, 10, 1706),
    ("s2", 0, 300, 8, 512),
    ("s2", 1, None, 9, 1220),
    ("s3", 0, 900, 1, None),
    ("session_000000", 0, 1000, 6, 100),
    ("session_000001", 0, 1500, 20, 2048),
)


def test_mooncake_row_by_row(mooncake: Run) -> None:
    by_turn = {(row["conversation_id"], row["turn_index"]): row for row in mooncake.requests.values()}
    assert by_turn.keys() == {(session, turn) for session, turn, *_ in SCHEDULE}
    for session, turn, at_ms, asked, prompt in SCHEDULE:
        row = by_turn[session, turn]
        assert (row["play_id"], row["requested_output_tokens"]) == (f"fixed-schedule-{session}", asked)
        if at_ms is not None:  # within two milliseconds of the trace's own time
            assert row["scheduled_ns"] == pytest.approx(at_ms * 1e6, abs=2e6)
        assert row["input_tokens"] == prompt
        answered = prompt is not None
        assert row["status"] == ("ok" if answered else "error")
        assert row["output_tokens"] == (asked if answered else None)
        # The stub says that half of the prompt was cached, in whole blocks of 16.
        assert row["cached_tokens"] == (prompt // 2 // 16 * 16 if prompt else None)
    # A second turn follows the end of the first after its delay of 120 and 400 ms.
    for session, delay_ms in (("s1", 120), ("s2", 400)):
        later = by_turn[session, 1]["scheduled_ns"] - by_turn[session, 0]["end_ns"]
        assert later == pytest.approx(delay_ms * 1e6, abs=5e6)
    # Errors are in no latency: five of AIPerf's six successes, without that of the broken stream (70.291955 ms).
    ok = [row for row in by_turn.values() if row["status"] == "ok"]
    assert sum(row["first_visible_ns"] - row["dispatched_ns"] for row in ok) == 517_296_041 - 70_291_955
    ledger = mooncake.manifest["ledger"]["profile"]
    assert [ledger[name] for name in ("attempted", "ok", "error")] == [7, 5, 2]
    assert mooncake.identity("client", "loop") == "open, at the times of the trace"
    assert "15.316 tok/s over the phase window of 3.461 s" in mooncake.check("throughput_denominator")[1]
