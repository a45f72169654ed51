"""Answers about large runs that are kept in files: they come back as they were, are bounded, and are data alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from small_runs import MS, request, sample_id, write

from dashboard.compare import compare
from dashboard.doctor import examine
from dashboard.kept import answers, derived
from dashboard.kept.answers import Lasting
from dashboard.kept.packed import NotPacked, pack, unpack
from dashboard.metrics import HEADLINE, METRICS, Estimator, Population
from dashboard.prepare import prepare
from dashboard.store import Store

SAMPLES = Path(__file__).parents[2] / "sample_runs"
MANY = 10**6


def through(value: object) -> object:
    """A value as bytes and back."""
    return unpack(memoryview(b"".join(pack(value, MANY))))


@pytest.mark.parametrize(
    "value",
    [
        None,
        [True, 2, 0.1, -0.0, float("inf"), "\u00e9\ud800"],
        (1, [2, (3,)], {"a": {1: "b"}, None: {(1, 2): frozenset({3})}}, {4}),
        HEADLINE,
        Population("all", "matched_near", 7).for_side("run-000000000000"),
        METRICS["itl"],
        {Estimator.NEAREST_RANK: pa.table({"a": [1, None], "b": [["x"], []]})},
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_come_back_as_they_were(value: object) -> None:
    back = through(value)
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.int16).reshape(2, 3),
        np.array([0.1, np.nan, -np.inf]),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array([], dtype=np.float64),
        np.array([True, False]),
        np.array(["a", "\u00e9"]),
        np.array(["a", None, 3], dtype=object),
    ],
    ids=lambda array: f"{array.dtype}",
)
def test_arrays_come_back_as_they_were(array: np.ndarray) -> None:
    back = through([array])
    assert isinstance(back, list)
    np.testing.assert_array_equal(back[0], array)
    assert back[0].dtype == array.dtype


def test_nothing_but_data_of_this_program_is_packed_or_read() -> None:
    for value in (object(), Path("a"), print, np.array([(1, 2)], dtype=[("a", "i4"), ("b", "i4")])):
        with pytest.raises(NotPacked):
            pack(value, MANY)
    with pytest.raises(NotPacked):
        pack(np.zeros(MANY), MANY)
    data = b"".join(pack(HEADLINE, MANY))
    for word, instead in (
        ("dashboard.metrics", "os"),
        ("dashboard.metrics", "dashboard.gone"),
        ("Population", "Metric"),
    ):
        other = data.replace(json.dumps(word).encode(), json.dumps(instead).ljust(len(word) + 2).encode())
        assert len(other) == len(data)
        with pytest.raises(ValueError, match=r"."):
            unpack(memoryview(other))
    for cut in (data[:5], data[:-1], b""):
        with pytest.raises(ValueError, match=r"."):
            unpack(memoryview(cut))


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run counts as large, and every answer as worth a file."""
    monkeypatch.setattr(derived, "LARGE_ROWS", 0)
    monkeypatch.setattr(answers, "WORTH_S", 0.0)


@pytest.mark.usefixtures("eager")
def test_another_server_finds_the_answer_and_asks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [sample_id("ample8"), sample_id("ample8-predicted")]
    for name in names:
        shutil.copytree(SAMPLES / name, tmp_path / name)
    first = compare(Store([tmp_path]), *names)
    again = Store([tmp_path])
    monkeypatch.setattr(Store, "_run", lambda *_: pytest.fail("a query was run"))
    second = compare(again, *names)
    assert (second.rows, second.rates, second.claim) == (first.rows, first.rates, first.claim)
    assert second.decompositions == first.decompositions
    monkeypatch.undo()
    monkeypatch.setattr(derived, "LARGE_ROWS", 10**9)
    assert compare(Store([tmp_path]), *names).rows == first.rows  # and without any files it is the same


@pytest.mark.usefixtures("eager")
def test_a_prepared_pair_opens_without_a_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [sample_id("ample8"), sample_id("ample8-predicted")]
    for name in names:
        shutil.copytree(SAMPLES / name, tmp_path / name)
    assert prepare(Store([tmp_path]), names[1])
    tables = {path.name.split(".")[1].rpartition("-")[0] for path in (tmp_path / derived.FOLDER).glob(f"{names[1]}.*")}
    assert {"requests", "stages", "token_gaps", "block_moves"} <= tables
    (told,) = [one for one in examine([tmp_path]) if one.what == "worked out"]
    assert "answers take at most 2,147 MB" in told.detail
    monkeypatch.setattr(Store, "_run", lambda *_: pytest.fail("a query was run"))
    assert compare(Store([tmp_path]), *names).rows


def test_a_small_run_needs_no_preparation(tmp_path: Path) -> None:
    run_id = write(tmp_path, "run", [request("a", at=MS)])
    assert not prepare(Store([tmp_path]), run_id)
    assert not (tmp_path / derived.FOLDER).exists()


@pytest.mark.usefixtures("eager")
def test_an_altered_run_has_no_answers(tmp_path: Path) -> None:
    run_id = write(tmp_path, "run", [request("a", at=MS)])
    store = Store([tmp_path])
    assert store.query("outcomes", runs={"run": run_id}).rows()
    table = tmp_path / run_id / "requests.parquet"
    table.write_bytes(table.read_bytes()[:-1] + b"x")
    with pytest.raises(Exception, match="altered"):
        Store([tmp_path]).query("outcomes", runs={"run": run_id})


def test_files_are_bounded_and_those_of_other_versions_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "WORTH_S", 0.0)
    monkeypatch.setattr(answers, "MOST_BYTES", 5_000)
    old = tmp_path / derived.FOLDER / "answers-000000000000"
    old.mkdir(parents=True)
    (old / "one").write_bytes(b"x")
    kept = Lasting(tmp_path)
    for number in range(10):
        kept.get(("array", number), lambda: np.zeros(100))
    sizes = [path.stat().st_size for path in kept.folder.iterdir()]
    assert not old.exists()
    assert 2 <= len(sizes) < 10
    assert sum(sizes) <= 5_000
    made: list[int] = []
    Lasting(tmp_path).get(("array", 9), lambda: made.append(1))
    assert made == []


def test_what_cannot_be_read_is_made_again_and_what_is_quick_is_not_kept(tmp_path: Path) -> None:
    kept = Lasting(tmp_path)
    assert kept.get("quick", lambda: 1) == 1
    assert not kept.folder.exists()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answers, "WORTH_S", 0.0)
        assert kept.get("one", lambda: [1]) == [1]
    (path,) = kept.folder.iterdir()
    path.write_bytes(path.read_bytes()[:-3])
    assert kept.get("one", lambda: [2]) == [2]


def test_a_store_that_prepares_keeps_what_is_quick_as_well(tmp_path: Path) -> None:
    assert Lasting(tmp_path, all_of_them=True).get("quick", lambda: 1) == 1
    assert Lasting(tmp_path).get("quick", lambda: 2) == 1


def test_a_store_that_prepares_gives_its_questions_time(tmp_path: Path) -> None:
    run_id = write(tmp_path, "run", [request("a", at=MS)])
    slow = {"time_limit_s": 0.0, "runs": {"run": run_id}}
    assert Store([tmp_path], preparing=True).query("outcomes", **slow).rows()
