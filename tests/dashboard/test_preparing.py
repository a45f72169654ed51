"""Large runs prepared in the background of a server, and files of runs that are gone swept away."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from pathlib import Path

import pytest
from small_runs import sample_id

from dashboard import jobs, preparing
from dashboard.catalogue import Catalogue
from dashboard.compare import compare
from dashboard.kept import answers, derived, sweep
from dashboard.metrics import Population
from dashboard.prepare import POPULATIONS, large_runs, prepare
from dashboard.store import Store

SAMPLES = Path(__file__).parents[2] / "sample_runs"
PAIR = (sample_id("ample8"), sample_id("ample8-predicted"))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with a pair of the samples, which count as large, as do their answers."""
    monkeypatch.setattr(derived, "LARGE_ROWS", 0)
    monkeypatch.setattr(answers, "WORTH_S", 0.0)
    for name in PAIR:
        shutil.copytree(SAMPLES / name, tmp_path / name)
    return tmp_path


def kept(root: Path) -> set[str]:
    """The names of the derived tables of a store."""
    return {path.name for path in (root / derived.FOLDER).glob("*.parquet")}


def test_every_population_of_the_bar_is_prepared(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    assert prepare(Store([root]), PAIR[1], told.append)
    assert told[0] == "numbers of every request, dispatched in profile"
    assert "table block_moves" in told
    again = Store([root])
    monkeypatch.setattr(Store, "_run", lambda *_: pytest.fail("a query was run"))
    for population in POPULATIONS:
        assert compare(again, *PAIR, population).rows
    assert Population("warmup", "matched_exact") in POPULATIONS


def test_only_large_runs_are_prepared(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert large_runs(Store([root])) == sorted(PAIR)
    monkeypatch.setattr(derived, "LARGE_ROWS", 10**9)
    assert large_runs(Store([root])) == []
    begun: list[object] = []
    monkeypatch.setattr(preparing.subprocess, "Popen", lambda *words, **_: begun.append(words))
    preparing.begin(Store([root]))
    assert begun == []
    (root / derived.FOLDER).mkdir()  # something may be kept of runs that were deleted
    preparing.begin(Store([root]))
    assert len(begun) == 1


def test_the_background_says_how_far_it_is_and_leaves_no_trace_of_that(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[preparing.Progress | None] = []

    def look(store: Store, run_id: str, told: object) -> bool:
        seen.append(preparing.progress(root))
        return True

    monkeypatch.setattr(preparing, "prepare", look)
    assert preparing.progress(root) is None
    preparing.work([root])
    assert [(one.done, one.runs, one.run_id) for one in seen if one] == [(0, 2, PAIR[0]), (1, 2, PAIR[1])]
    assert f"1 of 2 done, now {PAIR[1]}" in seen[1].sentence
    assert preparing.progress(root) is None


def test_a_second_server_leaves_the_work_to_the_first(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "prepare", lambda *_: pytest.fail("two processes prepare one store"))
    folder = root / derived.FOLDER
    folder.mkdir()
    with open(folder / preparing.LOCK, "a") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        preparing.work([root])


def test_a_process_that_ended_without_a_word_is_not_under_way(root: Path) -> None:
    (root / derived.FOLDER).mkdir()
    gone = {"worker": {"pid": os.getpid(), "start": "1"}, "done": 0, "runs": 1, "run_id": "a", "words": "b"}
    jobs.write_json(root / derived.FOLDER / preparing.STATE, gone)
    assert preparing.progress(root) is None


def test_files_of_a_deleted_run_go_and_those_of_others_stay(root: Path) -> None:
    store = Store([root])
    compare(store, *PAIR, Population("profile", "matched"))
    before = kept(root)
    assert any(".matched_" in name for name in before)
    assert sweep.sweep(Catalogue([root])) == []
    shutil.rmtree(root / PAIR[1])
    removed = {path.name for path in sweep.sweep(Catalogue([root]))}
    shared = {name for name in before if ".matched_" in name}
    assert removed == {name for name in before if name.startswith(PAIR[1])} | shared
    assert kept(root) == before - removed


def test_files_of_an_altered_run_go(root: Path) -> None:
    store = Store([root])
    compare(store, *PAIR)
    table = root / PAIR[0] / "requests.parquet"
    table.write_bytes(table.read_bytes() + b"x")
    removed = {path.name.split(".")[0] for path in sweep.sweep(Catalogue([root]))}
    assert PAIR[0] in removed
    assert not any(name.startswith(PAIR[0]) for name in kept(root))


def test_runs_of_the_stores_of_another_server_are_there(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    shared = tmp_path_factory.mktemp("shared")
    Store([root, shared]).tables(PAIR[0])
    assert len(kept(shared)) == 1
    assert sweep.sweep(Catalogue([shared])) == []  # another set of stores with the same last root
    shutil.rmtree(root / PAIR[0])
    assert len(sweep.sweep(Catalogue([shared]))) == 1


def test_parts_that_nobody_writes_go_and_other_files_stay(root: Path) -> None:
    folder = root / derived.FOLDER
    folder.mkdir()
    for name in ("old.1.part", "new.1.part", "note.txt"):
        (folder / name).write_text("x")
    day_before = time.time() - sweep.PART_S - 60
    os.utime(folder / "old.1.part", (day_before, day_before))
    assert [path.name for path in sweep.sweep(Catalogue([root]))] == ["old.1.part"]
