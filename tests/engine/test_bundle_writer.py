"""What goes in comes out, and what does not fit is named."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bundle_rows import identity, passes, request, table, write
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.bundle import BundleWriter, Check, Phase, list_bundles, open_bundle, slugify
from engine.bundle import rows as rows_module
from engine.bundle.schema import TABLES
from engine.errors import GapscopeError


def stored(store: Path, name: str, rows: Any, kind: str = "imported_summary") -> pa.Table:
    with BundleWriter(store, kind, "one", "One", identity()) as w:
        w.write_table(name, rows)
        run_id = w.seal()
    found = open_bundle(store / run_id).table(name)
    assert found is not None
    return found


def refused(store: Path, name: str, rows: Any) -> str:
    with pytest.raises(GapscopeError) as error:
        stored(store, name, rows)
    assert list(store.iterdir()) == []
    return str(error.value)


_u64 = st.integers(0, 2**64 - 1)
_i64 = st.integers(-(2**63), 2**63 - 1)
_event = st.fixed_dictionaries(
    {
        "event_index": _i64,
        "time_ns": st.integers(-5, 5),
        "kind": st.sampled_from(["store", "evict", "hit"]),
        "num_blocks": st.integers(0, 9),
        "request_id": st.none() | st.text(max_size=3),
        "parent_hash": st.none() | _u64,
        "block_hashes": st.none() | st.lists(_u64, max_size=3),
    }
)


@settings(deadline=None, max_examples=40)
@given(st.lists(_event, max_size=8))
def test_rows_come_back_in_order_with_absent_columns_null(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict]
) -> None:
    store = tmp_path_factory.mktemp("store")
    found = stored(store, "kv_events", pa.Table.from_pylist(rows, TABLES["kv_events"].schema))
    expected = sorted(rows, key=lambda r: (r["time_ns"], r["event_index"]))
    blank = dict.fromkeys(TABLES["kv_events"].columns)
    assert found.schema == TABLES["kv_events"].schema
    assert found.to_pylist() == [{**blank, **row} for row in expected]


def test_lists_of_structs_come_back(tmp_path: Path) -> None:
    assert stored(tmp_path, "passes", passes(4))["members"].to_pylist()[3] == [
        {"request_id": "r3", "computed_before": 3, "scheduled_tokens": 1}
    ]


def test_a_table_is_sorted_with_nulls_last_and_ties_kept(tmp_path: Path) -> None:
    rows = [
        request(0, dispatched_ns=None, status="never_issued", phase=None),
        request(2, dispatched_ns=7),
        request(1, dispatched_ns=7),
        request(3, dispatched_ns=-7, phase="warmup"),
    ]
    assert stored(tmp_path, "requests", table("requests", rows))["request_id"].to_pylist() == ["r3", "r1", "r2", "r0"]


def test_a_stream_is_stored_whatever_its_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "ROW_GROUP", 4)
    whole = passes(11)
    batches = [
        b for start, stop in ((0, 1), (1, 1), (1, 9), (9, 11)) for b in whole.slice(start, stop - start).to_batches()
    ]
    with BundleWriter(tmp_path, "sweep", "s", "S", identity()) as w:
        w.write_table("passes", iter(batches))
        streamed = w.seal()
    with BundleWriter(tmp_path, "sweep", "t", "T", identity()) as w:
        w.write_table("passes", whole)
        at_once = w.seal()
    assert streamed.split("-")[1] == at_once.split("-")[1]
    groups = pq.ParquetFile(tmp_path / streamed / "passes.parquet").metadata
    assert [groups.row_group(g).num_rows for g in range(groups.num_row_groups)] == [4, 4, 3]


def test_a_reader_of_batches_is_a_stream(tmp_path: Path) -> None:
    whole = passes(5)
    assert stored(tmp_path, "passes", pa.RecordBatchReader.from_batches(whole.schema, whole.to_batches())).num_rows == 5


def test_heavy_rows_make_smaller_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "MAX_GROUP_BYTES", 1000)
    found = stored(tmp_path, "passes", passes(50))
    assert found["pass_index"].to_pylist() == list(range(50))
    (run,) = list_bundles(tmp_path)
    assert pq.ParquetFile(run / "passes.parquet").metadata.num_row_groups > 2


@pytest.mark.parametrize("first", [0, 2])
def test_a_stream_out_of_order_is_refused_with_its_row(tmp_path: Path, first: int) -> None:
    whole = passes(5)
    batches = [*whole.slice(0, first).to_batches(), *whole.slice(first).take([0, 2, 1]).to_batches()]
    assert refused(tmp_path, "passes", batches) == (
        f"Table passes: row {first + 2} is out of order; a stream must arrive sorted by start_ns, pass_index."
    )


def test_order_is_checked_across_batches_with_dictionaries_of_their_own(tmp_path: Path) -> None:
    def batch(request_id: str) -> pa.RecordBatch:
        row = {"request_id": request_id, "ordinal": 0, "time_ns": 5, "tokens": 1, "visible": True}
        return table("chunks", [row]).to_batches()[0]

    assert stored(tmp_path / "a", "chunks", [batch("a"), batch("b")])["request_id"].to_pylist() == ["a", "b"]
    (tmp_path / "b").mkdir()
    assert "row 1 is out of order" in refused(tmp_path / "b", "chunks", [batch("b"), batch("a")])


def test_types_are_cast_where_nothing_is_lost(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "time_ns": pa.array([1.0, 2.0]),
            "shift_ns": pa.array([1, 2], pa.uint8()),
            "play_id": pa.DictionaryArray.from_arrays(
                pa.array([1, 0], pa.int8()), pa.array(["a", "b"], pa.large_string())
            ),
            "timers": pa.nulls(2),
        }
    )
    assert stored(tmp_path, "idle_shifts", rows).to_pylist() == [
        {"time_ns": 1, "play_id": "b", "shift_ns": 1, "timers": None},
        {"time_ns": 2, "play_id": "a", "shift_ns": 2, "timers": None},
    ]


def test_nan_is_stored_as_null(tmp_path: Path) -> None:
    rows = passes(2).append_column("var_prefill_length", pa.array([float("nan"), 1.5]))
    assert stored(tmp_path, "passes", rows)["var_prefill_length"].to_pylist() == [None, 1.5]


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("time_ns", pa.array(["1", "2"]), "Table idle_shifts, column time_ns: type string where int64 is expected."),
        ("time_ns", pa.array([True, False]), "column time_ns: type bool where int64 is expected."),
        ("time_ns", pa.array([1.5, 2.0]), "column time_ns: a value of type double does not fit int64"),
        ("shift_ns", pa.array([2**63, 0], pa.uint64()), "column shift_ns: a value of type uint64 does not fit int64"),
        ("play_id", pa.array([1, 2]), "column play_id: type int64 where dictionary<values=string, indices=int32"),
        ("shift_n", pa.array([1, 2]), "Table idle_shifts: unknown column 'shift_n' (did you mean shift_ns?)."),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, column: str, values: pa.Array, words: str) -> None:
    columns = {"time_ns": pa.array([1, 2]), "shift_ns": pa.array([1, 2]), column: values}
    assert words in refused(tmp_path, "idle_shifts", pa.table(columns))


def test_hashes_are_unsigned_lists(tmp_path: Path) -> None:
    bad = table("requests", [request(0)]).append_column("prompt_block_hashes", pa.array([[-1]]))
    assert "column prompt_block_hashes: a value of type list<item: int64> does not fit" in refused(
        tmp_path, "requests", bad
    )
    text = table("requests", [request(0)]).append_column("prompt_block_hashes", pa.array([["a"]]))
    assert "column prompt_block_hashes: type list<item: string> where" in refused(tmp_path, "requests", text)


def test_members_need_exactly_their_fields(tmp_path: Path) -> None:
    bad = passes(1).set_column(7, "members", pa.array([[{"request_id": "r", "tokens": 1}]]))
    assert "column members: type list<item: struct<request_id: string, tokens: int64>> where" in refused(
        tmp_path, "passes", bad
    )


def test_infinity_is_refused(tmp_path: Path) -> None:
    rows = passes(1).append_column("var_prefill_length", pa.array([float("inf")]))
    assert "column var_prefill_length: infinity" in refused(tmp_path, "passes", rows)


def test_a_required_column_must_be_there(tmp_path: Path) -> None:
    assert refused(tmp_path, "passes", passes(2).drop_columns(["end_ns"])) == (
        "Table passes: required column end_ns is missing."
    )


def test_a_column_may_not_appear_twice(tmp_path: Path) -> None:
    twice = passes(2).append_column("end_ns", pa.array([1, 2]))
    assert "a column appears twice" in refused(tmp_path, "passes", twice)


def test_an_enum_is_checked_and_null_is_no_value_of_it(tmp_path: Path) -> None:
    rows = table("requests", [request(0), request(1, status="done")])
    assert "Table requests, column status: 'done' is not one of ok, error" in refused(tmp_path, "requests", rows)
    fine = table("kv_events", [{"event_index": 0, "time_ns": 0, "kind": "store", "num_blocks": 1, "reason": None}])
    assert stored(tmp_path, "kv_events", fine)["reason"].to_pylist() == [None]


def test_an_unused_dictionary_entry_is_no_value(tmp_path: Path) -> None:
    rows = table("requests", [request(0)])
    status = pa.DictionaryArray.from_arrays(pa.array([1], pa.int32()), pa.array(["done", "ok"]))
    rows = rows.set_column(rows.column_names.index("status"), "status", status)
    assert stored(tmp_path, "requests", rows)["status"].to_pylist() == ["ok"]


def test_request_ids_are_unique_and_never_null(tmp_path: Path) -> None:
    assert "column request_id: 'r0' occurs twice" in refused(
        tmp_path, "requests", table("requests", [request(0), request(1, request_id="r0")])
    )
    assert "column request_id: NULL" in refused(tmp_path, "requests", table("requests", [request(0, request_id=None)]))


def test_unknown_table_kind_and_name(tmp_path: Path) -> None:
    assert "no table 'pass': expected one of requests, passes" in refused(tmp_path, "pass", passes(1))
    with pytest.raises(GapscopeError, match="Run kind 'real': expected one of measured, replay"):
        BundleWriter(tmp_path, "real", "x", "X", identity())
    for slug in ("", "-a", "A", "a/b", "..", "a b", "a" * 65):
        with pytest.raises(GapscopeError, match="expected up to 64 lower-case letters"):
            BundleWriter(tmp_path, "measured", slug, "X", identity())


def sealing_fails(store: Path, kind: str, names: Sequence[str], **seal: Any) -> str:
    """The sentence with which a run with these tables is refused; nothing may be left of it."""

    def attempt() -> None:
        with BundleWriter(store, kind, "x", "X", identity()) as w:
            for name in names:
                w.write_table(name, passes(1))
            w.seal(**seal)

    with pytest.raises(GapscopeError) as error:
        attempt()
    assert list(store.iterdir()) == []
    return str(error.value)


def test_a_required_table_must_be_written(tmp_path: Path) -> None:
    assert sealing_fails(tmp_path, "measured", ["passes"]) == "Run x: a measured run must have the table requests."


def test_a_table_is_written_once(tmp_path: Path) -> None:
    assert sealing_fails(tmp_path, "sweep", ["passes", "passes"]) == "Table passes was written already."


def test_a_refused_table_may_be_written_again(tmp_path: Path) -> None:
    with BundleWriter(tmp_path, "sweep", "x", "X", identity()) as w:
        with pytest.raises(GapscopeError):
            w.write_table("passes", passes(3).take([0, 2, 1]).to_batches())
        w.write_table("passes", passes(3))
        run_id = w.seal()
    assert open_bundle(tmp_path / run_id).verify(content=True) == []


@pytest.mark.parametrize(
    ("seal", "words"),
    [
        ({"phases": [Phase("main", 0, 1)]}, "phase 'main', expected one of"),
        ({"phases": [Phase("profile", 1, 0)]}, "phase profile ends before it starts"),
        ({"qualification": [Check("x", "maybe")]}, "verdict 'maybe', expected one of pass, fail, unknown"),
        ({"lineage": {"error": float("nan")}}, "cannot hold"),
        ({"lineage": {"path": object()}}, "cannot hold"),
        ({"ledger": {"profile": {"ok": -1}}}, "has ok -1, expected a count or null"),
    ],
)
def test_a_malformed_manifest_is_never_sealed(tmp_path: Path, seal: dict, words: str) -> None:
    assert words in sealing_fails(tmp_path, "sweep", ["passes"], **seal)


def test_the_manifest_holds_what_was_sealed(tmp_path: Path) -> None:
    lineage = {"config": {"lanes": np.int64(8), "scale": np.float64(0.5)}, "pair": (1, 2)}
    checks = [Check("summary_agrees", "pass", "all 12 figures")]
    run_id = write(
        tmp_path, lineage=lineage, qualification=checks, profile_start_unix_ns=5, clocks={"note": "monotonic"}
    )
    bundle = open_bundle(tmp_path / run_id)
    assert (bundle.run_id, bundle.kind, bundle.title) == (run_id, "measured", "Small")
    assert bundle.tables == ("requests", "passes")
    assert (bundle.rows("requests"), bundle.rows("chunks")) == (3, None)
    assert bundle.phases == [Phase("warmup", -10, 0), Phase("profile", 0, 100)]
    assert bundle.phase("profile") == Phase("profile", 0, 100)
    assert bundle.lineage == {"config": {"lanes": 8, "scale": 0.5}, "pair": [1, 2]}
    assert bundle.qualification == [*checks, Check("ledger_balances", "pass")]
    assert bundle.identity == identity()
    assert bundle.manifest["profile_start_unix_ns"] == 5
    assert bundle.manifest["clocks"] == {
        "requests.dispatched_ns": "client",
        "passes.start_ns": "engine",
        "passes.end_ns": "engine",
        "note": "monotonic",
    }
    assert bundle.table("chunks") is None
    assert bundle.file("chunks") is None


def test_the_id_names_content_alone(tmp_path: Path) -> None:
    first = write(tmp_path / "a", host={"wall_s": 1.0})
    assert write(tmp_path / "b", title="Another title", host={"wall_s": 2.0}) == first
    assert write(tmp_path / "c", slug="other").split("-")[1] == first.split("-")[1]
    others = [
        write(tmp_path / "d", count=4),
        write(tmp_path / "e", lineage={"parent_run": "x"}),
        write(tmp_path / "f", profile_start_unix_ns=1),
    ]
    assert len({first, *others}) == 4


def test_writing_the_same_run_again_leaves_the_first(tmp_path: Path) -> None:
    first = write(tmp_path, title="First")
    assert write(tmp_path, title="Second") == first
    assert open_bundle(tmp_path / first).title == "First"
    assert [p.name for p in tmp_path.iterdir()] == [first]


def test_writing_over_an_altered_run_says_so(tmp_path: Path) -> None:
    run_id = write(tmp_path)
    file = tmp_path / run_id / "passes.parquet"
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(GapscopeError, match=rf"Run {run_id} is in .* already, but passes.parquet in it was altered"):
        write(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [run_id]


def test_leaving_without_a_seal_leaves_nothing(tmp_path: Path) -> None:
    with BundleWriter(tmp_path, "sweep", "x", "X", identity()) as w:
        w.write_table("passes", passes(3))
        assert list_bundles(tmp_path) == []
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RuntimeError):
        w.seal()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_error_of_the_producer_passes_through_and_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    def rows() -> Any:
        yield from passes(3).to_batches()
        raise error

    with pytest.raises(error), BundleWriter(tmp_path, "sweep", "x", "X", identity()) as w:
        w.write_table("passes", rows())
    assert list(tmp_path.iterdir()) == []


def test_slugs_are_made_from_any_text() -> None:
    assert slugify("Ample 8 / Lanes: (repeat)") == "ample-8-lanes-repeat"
    assert slugify("äöü") == "run"


def test_strings_that_repeat_are_dictionaries_and_files_are_zstd(tmp_path: Path) -> None:
    run_id = write(tmp_path)
    file = pq.ParquetFile(tmp_path / run_id / "requests.parquet")
    column = file.metadata.row_group(0).column(file.schema_arrow.names.index("status"))
    assert column.compression == "ZSTD"
    assert "RLE_DICTIONARY" in column.encodings
    assert file.schema_arrow.field("status").type == pa.dictionary(pa.int32(), pa.string())


def test_pandas_stays_out(tmp_path: Path) -> None:
    """Writing and reading a run imports neither pandas nor any part of it."""
    code = f"""
