"""The load client against a server that misbehaves: what the run says is what the server's own log says."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from stub_server import GAP_S, Stub

from engine.bundle import Bundle, open_bundle
from engine.errors import GapscopeError
from engine.knobs import resolve
from engine.recording.plan import Plan
from engine.recording.recording import Recorded, record

TURNS = 9
OUTPUT = 6


def lengths(path: Path, sessions: list[list[dict[str, Any]]]) -> Path:
    rows = [{"session_id": f"s{n}", **turn} for n, session in enumerate(sessions) for turn in session]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def turn(output: int = OUTPUT, **more: Any) -> dict[str, Any]:
    return {"input_length": 20, "output_length": output, "timestamp": 0, **more}


def singles(path: Path, count: int, output: int = OUTPUT) -> Path:
    return lengths(path, [[turn(output)] for _ in range(count)])


def recorded(stub: Stub, trace: Path, store: Path, plan: dict[str, Any] | None = None, **knobs: Any) -> Recorded:
    settings = resolve({"lanes": 1, **knobs})
    return record(Plan(stub.url, trace, settings, "run", **(plan or {})), store, lambda share, words: None)


def rows_of(store: Path, done: Recorded, name: str = "requests") -> list[dict[str, Any]]:
    table = open_bundle(store / done.run_id).table(name)
    assert table is not None
    rows = table.to_pylist()
    return sorted(rows, key=lambda row: row["dispatched_ns"]) if name == "requests" else rows


def verdicts(bundle: Bundle) -> dict[str, str]:
    return {check.check: check.verdict for check in bundle.qualification}


def test_every_way_to_fail_has_its_own_row_and_the_times_are_the_servers(tmp_path: Path) -> None:
    script = [
        {"slow_s": 0.15},
        {"status": 503},
        {"error_after": 2},
        {"usage": False},
        {"per_chunk": 4},
        {"empty": (0, 3)},
        {"cut_after": 3},
        {"body": "<html>it works</html>"},
        {"done": False},
        {"close": True},
        {"stall_after": 1},
        {},
    ]
    with Stub(script) as stub:
        trace = singles(tmp_path / "t.jsonl", len(script))
        done = recorded(stub, trace, tmp_path, {"timeout_s": 0.6})
        log = stub.log
    rows = rows_of(tmp_path, done)
    assert [row["request_id"] for row in rows] == [entry["id"] for entry in log]
    assert [entry["body"]["request_id"] for entry in log] == [entry["id"] for entry in log]
    failed = {1: "HTTP 503", 2: "in the stream", 6: "connection", 7: "no stream", 10: "timeout"}
    assert [row["status"] for row in rows] == ["error" if n in failed else "ok" for n in range(len(script))]
    for number, kind in failed.items():
        assert rows[number]["error_type"] == kind, rows[number]["error_message"]
    assert rows[2]["error_message"] == "in the stream: 500: told to break"
    bundle = open_bundle(tmp_path / done.run_id)
    assert bundle.manifest["ledger"]["total"]["attempted"] == len(script)
    # What arrived counts, of those that broke off as well.
    assert [row["output_tokens"] for row in rows] == [6, 0, 2, 6, 6, 6, 3, 0, 6, 6, 1, 6]
    chunks: dict[str, list[dict[str, Any]]] = {row["request_id"]: [] for row in rows}
    for chunk in rows_of(tmp_path, done, "chunks"):
        chunks[chunk["request_id"]].append(chunk)
    for row, entry in zip(rows, log, strict=True):
        mine = chunks[row["request_id"]]
        assert [(c["tokens"], c["visible"]) for c in mine] == [(n, seen) for _, n, seen in entry["sent"]][: len(mine)]
        assert len(mine) == len(entry["sent"])
        for chunk, (sent, _, _) in zip(mine, entry["sent"], strict=True):
            # The stub and the client share a clock; what was sent cannot be seen before.
            after_s = (chunk["time_ns"] - row["dispatched_ns"]) / 1e9
            assert after_s >= sent - entry["came"]
        seen = [c["time_ns"] for c in mine if c["visible"]]
        assert (row["first_visible_ns"], row["last_visible_ns"]) == ((seen[0], seen[-1]) if seen else (None, None))
    assert rows[0]["first_visible_ns"] - rows[0]["dispatched_ns"] >= 150_000_000
    assert rows[5]["first_visible_ns"] - rows[5]["dispatched_ns"] >= GAP_S * 1e9  # the first token has no text
    assert rows[10]["end_ns"] - rows[10]["last_visible_ns"] >= 590_000_000
    assert verdicts(bundle)["prompts_verified"] == "pass"
    assert [entry["end"] for entry in log][6] == "cut"


def test_an_unknown_count_stays_unknown(tmp_path: Path) -> None:
    with Stub([{"ids": False, "usage": False}, {"ids": False}]) as stub:
        stub.engine_version = None  # knows neither exact lengths nor ids
        done = recorded(stub, singles(tmp_path / "t.jsonl", 2), tmp_path)
        bodies = [entry["body"] for entry in stub.log]
    rows = rows_of(tmp_path, done)
    assert [row["output_tokens"] for row in rows] == [None, OUTPUT]
    assert {chunk["tokens"] for chunk in rows_of(tmp_path, done, "chunks")} == {None}
    assert not {"ignore_eos", "min_tokens", "return_token_ids", "session_id"} & set(bodies[0])


def test_outputs_are_fed_back_and_turns_wait_for_the_response_and_the_think_time(tmp_path: Path) -> None:
    rows = [
        {"kind": "meta", "schema": "agentic-trace/1"},
        {"kind": "system", "system": "s", "ids": [5, 6, 7]},
        {"kind": "session", "session_id": "r", "system": "s", "parent": None, "turns": [
            {"turn": 0, "input_tokens": 2, "input_ids": [11, 12], "output_tokens": 4, "think_s": 0,
             "spawn": ["f", "n"]},
            {"turn": 1, "input_tokens": 1, "input_ids": [13], "output_tokens": 3, "think_s": 0.1, "spawn": []}]},
        {"kind": "session", "session_id": "f", "system": None,
         "parent": {"session_id": "r", "after_turn": 0, "mode": "fork"},
         "turns": [{"turn": 0, "input_tokens": 1, "input_ids": [21], "output_tokens": 5, "think_s": 0, "spawn": []}]},
        {"kind": "session", "session_id": "n", "system": "s",
         "parent": {"session_id": "r", "after_turn": 0, "mode": "fresh"},
         "turns": [{"turn": 0, "input_tokens": 1, "input_ids": [31], "output_tokens": 2, "think_s": 0, "spawn": []}]},
    ]  # fmt: skip
    trace = tmp_path / "tree.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with Stub() as stub:
        done = recorded(stub, trace, tmp_path)
        sent = {entry["body"]["prompt"][-1]: entry for entry in stub.log}
    first, fork, fresh, last = sent[12], sent[21], sent[31], sent[13]
    told = {row["request_id"]: row for row in _raw(done)}
    output = told[first["id"]]["output_ids"]
    assert len(output) == 4
    assert first["body"]["prompt"] == [5, 6, 7, 11, 12]
    assert fork["body"]["prompt"] == [5, 6, 7, 11, 12, *output, 21]
    assert fresh["body"]["prompt"] == [5, 6, 7, 31]
    assert last["body"]["prompt"] == [5, 6, 7, 11, 12, *output, 13]
    assert first["body"]["max_tokens"] == first["body"]["min_tokens"] == 4
    assert fork["came"] >= first["sent"][-1][0]
    assert last["came"] >= max(fork["sent"][-1][0], fresh["sent"][-1][0]) + 0.1
    bundle = open_bundle(tmp_path / done.run_id)
    assert verdicts(bundle)["prompts_verified"] == "pass"
    parents = {row["request_id"]: row["parent_request_id"] for row in rows_of(tmp_path, done)}
    assert parents[fork["id"]] == parents[fresh["id"]] == first["id"]


def _raw(done: Recorded) -> list[dict[str, Any]]:
    assert done.raw is not None
    return [json.loads(line) for line in (done.raw / "requests.jsonl").read_text().splitlines()]


def test_what_waits_for_a_failed_turn_is_never_sent_and_the_lane_goes_on(tmp_path: Path) -> None:
    trace = lengths(tmp_path / "t.jsonl", [[turn(), turn(delay=0), turn(delay=0)], [turn()]])
    with Stub([{}, {"status": 500}]) as stub:
        done = recorded(stub, trace, tmp_path)
        assert len(stub.log) == 3
    rows = rows_of(tmp_path, done)
    assert [(row["conversation_id"], row["turn_index"]) for row in rows] == [("s0", 0), ("s0", 1), ("s1", 0)]
    assert open_bundle(tmp_path / done.run_id).manifest["ledger"]["total"]["never_issued"] == 1


def test_lanes_bound_what_is_in_flight(tmp_path: Path) -> None:
    with Stub() as stub:
        recorded(stub, singles(tmp_path / "t.jsonl", 9, 12), tmp_path, lanes=3)
        assert stub.most_in_flight == 3
        assert len(stub.log) == 9


def test_a_window_whose_rest_is_think_time_is_played_to_its_end(tmp_path: Path) -> None:
    rows = [
        {"kind": "meta", "schema": "agentic-trace/1"},
        {"kind": "system", "system": "s", "ids": [5, 6, 7]},
        {"kind": "session", "session_id": "r", "system": "s", "parent": None, "turns": [
            {"turn": 0, "input_tokens": 1, "input_ids": [11], "output_tokens": 2, "think_s": 0, "spawn": []},
            {"turn": 1, "input_tokens": 1, "input_ids": [13], "output_tokens": 2, "think_s": 60, "spawn": []}]},
    ]  # fmt: skip
    trace = tmp_path / "tree.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with Stub() as stub:
        done = recorded(stub, trace, tmp_path, duration_s=0.5)
        assert len(stub.log) == 1
    bundle = open_bundle(tmp_path / done.run_id)
    assert verdicts(bundle)["phases_complete"] == "pass"
    assert not done.remarks


def test_phases_grace_and_cancel(tmp_path: Path) -> None:
    trace = lengths(tmp_path / "t.jsonl", [[turn(8)] for _ in range(400)])
    with Stub([{"gap_s": 0.07}] * 400) as stub:  # over at 0.26 s and 0.82 s, far from the cancel
        done = recorded(stub, trace, tmp_path, lanes=2, warmup_s=0.3, duration_s=0.5, grace_s=0.02)
        deadline = time.monotonic() + 5
        while stub.in_flight and time.monotonic() < deadline:
            time.sleep(0.01)
        ends = [entry["end"] for entry in stub.log]
    bundle = open_bundle(tmp_path / done.run_id)
    rows = rows_of(tmp_path, done)
    assert {row["phase"] for row in rows} == {"warmup", "profile"}
    assert all((row["phase"] == "warmup") == (row["dispatched_ns"] < 0) for row in rows)
    assert -310_000_000 < rows[0]["dispatched_ns"] < -250_000_000
    assert max(row["dispatched_ns"] for row in rows) < 540_000_000
    spans = {phase.name: (phase.start_ns, phase.end_ns) for phase in bundle.phases}
    assert spans["warmup"] == (-300_000_000, 0)
    assert spans["profile"] == (0, 500_000_000)
    canceled = [row for row in rows if row["status"] == "canceled"]
    assert 1 <= len(canceled) <= 2
    assert all(row["end_ns"] >= 520_000_000 for row in canceled)
    assert ends.count("left by the client") == len(canceled)
    assert {row["status"] for row in rows} == {"ok", "canceled"}
    assert verdicts(bundle)["phases_complete"] == "pass"


def test_a_cut_primes_its_history_and_the_profile_begins_behind_the_barrier(tmp_path: Path) -> None:
    trace = lengths(tmp_path / "t.jsonl", [[turn(), *[turn(delay=0) for _ in range(5)]] for _ in range(2)])
    knobs = {"cut": "turns", "cut_from": 0.5, "cut_to": 0.5, "prime": True, "warmup_requests": 1}
    with Stub() as stub:
        done = recorded(stub, trace, tmp_path, lanes=2, **knobs)
        log = stub.log
    rows = rows_of(tmp_path, done)
    phases = [row["phase"] for row in rows]
    assert sorted(phases) == ["primer"] * 2 + ["profile"] * 6 + ["warmup"] * 2
    assert all((row["phase"] == "profile") == (row["dispatched_ns"] >= 0) for row in rows)
    assert [entry["body"]["max_tokens"] for entry in log][:4] == [1] * 4
    spans = [(phase.name, phase.end_ns) for phase in open_bundle(tmp_path / done.run_id).phases]
    primed = max(row["end_ns"] for row in rows if row["phase"] == "primer")
    assert [name for name, _ in spans[:2]] == ["primer", "warmup"]
    assert [end for _, end in spans[:2]] == pytest.approx([primed, 0], abs=2000)  # rows have whole microseconds
    # Turn 3 goes on from turn 2, whose whole prompt its primer sent: outputs of history are made up.
    by_turn = {(r["conversation_id"], r["turn_index"], r["phase"]): e for r, e in zip(rows, log, strict=True)}
    for session in ("s0", "s1"):
        primer = by_turn[session, 2, "primer"]["body"]["prompt"]
        first = by_turn[session, 3, "profile"]["body"]["prompt"]
        assert first[: len(primer)] == primer
        assert len(first) == len(primer) + OUTPUT + 20
    assert verdicts(open_bundle(tmp_path / done.run_id))["prompts_verified"] == "pass"


def test_a_play_that_is_played_again_shares_nothing(tmp_path: Path) -> None:
    trace = singles(tmp_path / "t.jsonl", 1, 1)
    with Stub() as stub:
        done = recorded(stub, trace, tmp_path, wrap=True, duration_s=0.2)
        first = [entry["body"]["prompt"][0] for entry in stub.log]
    rows = rows_of(tmp_path, done)
    assert len(rows) > 3
    assert [row["play_id"] for row in rows[:3]] == ["s0", "s0#1", "s0#2"]
    assert len({tuple(entry["body"]["prompt"]) for entry in stub.log}) == len(rows)
    assert len(set(first)) > 1
    assert verdicts(open_bundle(tmp_path / done.run_id))["prompts_verified"] == "pass"


def test_chat_sends_what_was_answered_as_the_assistants(tmp_path: Path) -> None:
    trace = lengths(tmp_path / "t.jsonl", [[turn(3), turn(2, delay=0)]])
    with Stub() as stub:
        done = recorded(stub, trace, tmp_path, {"chat": True})
        messages = [entry["body"]["messages"] for entry in stub.log]
    assert [message["role"] for message in messages[1]] == ["user", "assistant", "user"]
    assert messages[1][0] == messages[0][0]
    assert messages[1][1]["content"] == " w w w"
    assert len(messages[0][0]["content"].split()) == 20
    rows = rows_of(tmp_path, done)
    assert [row["output_tokens"] for row in rows] == [3, 2]
    assert [row["input_tokens"] for row in rows] == [7, 7]  # what the server counted
    assert verdicts(open_bundle(tmp_path / done.run_id))["prompts_verified"] == "unknown"


def test_an_interrupt_keeps_what_was_recorded_and_marks_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.recording.client.load import Load

    played = Load.play

    async def play(load: Load) -> None:
        import asyncio

        async def stop() -> None:
            while load.over < 5:
                await asyncio.sleep(0.005)
            load.stop()

        await asyncio.gather(played(load), stop())

    monkeypatch.setattr(Load, "play", play)
    with Stub() as stub:
        done = recorded(stub, singles(tmp_path / "t.jsonl", 500), tmp_path, duration_s=30.0)
    bundle = open_bundle(tmp_path / done.run_id)
    assert verdicts(bundle)["phases_complete"] == "fail"
    assert any("interrupted" in remark for remark in done.remarks)
    assert len(rows_of(tmp_path, done)) > 3
    with Stub() as stub, pytest.raises(GapscopeError, match="before the profile began: nothing was written"):
        record(
            Plan(stub.url, tmp_path / "t.jsonl", resolve({"lanes": 1, "warmup_s": 9.0, "duration_s": 9.0}), "other"),
            tmp_path,
            lambda share, words: None,
        )
    assert [path.name for path in (tmp_path / "recordings").iterdir()] == ["run"]


def test_a_server_that_goes_away_ends_the_load(tmp_path: Path) -> None:
    trace = singles(tmp_path / "t.jsonl", 4000)
    stub = Stub().__enter__()
    gone = threading.Timer(0.5, stub.__exit__)
    gone.start()
    done = recorded(stub, trace, tmp_path, lanes=2, duration_s=20.0)
    gone.join()
    rows = rows_of(tmp_path, done)
    assert {"ok", "error"} <= {row["status"] for row in rows}
    assert sum(row["status"] == "error" for row in rows) < 100
    assert any("the server was gone" in remark for remark in done.remarks)
    assert verdicts(open_bundle(tmp_path / done.run_id))["phases_complete"] == "fail"


def test_the_identity_is_what_the_server_says(tmp_path: Path) -> None:
    with Stub() as stub:
        done = recorded(stub, singles(tmp_path / "t.jsonl", 1), tmp_path)
        assert stub.resets == 1
    identity = open_bundle(tmp_path / done.run_id).identity
    assert identity.value("source", "engine") == "vllm"
    assert identity.value("source", "version") == "0.32.0"
    assert identity.value("model", "name") == "stub"
    assert identity.value("capacity", "block_size") == 16
    assert identity.value("capacity", "usable_kv_blocks") == 63
    assert identity.value("capacity", "max_model_len") == 4096
    assert identity.value("client", "lanes") == 1
    assert identity.value("client", "loop") == "closed"
    assert identity.value("telemetry", "fpm_producer") is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"url": "http://127.0.0.1:9"}, "No OpenAI-compatible server answers at http://127.0.0.1:9"),
        ({"url": "127.0.0.1:9"}, "expected the address of a server"),
        ({"model": "other"}, "serves stub, but there is no model other"),
        ({"limit": 30}, "1 of its 2 turns need more than 30 tokens of context \\(the longest 72\\)"),
        ({"completions": False}, "does not answer stub as asked \\(HTTP 404: no completions here\\)"),
        ({"raw": "t.jsonl"}, "is there already"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    trace = lengths(tmp_path / "t.jsonl", [[turn(), turn(26, delay=0)]])
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with Stub(limit=change.get("limit", 4096)) as stub:
        stub.completions = change.get("completions", True)
        raw = tmp_path / change["raw"] if "raw" in change else None
        plan = Plan(change.get("url", stub.url), trace, resolve({}), "run", change.get("model"), raw=raw)
        with pytest.raises(GapscopeError, match=words) as caught:
            record(plan, tmp_path, lambda share, words: None)
        assert not stub.log
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_an_answer_under_another_id_is_told(tmp_path: Path) -> None:
    with Stub([{}, {"echo": "cmpl-somebody-else"}]) as stub:
        done = recorded(stub, singles(tmp_path / "t.jsonl", 2), tmp_path)
    assert verdicts(open_bundle(tmp_path / done.run_id))["ids_echoed"] == "fail"


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with Stub() as stub:
        monkeypatch.setattr(Path, "write_bytes", full)
        with pytest.raises(GapscopeError, match="No space left on device"):
            recorded(stub, singles(tmp_path / "t.jsonl", 1), tmp_path)
    assert not (tmp_path / "recordings" / "run").exists()


def test_a_run_can_be_recorded_outside_the_main_thread(tmp_path: Path) -> None:
    out: list[Recorded] = []
    with Stub() as stub:
        trace = singles(tmp_path / "t.jsonl", 1)
        thread = threading.Thread(target=lambda: out.append(recorded(stub, trace, tmp_path)))
        thread.start()
        thread.join(20)
    assert len(out) == 1
