"""A run of the load client in the comparison: requests only, against a replay of itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dashboard.cli import main
from tests.engine.stub_server import Stub


def test_a_recording_of_the_client_alone_is_replayed_and_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"session_id": f"s{n}", "input_length": 64, "output_length": 8, "timestamp": 0} for n in range(12)]
    trace = tmp_path / "t.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    store = ["--store", str(tmp_path / "store")]
    with Stub() as stub:
        asked = ["--url", stub.url, "--trace", str(trace), "--lanes", "2", "--name", "mine"]
        assert main(["record", *asked, *store]) == 0
    measured = capsys.readouterr().out.strip()
    fixed = ["--timing", "fixed", "--set", "max_num_seqs=8", "--set", "max_num_batched_tokens=512"]
    assert main(["replay", "--like", measured, *fixed, *store]) == 0
    replay = capsys.readouterr().out.strip()
    assert main(["compare", measured, replay, *store, "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    ttft = next(row for row in told["rows"] if (row["metric"], row["statistic"]) == ("ttft", "mean"))
    assert ttft["measured"]["value"] > 0
    assert ttft["measured"]["n"] == ttft["replay"]["n"] == 12
