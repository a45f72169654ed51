"""``gapscope record`` and its actions: help, output, exit codes, errors in one sentence, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from altered_runs import SAMPLES
from recording_folder import Folder
from stub_server import Stub

from engine.bundle import list_bundles, open_bundle
from engine.cli import main as cli
from engine.importers import import_recording
from engine.recording.check import contradictions
from engine.stores import PROJECT

GOLDEN = Path(__file__).parent / "golden"


def golden(name: str, text: str) -> None:
    file = GOLDEN / name
    if os.environ.get("GAPSCOPE_WRITE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


def trace_of(path: Path, count: int) -> Path:
    row = {"input_length": 20, "output_length": 6, "timestamp": 0}
    path.write_text("".join(json.dumps({"session_id": f"s{n}", **row}) + "\n" for n in range(count)))
    return path


@pytest.mark.parametrize("action", ["", "join", "sweep", "check"])
def test_help_teaches(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, action: str) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as stopped:
        cli.main(["record", *([action] if action else []), "--help"])
    assert stopped.value.code == 0
    golden(f"record_{action + '_' if action else ''}help.txt", capsys.readouterr().out)


def test_a_recording_prints_its_id_and_says_its_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = trace_of(tmp_path / "t.jsonl", 4)
    with Stub([{"status": 500}]) as stub:
        asked = ["--url", stub.url, "--trace", str(trace), "--lanes", "2", "--name", "My run", "--title", "Mine"]
        assert cli.main(["record", *asked, "--store", str(tmp_path / "store")]) == 0
    out, err = capsys.readouterr()
    bundle = open_bundle(tmp_path / "store" / out.strip())
    assert bundle.run_id.startswith("my-run-")
    assert bundle.title == "Mine"
    assert bundle.identity.value("client", "lanes") == 2
    assert err.startswith(f"{bundle.run_id}: ")
    assert "  1 of 4 requests failed, the first with: HTTP 500: told to fail\n" in err
    assert cli.main(["record", "check", bundle.run_id, "--store", str(tmp_path / "store")]) == 2
    assert "has no passes to check" in capsys.readouterr().err
    assert err.endswith(f"files of the recording: {tmp_path / 'store' / 'recordings' / 'my-run'}\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "needs --url (or an action: join, sweep, check, listen)"),
        (["--url", "http://127.0.0.1:9"], "needs --trace"),
        (["--url", "http://127.0.0.1:9", "--trace", "no.jsonl"], "no.jsonl"),
        (["--url", "u", "--trace", "t", "--set", "max_num_seqs=4"], "--set max_num_seqs: the server is real"),
        (["--url", "u", "--trace", "t", "--set", "dispatch_lag_ms=4"], "--set dispatch_lag_ms: the server is real"),
        (["--url", "u", "--trace", "t", "--set", "lanes"], "--set lanes: expected KEY=VALUE"),
        (["--url", "u", "--trace", "t", "--lanes", "1.5"], "Knob lanes=1.5: expected a whole number"),
        (["--url", "u", "--trace", "t", "--token-ids", "9:3"], "--token-ids 9:3: expected two numbers"),
        (["--url", "u", "--trace", "t", "--timeout", "0"], "--timeout 0: expected seconds above 0"),
        (["sweep", "--url", "u"], "gapscope record sweep needs --rows"),
        (["check", "nothing"], "No run 'nothing'"),
    ],
)
def test_bad_input_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    store = ["--store", str(tmp_path)]
    assert cli.main(["record", *arguments, *store]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_missing_library_names_the_extra(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    assert cli.main(["record", "--url", "http://127.0.0.1:9", "--trace", "t"]) == 2
    assert "pip install 'gapscope[record]'" in capsys.readouterr().err


def test_check_is_0_for_a_recording_that_the_scheduler_reproduces(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["record", "check", "tight8", "--store", str(SAMPLES)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["plain", "skipping", "compared:"]
    assert all("3,766 of 3,766 passes equal" in line for line in lines[:2])


def test_check_is_1_for_a_recording_that_contradicts_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Folder()
    folder.identity["client"] = {"lateness_ms": {"p99": 99.0}}  # of the machine, and no contradiction
    folder.events[5]["hashes"] = ["f0000000000000cc"]
    run_id = import_recording(folder.write(tmp_path / "tiny"), tmp_path / "store")
    bundle = open_bundle(tmp_path / "store" / run_id)
    assert [check.check for check in contradictions(bundle)] == ["kv_hash_content"]
    folder.identity["scheduler"] |= {"max_num_seqs": 2}
    run_id = import_recording(folder.write(tmp_path / "tiny"), tmp_path / "store")
    assert cli.main(["record", "check", run_id, "--store", str(tmp_path / "store")]) == 1
    assert "  kv_hash_content: 1 of 6 " in capsys.readouterr().out


def test_check_is_1_for_another_and_shows_both_batches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Folder()
    folder.identity["scheduler"] |= {"max_num_seqs": 2}
    folder.passes[1]["reqs"][0][2] = 7  # the scheduler gives it all 8
    run_id = import_recording(folder.write(tmp_path / "tiny"), tmp_path / "store")
    assert cli.main(["record", "check", run_id, "--store", str(tmp_path / "store")]) == 1
    out = capsys.readouterr().out
    assert "A (7 tokens after 0)" in out
    assert "A (8 tokens after 0)" in out


def test_ctrl_c_keeps_what_was_recorded(tmp_path: Path) -> None:
    trace = trace_of(tmp_path / "t.jsonl", 4000)
    with Stub() as stub:
        asked = ["--url", stub.url, "--trace", str(trace), "--lanes", "2", "--duration", "60"]
        command = [sys.executable, "-m", "engine.cli", "record", *asked, "--store", str(tmp_path / "store")]
        process = subprocess.Popen(
            command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        deadline = time.monotonic() + 300
        while len(stub.log) < 10 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(stub.log) >= 10, "the load has not begun"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    bundle = open_bundle(tmp_path / "store" / out.strip())
    checks = {check.check: check.verdict for check in bundle.qualification}
    assert checks["phases_complete"] == "fail"
    assert "interrupted" in err
    assert [path.name for path in list_bundles(tmp_path / "store")] == [bundle.run_id]
