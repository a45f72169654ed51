"""Large runs: what is kept of them in files, how much memory answers take, and that nothing grows without a bound."""

from __future__ import annotations

import ast
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from small_runs import MS, request, sample_id, write

from dashboard import store
from dashboard.kept import derived
from dashboard.kept.memory import Kept, size_of
from dashboard.metrics import HEADLINE, METRICS, Population
from dashboard.queries.stages import stage_rows
from dashboard.samples import sample, sample_sql
from dashboard.store import Store
from engine.errors import GapscopeError

SAMPLES = Path(__file__).parents[2] / "sample_runs"
DASHBOARD = Path(__file__).parents[2] / "dashboard"


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run counts as large."""
    monkeypatch.setattr(derived, "LARGE_ROWS", 0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with one recording of the samples, written anew for this test."""
    run_id = sample_id("ample8")
    shutil.copytree(SAMPLES / run_id, tmp_path / run_id)
    return tmp_path


def looked_at(root: Path) -> dict[str, np.ndarray]:
    """Sorted samples and stages of the recording, as a new server finds them."""
    found, run_id = Store([root]), sample_id("ample8")
    arrays = {name: sample(found, run_id, METRICS[name], HEADLINE).values for name in ("ttft", "itl", "chunk_gap")}
    lanes = {f"lanes of {name}": sample(found, run_id, METRICS[name], HEADLINE).lanes for name in ("ttft", "itl")}
    return arrays | lanes | stage_rows(found, run_id).columns


@pytest.mark.usefixtures("large")
def test_files_of_a_large_run_hold_what_its_tables_say(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = looked_at(root)
    files = {path: path.stat().st_mtime_ns for path in (root / derived.FOLDER).glob("*.parquet")}
    assert {path.name.split(".")[1].rpartition("-")[0] for path in files} == {
        "requests",
        "stages",
        "token_gaps",
        "chunk_gaps",
    }
    again = looked_at(root)
    assert {path: path.stat().st_mtime_ns for path in (root / derived.FOLDER).glob("*.parquet")} == files
    shutil.rmtree(root / derived.FOLDER)
    monkeypatch.setattr(derived, "LARGE_ROWS", 10**9)
    in_memory = looked_at(root)
    assert not (root / derived.FOLDER).exists()
    for name, values in in_memory.items():
        np.testing.assert_array_equal(written[name], values, name)
        np.testing.assert_array_equal(again[name], values, name)


@pytest.mark.usefixtures("large")
def test_a_file_that_cannot_be_read_is_made_again(root: Path) -> None:
    before = looked_at(root)
    for path in (root / derived.FOLDER).glob("*.parquet"):
        path.write_bytes(path.read_bytes()[:100])
    after = looked_at(root)
    for name, values in before.items():
        np.testing.assert_array_equal(after[name], values, name)


@pytest.mark.usefixtures("large")
def test_a_store_that_cannot_be_written_is_read_all_the_same(root: Path) -> None:
    (root / derived.FOLDER).write_text("in the way")
    assert len(looked_at(root)["ttft"]) == 662  # successes of its profile


def test_the_least_recently_used_answers_go_when_their_bytes_do_not_fit() -> None:
    kept = Kept(most_bytes=2500)
    made: list[str] = []

    def get(name: str, values: int) -> None:
        kept.get(name, lambda: (made.append(name), np.zeros(values))[1])

    get("a", 100)  # 800 bytes each
    get("b", 100)
    get("a", 100)
    get("c", 100)
    get("d", 100)  # "b" was used least recently
    get("a", 100)
    assert made == ["a", "b", "c", "d"]
    get("b", 100)
    assert made == ["a", "b", "c", "d", "b"]
    assert (len(kept), kept.bytes) == (3, 2400)
    get("larger than all", 1000)
    assert len(kept) == 3


def test_the_size_of_an_answer_is_that_of_its_arrays() -> None:
    assert size_of(np.zeros(1000)) == 8000
    assert size_of(np.zeros(1000)[:1]) == 8000  # a slice keeps the whole alive
    assert size_of(pa.table({"a": np.zeros(1000)})) >= 8000
    assert size_of({"a": [np.zeros(1000)] * 3}) >= 24_000


def test_sessions_that_ask_the_same_at_once_have_it_made_once() -> None:
    kept, made = Kept(), []
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: kept.get("one", lambda: made.append(1)), range(64)))
    assert made == [1]


def test_a_value_that_cannot_be_made_is_asked_for_again() -> None:
    kept = Kept()
    with pytest.raises(ZeroDivisionError):
        kept.get("one", lambda: 1 // 0)
    assert kept.get("one", lambda: 2) == 2


def test_a_question_that_needs_too_much_memory_is_stopped_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = write(tmp_path, "run", [request("a")])
    queries = tmp_path / "queries"
    queries.mkdir()
    for name in ("_requests", "_passes", "_turn"):
        (queries / f"{name}.sql").write_text((DASHBOARD / "queries" / f"{name}.sql").read_text())
    (queries / "wide.sql").write_text("SELECT list(i) AS one FROM range(50000000) t(i), {run.requests}")
    monkeypatch.setattr(store, "QUERIES", queries)
    monkeypatch.setattr(store, "MEMORY_LIMIT", "50MB")
    monkeypatch.setattr(store, "SPILL_LIMIT", "1MB")
    store._text.cache_clear()
    try:
        with pytest.raises(GapscopeError, match="Query wide needs more than 50MB of memory and was stopped"):
            Store([tmp_path]).query("wide", runs={"run": run_id})
    finally:
        store._text.cache_clear()


WHOLE = {
    "by_bucket": "statistics of every request, in buckets",
    "one_sided": "every source-turn is counted; a table shows 500",
    "outcomes": "a row per outcome",
    "pass_samples": "thinned to 50,000 passes, which are priced",
    "reported": "what the tool itself wrote",
    "sample_members": "numbers of requests",
    "slice_names": "names of series",
    "stage_pairs": "numbers of requests",
    "stage_rows": "columns that are summed",
    "telemetry_names": "names of series",
    "turn_names": "as many as are asked for",
}
"""Questions without a row cap, and what becomes of their rows: none of them is sent to a browser as it is."""


def test_only_what_statistics_are_made_of_is_read_without_a_row_cap() -> None:
    named = set()
    for path in DASHBOARD.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "query"):
                continue
            uncapped = any(
                word.arg == "row_cap" and isinstance(word.value, ast.Constant) and word.value.value is None
                for word in node.keywords
            )
            if uncapped:
                first = node.args[0]
                named.add(first.value if isinstance(first, ast.Constant) else ast.unparse(first))
    computed = {"f'sample_{metric.source}'", "question", "name"}  # samples, series, distributions by length
    assert named - computed <= set(WHOLE)


def test_an_answer_that_was_cut_says_so(tmp_path: Path) -> None:
    run_id = write(tmp_path, "run", [request(f"r{k:05}", at=k * MS) for k in range(3_500)])
    cut = Store([tmp_path]).query(
        "lanes", {"first_lane": 0, "lanes": 4, "start_ns": 0, "end_ns": 10**12}, runs={"run": run_id}, row_cap=3_000
    )
    assert (len(cut), cut.truncated) == (3_000, True)


@pytest.mark.parametrize("name", ["ttft", "itl", "chunk_gap"])
def test_the_sql_of_a_sample_is_told_without_its_values(name: str) -> None:
    found, run_id, population = Store([SAMPLES]), sample_id("ample8"), Population("all", "root")
    told = sample_sql(found, run_id, METRICS[name], population)
    assert told == sample(found, run_id, METRICS[name], population).sql
