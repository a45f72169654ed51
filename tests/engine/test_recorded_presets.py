"""Presets that are edited or deleted under their names: a replay stays what its record says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.bundle import Bundle, find_bundle
from engine.cli.main import main
from engine.deployment import changed_presets, load_part, preset_folders
from engine.errors import GapscopeError
from engine.knobs import resolve
from engine.replay.again import replay_again
from engine.timing import build_timing

SAMPLES = Path(__file__).parents[2] / "sample_runs"
SHORT = ("--set", "duration_s=3", "--set", "warmup_s=1", "--set", "grace_s=1")
OURS = ("--timing", "analytic", "--set", "part=ours", "--set", "model_preset=qwen3-8b")


def preset(store: Path, hbm_tb_s: float) -> Path:
    path = store / "presets" / "parts" / "ours.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"extends": "h200-sxm", "hbm_tb_s": hbm_tb_s}))
    return path


def made(store: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[Bundle, str]:
    assert main(["replay", *more, *SHORT, "--store", str(SAMPLES), "--store", str(store)]) == 0
    told = capsys.readouterr()
    return find_bundle([store], told.out.split()[-1]), told.err


def digest(run: Bundle) -> str:
    return str(run.identity.value("timing", "deployment_digest"))


def test_a_replay_stands_for_the_figures_that_it_was_made_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, stores = preset(tmp_path, 4.8), [SAMPLES, tmp_path]
    first, _ = made(tmp_path, capsys, "--like", "ample8", *OURS, "--title", "first")
    assert len(digest(first)) == 64
    assert first.lineage["timing"]["deployment"]["part"]["hbm_tb_s"] == 4.8

    preset(tmp_path, 2.4)
    varied, notes = made(tmp_path, capsys, "--like", "first", "--set", "lanes=9", "--title", "varied")
    assert digest(varied) == digest(first)
    assert varied.lineage["timing"]["deployment"] == first.lineage["timing"]["deployment"]
    assert "Preset of part ours was changed (hbm_tb_s: 4.8 recorded, 2.4 now): the recorded figures are used." in notes
    anew, notes = made(tmp_path, capsys, "--like", "ample8", *OURS, "--title", "anew")
    assert digest(anew) != digest(first)
    assert "Preset" not in notes

    path.unlink()
    assert replay_again(first, stores).equal
    gone, notes = made(tmp_path, capsys, "--like", "first", "--set", "lanes=9", "--title", "gone")
    assert gone.lineage["timing"]["deployment"] == first.lineage["timing"]["deployment"]
    assert "There is no preset of part ours any more: its recorded figures are used." in notes
    with pytest.raises(GapscopeError, match="There is no part 'ours'"):
        load_part("ours", preset_folders(stores))


def test_the_record_of_a_fallback_and_of_a_draft_is_kept(tmp_path: Path) -> None:
    preset(tmp_path, 4.8)
    knobs = resolve(
        {"timing": "analytic", "part": "ours", "model_preset": "qwen3-8b", "draft_preset": "qwen3-0.6b"}
        | {"spec_method": "draft_model", "spec_tokens": 3, "spec_mean_length": 2.5}
    )
    described = build_timing(knobs, None, preset_folders([tmp_path])).describe()
    preset(tmp_path, 2.4)
    for timing in (described, {"kind": "fpm", "fallback": described}):
        folders = preset_folders([tmp_path], json.loads(json.dumps(timing)))
        assert {(kind, name) for kind, name in folders.recorded} == {
            ("parts", "ours"),
            ("models", "qwen3-8b"),
            ("models", "qwen3-0.6b"),
        }
        assert build_timing(knobs, None, folders).describe() == described
        assert len(changed_presets(folders, knobs)) == 1


def test_replays_without_a_named_deployment_name_no_digest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, _ = made(tmp_path, capsys, "--like", "ample8", "--timing", "fixed")
    assert "deployment_digest" not in {name for group, name, _ in run.identity if group == "timing"}
