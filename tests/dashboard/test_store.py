"""The store: what it lists, what it refuses, and how it is locked."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_runs import MS, request, write

from dashboard.metrics import HEADLINE, METRICS, Population
from dashboard.queries.stages import pairs
from dashboard.store import Store
from engine.bundle import Check
from engine.errors import GapscopeError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    folder.mkdir()
    return folder


def test_lists_every_run_whatever_became_of_it(root: Path) -> None:
    sound = write(root, "sound", [request("a")], qualification=[Check("ledger", "pass", "")])
    failed = write(root, "failed", [request("b")], qualification=[Check("ledger", "fail", "off by one")])
    cut = write(root, "cut", [request("c")])
    bad = root / "bad-0123456789ab"
    bad.mkdir()
    (bad / "run.json").write_text("{")
    with open(root / cut / "requests.parquet", "ab") as file:
        file.write(b"x")
    found = {entry.run_id: entry for entry in Store([root, root / "absent"]).catalogue()}
    assert {run_id: entry.state for run_id, entry in found.items()} == {
        sound: "ok",
        failed: "ok",
        cut: "altered",
        bad.name: "malformed",
    }
    assert found[sound].light == "pass"
    assert found[failed].light == "fail"
    assert (found[sound].engine, found[sound].model, found[sound].hardware) == ("vllm 1.0", "toy", "CPU")
    assert (found[sound].requests, found[sound].duration_ns) == (1, 10_000 * MS)
    assert "requests.parquet" in str(found[cut].problem)
    assert found[bad.name].problem


def test_a_run_in_two_roots_is_listed_once_and_the_sound_copy_is_used(root: Path, tmp_path: Path) -> None:
    run_id = write(root, "twice", [request("a")])
    assert write(tmp_path / "other", "twice", [request("a")]) == run_id
    with open(root / run_id / "requests.parquet", "ab") as file:
        file.write(b"x")
    store = Store([root, tmp_path / "other"])
    assert [(e.run_id, e.state) for e in store.catalogue()] == [(run_id, "ok")]
    assert len(store.query("ledger", runs={"run": run_id})) == 1


def test_an_altered_byte_is_named_and_not_scored(root: Path) -> None:
    run_id = write(root, "run", [request("a")])
    file = root / run_id / "requests.parquet"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(GapscopeError, match=rf"{run_id} is altered: requests\.parquet"):
        Store([root]).query("ledger", runs={"run": run_id})


def test_a_change_after_first_use_is_noticed_and_a_restored_file_is_used_again(root: Path) -> None:
    run_id = write(root, "run", [request("a")])
    store = Store([root])
    assert len(store.query("ledger", runs={"run": run_id})) == 1
    file = root / run_id / "requests.parquet"
    data = file.read_bytes()
    file.write_bytes(data + b"x")
    with pytest.raises(GapscopeError, match=r"requests\.parquet"):
        store.query("ledger", runs={"run": run_id})
    assert [entry.state for entry in store.catalogue()] == ["altered"]
    file.write_bytes(data)
    assert len(store.query("ledger", runs={"run": run_id})) == 1


def test_an_altered_manifest_is_named(root: Path) -> None:
    run_id = write(root, "run", [request("a")])
    path = root / run_id / "run.json"
    manifest = json.loads(path.read_text())
    manifest["phases"][1]["end_ns"] += 1
    path.write_text(json.dumps(manifest))
    with pytest.raises(GapscopeError, match=r"run\.json"):
        Store([root]).bundle(run_id)


def test_an_absent_run_names_near_ones_and_a_name_stands_for_its_run(root: Path) -> None:
    plain = write(root, "ample", [request("a")])
    repeat = write(root, "ample_repeat", [request("b")])
    store = Store([root])
    assert store.find("ample").run_id == plain
    assert store.find(repeat[:8]).run_id == repeat
    with pytest.raises(GapscopeError, match=plain):
        store.find("ampel")
    with pytest.raises(GapscopeError, match="ambiguous"):
        store.find("amp")


def test_a_run_that_vanishes_is_absent(root: Path) -> None:
    run_id = write(root, "run", [request("a")])
    store = Store([root])
    store.bundle(run_id)
    for file in (root / run_id).iterdir():
        file.unlink()
    (root / run_id).rmdir()
    assert store.catalogue() == []
    with pytest.raises(GapscopeError, match="No run"):
        store.query("ledger", runs={"run": run_id})


def test_locked_to_its_roots(root: Path, tmp_path: Path) -> None:
    write(root, "run", [request("a")])
    outside = tmp_path / "outside.parquet"
    pq.write_table(pa.table({"a": [1]}), outside)
    (root / "link.parquet").symlink_to(outside)
    cursor = Store([root])._database.cursor()
    for path in (outside, root / ".." / "outside.parquet", root / "link.parquet"):
        with pytest.raises(duckdb.Error):
            cursor.read_parquet(str(path)).fetchall()
    for statement in (
        "SET threads = 4",
        "SET enable_external_access = true",
        "INSTALL httpfs",
        f"ATTACH '{tmp_path / 'x.db'}'",
        f"SELECT * FROM read_text('{outside}')",
    ):
        with pytest.raises(duckdb.Error):
            cursor.execute(statement)


def test_the_row_cap_is_visible(root: Path) -> None:
    run_id = write(root, "run", [request(f"r{k}", status=s) for k, s in enumerate(("ok", "error", "canceled"))])
    store = Store([root])
    assert not store.query("ledger", runs={"run": run_id}, row_cap=3).truncated
    cut = store.query("ledger", runs={"run": run_id}, row_cap=2)
    assert cut.truncated
    assert len(cut) == 2


def test_the_time_limit_stops_a_query(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = write(root, "run", [request("a")])
    queries = tmp_path / "queries"
    queries.mkdir()
    for name in ("_requests", "_passes"):
        (queries / f"{name}.sql").write_text((Path("dashboard/queries") / f"{name}.sql").read_text())
    (queries / "endless.sql").write_text("SELECT count(*) FROM range(1000000000) a, range(1000) b, {run.requests}")
    monkeypatch.setattr("dashboard.store.QUERIES", queries)
    with pytest.raises(GapscopeError, match=r"Query endless took longer than 0\.05 s"):
        Store([root]).query("endless", runs={"run": run_id}, time_limit_s=0.05)


def test_what_is_not_recorded_is_a_sentence(root: Path) -> None:
    run_id = write(root, "run", [request("a")])
    found = Store([root]).query("pass_classes", runs={"run": run_id}, population=HEADLINE)
    assert found.not_recorded == f"Not recorded: run {run_id} has no table passes."
    assert len(found) == 0


def test_the_shown_sql_holds_runs_and_values(root: Path) -> None:
    run_id = write(root, "run", [request("a")])
    found = Store([root]).query(
        "slowest", {"top": 3}, runs={"run": run_id}, population=HEADLINE, metric=METRICS["ttft"]
    )
    assert f"requests.parquet of run {run_id}" in found.sql
    assert "-- $top = 3" in found.sql
    assert "ttft_ns" in found.sql
    assert str(root) not in found.sql


def test_sessions_that_need_the_same_table_at_once_make_it_once(root: Path) -> None:
    measured = write(root, "m", [request(f"r{k}", at=k * MS) for k in range(50)])
    replay = write(root, "r", [request(f"r{k}", at=k * MS) for k in range(50)], kind="replay")
    store = Store([root])

    def shared(phase: str) -> int:
        return len(pairs(store, measured, replay, Population(phase)).measured)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(shared, ["profile", "all"] * 8)) == [50] * 16


def test_threads_share_a_store(root: Path) -> None:
    runs = [write(root, f"run{k}", [request(f"r{j}") for j in range(k + 1)]) for k in range(4)]
    store = Store([root])

    def count(run_id: str) -> int:
        return int(store.query("ledger", runs={"run": run_id}, keep=False).rows()[0]["requests"])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(count, runs * 10)) == [1, 2, 3, 4] * 10


def test_a_steady_block_looks_at_the_files_once(root: Path) -> None:
    run_id = write(root, "run", [request("a")])
    store = Store([root])
    with store.steady():
        store.bundle(run_id)
        with open(root / run_id / "requests.parquet", "ab") as file:
            file.write(b"x")
        with store.steady():
            store.bundle(run_id)
        store.bundle(run_id)
    with pytest.raises(GapscopeError, match="altered"):
        store.bundle(run_id)
