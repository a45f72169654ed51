"""Ctrl-C and SIGTERM at every stage of a recording: one sentence, its exit code, and where what was recorded lies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from stub_server import Stub

from engine.bundle import list_bundles, open_bundle
from engine.errors import Interrupted
from engine.recording import interrupts
from engine.recording.interrupts import Interrupts
from engine.stores import PROJECT

AT = """
import os, signal, sys
import {module} as module
from engine.cli import main as cli
def interrupted(*_, **__):
    os.kill(os.getpid(), {number})
module.{name} = interrupted
sys.exit(cli.main(sys.argv[1:]))
"""
"""A program that gets a signal where it calls something."""


def trace_of(path: Path, count: int) -> Path:
    row = {"input_length": 20, "output_length": 6, "timestamp": 0}
    path.write_text("".join(json.dumps({"session_id": f"s{n}", **row}) + "\n" for n in range(count)))
    return path


def ended(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_while_the_run_is_sealed(tmp_path: Path, number: signal.Signals, capsys: pytest.CaptureFixture[str]) -> None:
    trace, store = trace_of(tmp_path / "t.jsonl", 4), tmp_path / "store"
    program = AT.format(module="engine.recording.recording", name="import_recording", number=int(number))
    with Stub() as stub:
        done = ended(program, "record", "--url", stub.url, "--trace", trace, "--name", "r", "--store", store)
    folder = store / "recordings" / "r"
    command = f"gapscope import {folder} --trace {trace} --store {store}"
    assert done.stderr == (
        f"\ngapscope: interrupted; no run is written. What was recorded lies in {folder}: `{command}` makes a run of "
        "it.\n"
    )
    assert (done.returncode, done.stdout, list_bundles(store)) == (128 + number, "", [])
    taken = subprocess.run(
        [sys.executable, "-m", "engine.cli", *command.split()[1:]],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    )
    run = open_bundle(store / taken.stdout.strip())
    assert run.rows("requests") == 4
    assert {c.check: c.verdict for c in run.qualification}["phases_complete"] == "pass"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_before_the_load(tmp_path: Path, number: signal.Signals) -> None:
    trace, store = trace_of(tmp_path / "t.jsonl", 4), tmp_path / "store"
    program = AT.format(module="engine.recording.recording", name="make_client", number=int(number))
    with Stub() as stub:
        done = ended(program, "record", "--url", stub.url, "--trace", trace, "--store", store)
    assert done.stderr == "\ngapscope: interrupted; nothing is half written, finished runs stay.\n"
    assert (done.returncode, done.stdout) == (128 + number, "")
    assert not store.exists()
    assert not stub.log


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_in_the_warm_up(tmp_path: Path, number: signal.Signals) -> None:
    trace, store = trace_of(tmp_path / "t.jsonl", 4000), tmp_path / "store"
    with Stub() as stub:
        asked = ["--url", stub.url, "--trace", trace, "--lanes", "1", "--warmup", "500", "--duration", "60"]
        command = [sys.executable, "-m", "engine.cli", "record", *map(str, asked), "--store", str(store)]
        process = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 300
        while len(stub.log) < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(number)
        out, err = process.communicate(timeout=300)
    assert err == "\ngapscope: interrupted before the profile began: nothing was written.\n"
    assert (process.returncode, out) == (128 + number, "")
    assert not store.exists()


def test_while_a_join_reads(tmp_path: Path) -> None:
    (tmp_path / "identity.json").write_text('{"schema": "measured-run-identity/1"}')
    program = AT.format(module="engine.recording.join", name="read_identity", number=int(signal.SIGTERM))
    done = ended(program, "record", "join", tmp_path, "--rows", tmp_path, "--store", tmp_path / "store")
    assert done.stderr == "\ngapscope: interrupted; nothing is half written, finished runs stay.\n"
    assert (done.returncode, done.stdout) == (128 + signal.SIGTERM, "")


def test_the_first_signal_ends_and_the_second_cancels() -> None:
    told: list[str] = []

    async def main(signals: Interrupts) -> None:
        ending = asyncio.Event()
        with signals.ending(ending.set):
            os.kill(os.getpid(), signal.SIGINT)
            await ending.wait()
            told.append("ended")
            os.kill(os.getpid(), signal.SIGTERM)
            try:
                await asyncio.Event().wait()
            finally:
                told.append("canceled")

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted) as caught:
        interrupts.run(main)
    assert caught.value.number == signal.SIGTERM
    assert told == ["ended", "canceled"]
    assert signal.getsignal(signal.SIGINT) is before


def test_what_was_canceled_may_fail_in_ways_of_its_own() -> None:
    async def main(_: Interrupts) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("a stream that is no stream") from None

    with pytest.raises(Interrupted):
        interrupts.run(main)


def test_an_error_without_a_signal_is_that_error() -> None:
    async def main(_: Interrupts) -> None:
        raise ValueError("as it is")

    with pytest.raises(ValueError, match="as it is"):
        interrupts.run(main)
