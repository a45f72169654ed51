"""Whether the server played the workload that was asked for, and servers that want a key."""

from __future__ import annotations

from pathlib import Path

import pytest
from stub_server import Stub
from test_recording_ends import trace_of

from engine.bundle import open_bundle
from engine.cli import main as cli


def record(stub: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, tuple[str, str]]:
    """The checks of a recording of four requests of 20 tokens in, 6 out."""
    trace, store = trace_of(tmp_path / "t.jsonl", 4), tmp_path / "store"
    assert cli.main(["record", "--url", stub.url, "--trace", str(trace), "--store", str(store), *more]) == 0
    bundle = open_bundle(store / capsys.readouterr().out.strip())
    return {check.check: (check.verdict, check.detail) for check in bundle.qualification}


def test_lengths_that_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Stub() as stub:
        checks = record(stub, tmp_path, capsys)
    assert checks["prompt_as_sent"] == ("pass", "4 of 4 the server read the prompt that was asked for")
    assert checks["lengths_as_asked"][0] == "pass"


def test_lengths_that_are_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Stub([{"more": 3}, {"prompt": 19}, {"more": 1}]) as stub:
        checks = record(stub, tmp_path, capsys)
    assert checks["prompt_as_sent"][0] == checks["lengths_as_asked"][0] == "fail"
    assert checks["prompt_as_sent"][1].startswith("1 of 4 ")
    assert checks["lengths_as_asked"][1].startswith("2 of 4 ")


def test_nobody_knows_how_long_a_chat_is_when_it_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Stub() as stub:
        checks = record(stub, tmp_path, capsys, "--chat")
    assert checks["prompt_as_sent"][0] == "unknown"
    assert checks["lengths_as_asked"][0] == "pass"


def test_a_key_is_sent_and_kept_nowhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Stub() as stub:
        stub.key = "a-secret-key"
        monkeypatch.setenv("GAPSCOPE_API_KEY", "a-secret-key")
        record(stub, tmp_path, capsys, "--raw", str(tmp_path / "raw"))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if b"a-secret-key" in path.read_bytes()]


def test_a_missing_key_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GAPSCOPE_API_KEY", raising=False)
    trace = trace_of(tmp_path / "t.jsonl", 1)
    with Stub() as stub:
        stub.key = "a-secret-key"
        assert cli.main(["record", "--url", stub.url, "--trace", str(trace), "--store", str(tmp_path / "s")]) == 2
    err = capsys.readouterr().err
    assert "wants a key (HTTP 401): set GAPSCOPE_API_KEY" in err
    assert err.count("\n") == 1
