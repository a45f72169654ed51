"""How a load ends: who was canceled, what a defect and a killed program leave, and answers that are none."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from stub_server import Stub

from engine.bundle import open_bundle
from engine.cli import main as cli
from engine.errors import GapscopeError
from engine.knobs import resolve
from engine.recording.client.answer import Answer
from engine.recording.client.load import Exchange, Load
from engine.recording.client.prompts import Prompt, TokenPrompts
from engine.recording.folder import finish_client_half, mend_client_half
from engine.recording.plan import Plan
from engine.recording.recording import RecordingBroken, record
from engine.traces.prompts import load_played
from engine.workload.client import Client
from engine.workload.hash_ids import block_keys_of
from engine.workload.primed import make_client

PROJECT = Path(__file__).parents[2]


def trace_of(path: Path, count: int, output: int = 6) -> Path:
    row = {"input_length": 20, "output_length": output, "timestamp": 0}
    path.write_text("".join(json.dumps({"session_id": f"s{n}", **row}) + "\n" for n in range(count)))
    return path


@pytest.mark.parametrize(("before_ns", "status"), [(1, "ok"), (-1, "canceled")])
def test_the_clock_decides_who_was_canceled(tmp_path: Path, before_ns: int, status: str) -> None:
    """The answer comes to its end around the cancel, and the load hears of it after the client gave it up."""
    trace, source = load_played(trace_of(tmp_path / "t.jsonl", 1))
    client: Client = make_client(trace, resolve({"duration_s": 1.0}), block_keys_of(trace, 16))
    kept: list[Exchange] = []

    async def send(name: str, prompt: Prompt, tokens: int) -> Answer:
        assert client.cancel_ns is not None
        client_ns = load.started_ns + client.cancel_ns - client.start_ns  # of the cancel, on the machine's clock
        load._give_up(client.aborts(client.cancel_ns))
        return Answer(client_ns - 10, client_ns - 9, client_ns - before_ns, "ok", output_ids=[])

    load = Load(client, TokenPrompts(source, own_outputs=False), send, "t", kept.append)
    asyncio.run(load.play())
    assert load.problem is None
    assert [one.answer.status for one in kept] == [status]
    assert client.sent.ok == [status == "ok"]


def test_a_defect_keeps_what_was_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    followed = Client.finished

    def finished(client: Client, done: Any) -> None:
        if done.index == 5:
            raise KeyError("made up")
        followed(client, done)

    monkeypatch.setattr(Client, "finished", finished)
    trace = trace_of(tmp_path / "t.jsonl", 50)
    with Stub() as stub:
        done = record(Plan(stub.url, trace, resolve({"lanes": 1}), "run"), tmp_path, lambda share, words: None)
    assert done.broken
    assert any("a defect of gapscope, KeyError: 'made up'" in remark for remark in done.remarks)
    rows = open_bundle(tmp_path / done.run_id).table("requests")
    assert rows is not None
    assert rows.num_rows == 6
    monkeypatch.setattr("engine.recording.recording.finish_client_half", lambda *_: 1 // 0)
    with Stub() as stub, pytest.raises(RecordingBroken, match=r"What was recorded lies in .*other"):
        record(Plan(stub.url, trace, resolve({"lanes": 1}), "other"), tmp_path, lambda share, words: None)
    assert (tmp_path / "recordings" / "other" / "requests.jsonl").stat().st_size > 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_program_that_is_ended_leaves_its_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    trace = trace_of(tmp_path / "t.jsonl", 4000)
    store = tmp_path / "store"
    with Stub() as stub:
        asked = ["--url", stub.url, "--trace", str(trace), "--lanes", "2", "--duration", "60", "--name", "r"]
        command = [sys.executable, "-m", "engine.cli", "record", *asked, "--store", str(store)]
        process = subprocess.Popen(
            command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        deadline = time.monotonic() + 300
        while len(stub.log) < 12 and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(number)
        out, err = process.communicate(timeout=300)
    folder = store / "recordings" / "r"
    if number is signal.SIGTERM:
        assert process.returncode == 0, err
        run_id = out.strip()
    else:
        with (folder / "requests.jsonl").open("ab") as file:
            file.write(b'{"request_id": "cut')
        assert cli.main(["import", str(folder), "--trace", str(trace), "--store", str(store)]) == 0
        run_id = capsys.readouterr().out.strip()
    bundle = open_bundle(store / run_id)
    checks = {check.check: (check.verdict, check.detail) for check in bundle.qualification}
    assert checks["phases_complete"][0] == "fail"
    killed = number is signal.SIGKILL
    assert checks["phases_complete"][1].endswith("the program that recorded was killed" if killed else "interrupted")
    assert checks["passes_recorded"][0] == "unknown"
    rows = bundle.table("requests")
    assert rows is not None
    assert rows.num_rows >= 8


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"choices": 5}, "odd event: choices"),
        ({"choices": ["x"]}, "odd event: choices"),
        ({"choices": [{"delta": {"tool_calls": 7}}]}, "odd event: tool_calls"),
    ],
)
def test_an_odd_event_is_a_failed_request(event: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Answer().take(event, 1)


def test_a_response_without_a_token_is_zero_output(tmp_path: Path) -> None:
    with Stub([{}, {"per_chunk": 6, "empty": [0], "ids": False, "usage": False}]) as stub:
        trace = trace_of(tmp_path / "t.jsonl", 3)
        done = record(Plan(stub.url, trace, resolve({"lanes": 1}), "run"), tmp_path, lambda share, words: None)
    rows = open_bundle(tmp_path / done.run_id).table("requests")
    assert rows is not None
    assert sorted(rows["status"].to_pylist()) == ["error", "ok", "ok"]
    assert "zero output" in rows["error_type"].to_pylist()
    said = open_bundle(tmp_path / done.run_id).identity.value("definitions", "zero_output")
    assert said == "status error, no latency"


def test_a_list_of_models_that_is_none_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from aiohttp import web

    async def models(_: Stub, __: web.Request) -> web.Response:
        return web.json_response({"data": 5})

    monkeypatch.setattr(Stub, "_models", models)
    trace = trace_of(tmp_path / "t.jsonl", 1)
    with Stub() as stub, pytest.raises(GapscopeError, match="lists no models"):
        record(Plan(stub.url, trace, resolve({}), "run"), tmp_path, lambda share, words: None)


def killed_recording(folder: Path, rows: list[dict[str, Any]], duration_s: float = 60.0) -> Path:
    folder.mkdir(parents=True)
    end = {"t_stop_s": None, "t_cancel_s": None, "t_end_s": None, "interrupted": True}
    asked = {"warmup_s": 1.0, "duration_s": duration_s, "grace_s": 0.0}
    begun = {"schema": "measured-run-identity/1", "recorded": "client", "run": "r", "phases": asked, "end": end}
    (folder / "identity.json").write_text(json.dumps(begun))
    (folder / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"cut')
    return folder


def test_a_killed_recording_is_given_its_end(tmp_path: Path) -> None:
    rows = [{"dispatch_s": at, "end_s": at + lasts} for at, lasts in ((3.0, 0.5), (1.0, 4.0), (2.0, 0.1))]
    folder = killed_recording(tmp_path / "a", rows, duration_s=0.0)
    mend_client_half(folder)
    kept = [json.loads(line)["dispatch_s"] for line in (folder / "requests.jsonl").read_text().splitlines()]
    assert kept == [1.0, 2.0, 3.0]
    identity = json.loads((folder / "identity.json").read_text())
    assert (identity["end"]["t_end_s"], identity["end"]["killed"]) == (5.0, True)
    assert identity["phases"]["duration_s"] == 4.0  # to the trace's end was asked for, and so long it was
    before = sorted((path.name, path.read_bytes()) for path in folder.iterdir())
    mend_client_half(folder)
    assert sorted((path.name, path.read_bytes()) for path in folder.iterdir()) == before
    with pytest.raises(GapscopeError, match="no request that was over"):
        mend_client_half(killed_recording(tmp_path / "b", []))


def test_rows_are_sorted_without_holding_them(tmp_path: Path) -> None:
    """Parsed, 20,000 rows of 1 kB are some 60 MB, and read at once 20: their places are some 4."""
    rows = [{"dispatch_s": (7919 * n) % 20_000, "end_s": 0.0, "text": "x" * 1000} for n in range(20_000)]
    folder = killed_recording(tmp_path / "a", rows)
    tracemalloc.start()
    finish_client_half(folder, json.loads((folder / "identity.json").read_text()))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    with (folder / "requests.jsonl").open() as file:
        assert [json.loads(line)["dispatch_s"] for line in file] == list(range(20_000))
    assert most < 10_000_000
