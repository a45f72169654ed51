"""The disk bound of the recording scheduler: earlier starts count, and the oldest part makes room, which is told."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine.recording.rows import read_series
from tests.engine import fake_vllm

BOUND = 600_000
PART = BOUND // 8
Load = Callable[[], Any]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Load:
    """The plug-in with a small bound."""
    monkeypatch.setenv("GAPSCOPE_RECORD_MAX_MB", str(BOUND / 1e6))
    return partial(fake_vllm.load_plugin, monkeypatch, tmp_path)


def start(plugin: Any, passes: int, monkeypatch: pytest.MonkeyPatch, **how: Any) -> Any:
    """A server that runs so many passes; they are written when it ends or is flushed."""
    monkeypatch.setattr(plugin, "WAITING_ROWS", 10_000)
    monkeypatch.setattr(plugin, "WRITE_EVERY_S", 3600)
    scheduler = plugin.RecordingScheduler(vllm_config=fake_vllm.config(blocks=10_000, budget=100, **how))
    scheduler.add_request(fake_vllm.Request("a", 4, 100_000))
    for _ in range(passes):
        scheduler.update_from_output(scheduler.schedule(), None)
    return scheduler


def sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir())}


def head(path: Path) -> dict[str, Any]:
    with path.open() as file:
        row: dict[str, Any] = json.loads(file.readline())
    return row


@pytest.mark.parametrize("ahead", [False, True])
def test_earlier_starts_count_and_the_oldest_makes_room(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: bool
) -> None:
    rows = tmp_path / "rows"
    plugin = load()
    start(plugin, 1200 if ahead else 600, monkeypatch, ahead=ahead).shutdown()
    first = sizes(rows)
    assert 4 * PART < sum(first.values()) <= BOUND
    start(plugin, 200, monkeypatch, ahead=ahead).shutdown()
    second = sizes(rows)
    start(plugin, 250, monkeypatch, ahead=ahead).shutdown()
    third = sizes(rows)
    for held in (second, third):
        assert 4 * PART < sum(held.values()) <= BOUND
    ages = [(name.split("-")[2], name.split("-")[3], name) for name in {**first, **second, **third}]
    stays = [name in third for *_, name in sorted(ages)]
    assert stays == sorted(stays)  # gone are the oldest
    assert not all(stays)
    stamps = sorted({stamp for stamp, *_ in ages})
    assert len(stamps) == 3
    ours = [path for path in sorted(rows.glob("passes-*")) if stamps[2] in path.name]
    assert f"({sum(second.values()):,} bytes) lay in the folder: they count" in head(ours[0])["notes"][-1]
    if not ahead:  # rows of sums have no first row that could tell
        missing = [name for name in second if name not in third]
        told = head(ours[-1])
        assert (told["deleted_parts"], told["deleted_bytes"]) == (len(missing), sum(second[n] for n in missing))
        (series,) = read_series(rows)
        assert (len([row for row in series.rows if row["kind"] == "iter"]), series.lost) == (250, [])


def test_a_start_in_an_empty_folder_says_nothing(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(load(), 3, monkeypatch).shutdown()
    (path,) = (tmp_path / "rows").iterdir()
    assert head(path)["notes"] == []
    assert head(path)["deleted_parts"] == 0


def test_other_files_and_other_ranks_stay(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tmp_path / "rows"
    rows.mkdir()
    others = ["passes-dp1-100-0000.jsonl", "passes-dp10-100-0000.jsonl", "kv_events.jsonl", "passes-dp0-100.jsonl"]
    for name in others:
        (rows / name).write_bytes(b"x" * BOUND)
    start(load(), 1200, monkeypatch).shutdown()
    held = sizes(rows)
    assert {name: held.pop(name) for name in others} == dict.fromkeys(others, BOUND)
    assert 4 * PART < sum(held.values()) <= BOUND


def test_of_two_recorders_none_loses_the_file_that_it_writes(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = load()
    rows = tmp_path / "rows"
    quiet = start(plugin, 3, monkeypatch)
    quiet._rec_writer.flush()
    (mine,) = rows.iterdir()
    start(plugin, 1500, monkeypatch).shutdown()
    assert mine.exists()
    assert sum(sizes(rows).values()) <= BOUND
    for _ in range(3):
        quiet.update_from_output(quiet.schedule(), None)
    quiet.shutdown()
    with mine.open() as file:
        assert [row["iter"] for row in map(json.loads, file) if row["kind"] == "iter"] == list(range(6))


def test_a_folder_that_others_hold_loses_rows_and_tells(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven parts that others write leave room for one; with an eighth, rows are lost, and those before them stay."""
    plugin = load()
    rows = tmp_path / "rows"
    rows.mkdir()
    others = [rows / f"passes-dp0-100-{number:04d}.jsonl" for number in range(8)]
    for path in others[:7]:
        path.write_text("{}\n")
    monkeypatch.setattr(plugin, "_is_open", lambda path: "-100-" in path)
    scheduler = start(plugin, 1, monkeypatch)
    others[7].write_text("{}\n")
    for _ in range(399):
        scheduler.update_from_output(scheduler.schedule(), None)
    scheduler._rec_writer.flush()
    for path in others:
        os.unlink(path)
    scheduler.update_from_output(scheduler.schedule(), None)
    scheduler.shutdown()
    (series,) = read_series(rows)
    kept = [row["iter"] for row in series.rows]
    first = next(number for number, found in enumerate(kept) if found != number)
    assert first > 50
    assert kept == [*range(first), 400]
    (sentence,) = series.lost
    assert f"numbers {first} to 399): the disk took no more: GAPSCOPE_RECORD_MAX_MB is reached by parts" in sentence
