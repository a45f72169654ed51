"""The measurement of what recording costs: settings by turns, compared within their round."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from benchmarks import record_overhead
from engine.recording.rows import read_series
from tests.engine import fake_vllm

ROOT = Path(__file__).resolve().parents[2]


def test_settings_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in fake_vllm.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("vllm_scheduler", "interleaved_scheduler"):
        folder = "engine/recording/server" if name == "vllm_scheduler" else "benchmarks"
        spec = importlib.util.spec_from_file_location(name, ROOT / folder / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        plugin = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, plugin)
        spec.loader.exec_module(plugin)
    monkeypatch.setenv("GAPSCOPE_RECORD", str(tmp_path / "rows"))
    monkeypatch.setenv("GAPSCOPE_OVERHEAD", str(tmp_path / "turns.jsonl"))
    scheduler = plugin.InterleavedScheduler(vllm_config=fake_vllm.config(blocks=10_000, budget=100))
    for n in range(3):
        scheduler.add_request(fake_vllm.Request(f"r{n}", 4, 10_000))
    for _ in range(6 * plugin.PASSES):
        scheduler.update_from_output(scheduler.schedule(), None)
    scheduler._rec_writer = scheduler._turn_writer
    scheduler.shutdown()
    blocks = record_overhead.read_blocks(tmp_path / "turns.jsonl")
    settings = ["off", "without statistics", "on", "without statistics", "on", "off"]
    assert [block["setting"] for block in blocks] == settings
    assert set(settings) == set(record_overhead.SETTINGS)
    assert [block["passes"][5][1:] for block in blocks] == [[3, 3]] * 6
    (series,) = read_series(tmp_path / "rows")
    assert len(series.rows) == 4 * plugin.PASSES
    assert {row["worker_cpu_s"] is None for row in series.rows} == {True, False}


def test_what_a_setting_adds_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = []
    for n in range(12):
        setting = record_overhead.SETTINGS[n % 3]
        base = 10_000_000 + 1_000_000 * (n // 3)  # each round the machine is slower
        more = {"off": 0, "without statistics": 50_000, "on": 120_000}[setting]
        passes = [[99_000_000, 8, 8]] * 3 + [[base + more, 8, 8]] * 20 + [[50_000_000, 9, 8]]
        blocks.append({"block": n, "setting": setting, "passes": passes})
    record_overhead.report(blocks, 8)
    said = capsys.readouterr().out
    assert "4 rounds" in said
    assert "without statistics   adds +0.050 ms (95 % interval +0.050 to +0.050)" in said
    assert "on                   adds +0.120 ms" in said
