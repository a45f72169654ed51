"""Files of the recording scheduler, read back: the right series, the time asked for, and every kind of loss."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.bundle import list_bundles, open_bundle
from engine.errors import GapscopeError
from engine.recording.rows import read_series

ROOT = Path(__file__).resolve().parents[2]
Row = dict[str, Any]
MISSING = "rank 0: passes 1 to 1 are missing, and no row says why"


def meta(rank: int = 0, mono: int = 100, first: int = 0, part: int = 0) -> Row:
    both = {"mono_ns": mono, "wall_ns": 10_000 + mono}
    return {
        "kind": "meta",
        "schema": "gapscope-passes/1",
        "dp_rank": rank,
        "part": part,
        "first_iter": first,
        "exact_batches": True,
        **both,
    }


def one(number: int, start: int | None = None) -> Row:
    return {"kind": "iter", "iter": number, "t_start_ns": 1000 + 10 * number if start is None else start}


def put(folder: Path, rows: Sequence[Row | str], stamp: int = 5, part: int = 0, rank: int = 0) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"passes-dp{rank}-{stamp}-{part:04d}.jsonl"
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


def numbers(folder: Path, since: int | None = None, until: int | None = None) -> tuple[list[int], list[str]]:
    (series,) = read_series(folder, since, until)
    return [row["iter"] for row in series.rows if "iter" in row], series.lost


def test_parts_follow_each_other(tmp_path: Path) -> None:
    put(tmp_path, [meta(), one(0), one(1), {"kind": "clock", "mono_ns": 7, "wall_ns": 8}])
    put(tmp_path, [meta(mono=900, first=2, part=1), one(2), {"kind": "end", "rows": 3, "lost": 0}], part=1)
    (series,) = read_series(tmp_path)
    assert [row["iter"] for row in series.rows] == [0, 1, 2]
    assert (series.lost, series.ended, series.start_ns) == ([], True, 100)
    assert series.clock == [(100, 10_100), (7, 8)]


def test_only_the_time_asked_for(tmp_path: Path) -> None:
    reset = {"kind": "reset_prefix_cache", "mono_ns": 1015, "ok": True}
    put(tmp_path, [meta(), one(0), one(1), reset, one(2), one(3)])
    assert numbers(tmp_path, 1010, 1030) == ([1, 2], [])
    (series,) = read_series(tmp_path, 1010, 1030)
    assert [row["kind"] for row in series.rows] == ["iter", "reset_prefix_cache", "iter"]
    assert numbers(tmp_path, 5000) == ([], ["rank 0: no pass began in the time asked for"])


def test_parts_before_the_time_are_not_read(tmp_path: Path) -> None:
    put(tmp_path, [meta(), "garbage\n", one(0)])
    put(tmp_path, [meta(mono=1019, first=2, part=1), one(2), one(3)], part=1)
    assert numbers(tmp_path) == ([0, 2, 3], ["rank 0: line 2 of passes-dp0-5-0000.jsonl is cut off", MISSING])
    assert numbers(tmp_path, 1020) == ([2, 3], [])
    assert numbers(tmp_path, 1019) == ([2, 3], [])
    assert numbers(tmp_path, 1018) == ([2, 3], [MISSING])  # pass 1 may have begun just then


def test_a_loss_counts_where_it_touches_the_time(tmp_path: Path) -> None:
    lost = {"kind": "lost", "rows": 2, "first_iter": 2, "last_iter": 3, "why": "the disk took no more: full"}
    put(tmp_path, [meta(), one(0), one(1), lost, one(4), one(5), one(6)])
    sentence = "rank 0: 2 passes were not written (numbers 2 to 3): the disk took no more: full"
    assert numbers(tmp_path) == ([0, 1, 4, 5, 6], [sentence])
    assert numbers(tmp_path, 1000, 1045) == ([0, 1, 4], [sentence])
    assert numbers(tmp_path, 1000, 1015) == ([0, 1], [sentence])  # they may have begun in time
    assert numbers(tmp_path, 1000, 1010) == ([0], [])  # pass 1 began after it, and so did what followed
    assert numbers(tmp_path, 1035) == ([4, 5, 6], [sentence])  # the last of them may have begun then
    assert numbers(tmp_path, 1045) == ([5, 6], [])


def test_a_gap_that_nobody_told(tmp_path: Path) -> None:
    put(tmp_path, [meta(), one(0), one(3)])
    assert numbers(tmp_path) == ([0, 3], ["rank 0: passes 1 to 2 are missing, and no row says why"])


def test_a_part_that_rotation_took(tmp_path: Path) -> None:
    put(tmp_path, [meta(first=40), one(40), one(41)], part=3)
    sentence = "rank 0: the first 40 passes were deleted: GAPSCOPE_RECORD_MAX_MB was reached"
    assert numbers(tmp_path, 1000) == ([40, 41], [sentence])
    assert numbers(tmp_path, 1405) == ([41], [])


@pytest.mark.parametrize(
    ("ended", "said"), [(False, []), (True, ["rank 0: line 3 of passes-dp0-5-0000.jsonl is cut off"])]
)
def test_a_cut_line(tmp_path: Path, ended: bool, said: list[str]) -> None:
    """At the very end it may be in the middle of being written; before an end row it is a loss."""
    end = [json.dumps({"kind": "end", "rows": 1, "lost": 0}) + "\n"] if ended else []
    put(tmp_path, [meta(), one(0), '{"kind":"iter","it\n' if ended else '{"kind":"iter","it', *end])
    assert numbers(tmp_path) == ([0], said)


def test_the_newest_series_with_passes_in_the_time(tmp_path: Path) -> None:
    put(tmp_path, [meta(mono=100), one(0), one(1)], stamp=5)
    put(tmp_path, [meta(mono=5000), one(0, 6000), one(1, 6010)], stamp=6)
    assert [row["t_start_ns"] for row in read_series(tmp_path)[0].rows] == [6000, 6010]
    assert [row["t_start_ns"] for row in read_series(tmp_path, 0, 2000)[0].rows] == [1000, 1010]


def test_a_rank_each(tmp_path: Path) -> None:
    put(tmp_path, [meta(rank=10), one(0)], rank=10)
    put(tmp_path, [meta(rank=2), one(0)], rank=2)
    assert [series.dp_rank for series in read_series(tmp_path)] == [2, 10]


@pytest.mark.parametrize("content", ["", "garbage\n", '{"kind":"meta","schema":"other/1"}\n'])
def test_what_is_no_such_file(tmp_path: Path, content: str) -> None:
    put(tmp_path, [content])
    with pytest.raises(GapscopeError, match="holds no rows of the recording scheduler"):
        read_series(tmp_path)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(GapscopeError, match="holds no rows of the recording scheduler"):
        read_series(tmp_path / "nowhere")


def test_the_trace_of_the_demonstration_is_that_of_the_samples(tmp_path: Path) -> None:
    """Byte for byte: a new recording can be laid beside the sample runs."""
    path = tmp_path / "trace.jsonl"
    subprocess.run([sys.executable, ROOT / "scripts/record_demo/toy_trace.py", path], check=True)
    sample = next(run for run in list_bundles(ROOT / "sample_runs") if run.name.startswith("ample8-3"))
    digest = open_bundle(sample).manifest["identity"]["trace"]["digest"]["value"]
    assert hashlib.sha256(path.read_bytes()).hexdigest() == digest


@pytest.mark.parametrize("name", ["demo.sh", "install.sh", "server.sh"])
def test_the_scripts_of_the_demonstration_parse(name: str) -> None:
    subprocess.run(["bash", "-n", ROOT / "scripts/record_demo" / name], check=True)
