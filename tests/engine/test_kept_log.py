"""What is kept of an engine's log, and what is no such file."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.deployment.engine_log import read_memory_log
from engine.deployment.kept_log import keep_memory_log, kept_memory_log
from engine.errors import GapscopeError

LINES = [
    "INFO (Worker_TP0 pid=7) Model loading took 14.99 GiB and 3.1 seconds",
    "INFO (Worker_TP1 pid=8) Model loading took 15.25 GiB and 3.1 seconds",
    "INFO Available KV cache memory: 50.0 GiB",
    "INFO nothing of interest",
]


def test_the_figures_come_back(tmp_path: Path) -> None:
    log = read_memory_log(LINES)
    assert log.values["weights_gib"] == 15.25
    first, second = tmp_path / "one", tmp_path / "two"
    assert kept_memory_log("run-0123456789ab", [first, second]) is None
    keep_memory_log(log, "run-0123456789ab", second)
    assert kept_memory_log("run-0123456789ab", [first, second]) == log
    assert [path.name for path in (second / "memory_logs").iterdir()] == ["run-0123456789ab.json"]


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "no JSON",
        '{"engine": "other", "values": {}, "ranges": {}, "lines": 1, "used": 1}',
        '{"engine": "vllm", "values": {"weights_gib": "15"}, "ranges": {}, "lines": 1, "used": 1}',
        '{"engine": "vllm", "values": {"weights_gib": NaN}, "ranges": {}, "lines": 1, "used": 1}',
        '{"engine": "vllm", "values": {}, "ranges": {"weights_gib": [1]}, "lines": 1, "used": 1}',
        '{"engine": "vllm", "values": {}, "ranges": {}, "lines": null, "used": 1}',
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "memory_logs").mkdir()
    (tmp_path / "memory_logs" / "run-0123456789ab.json").write_text(text, encoding="utf-8")
    with pytest.raises(GapscopeError, match="give the engine's log again"):
        kept_memory_log("run-0123456789ab", [tmp_path])


def test_a_path_is_no_run_id(tmp_path: Path) -> None:
    with pytest.raises(GapscopeError, match="no run id"):
        keep_memory_log(read_memory_log(LINES), "../run", tmp_path)