import sys
from collections.abc import Sequence
from pathlib import Path
import numpy as np, pyarrow as pa
from engine.bundle import BundleWriter, open_bundle
from engine.arrays import coded, lists, numbers, texts
from engine.identity import Identity
n = np.arange(3)
names = ["request_id", "phase", "status", "dispatched_ns", "input_tokens", "output_tokens", "prompt_block_hashes"]
more = ["pass_index", "phase", "start_ns", "end_ns", "duration_ns", "num_prefill_requests", "num_decode_requests"]
passes = pa.Table.from_arrays([numbers(n), coded(n * 0 - 1, []), *[numbers(n)] * 5, numbers(n / n)],
    [*more, "var_prefill_length"])
rows = pa.Table.from_arrays([texts(["b", "a", "c"]), coded(n * 0, ["profile"]), coded(n * 0, ["ok"]),
    numbers(n[::-1], n > 0), numbers(n), numbers(n.astype(np.float64)),
    lists(np.array([0, 2, 2, 3]), numbers(n.astype(np.uint64)), n != 1)], names)
with BundleWriter(Path({str(tmp_path)!r}), "measured", "x", "X", Identity()) as w:
    w.write_table("requests", rows)
    w.write_table("passes", passes)
    run_id = w.seal()
bundle = open_bundle(Path({str(tmp_path)!r}) / run_id)
assert bundle.verify(content=True) == []
assert bundle.table("requests", names).to_pylist() == [
    dict(zip(names, ("c", "profile", "ok", 0, 2, 2, [2]))),
    dict(zip(names, ("a", "profile", "ok", 1, 1, 1, None))),
    dict(zip(names, ("b", "profile", "ok", None, 0, 0, [0, 1]))),
]
assert bundle.table("passes", ["var_prefill_length"])[0].to_pylist() == [None, 1.0, 1.0]
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
