"""Published tables of whole passes: read, priced by hand, refused, written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import knobs
from engine.bundle import find_bundle
from engine.bundle.schema import RESOLUTIONS
from engine.cli.main import main
from engine.errors import GapscopeError
from engine.identity import Identity
from engine.timing import FitSource, PassQueries, build_timing
from engine.timing.anchors.target import of_run
from engine.timing.contract import Refused, decode_run
from engine.timing.tables import TableTiming, find_table, keep, model_of, read_cells, table_model, write_measured
from tests.engine.table_cases import DECODE, PREFILL, rows, write_pair

SAMPLES = Path(__file__).resolve().parents[2] / "sample_runs"


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    return write_pair(tmp_path / "some.parquet", rows())


def timing(path: Path, **changes: Any) -> TableTiming:
    source = build_timing(knobs.resolve({"timing": "table", **changes}), model_of(read_cells(path)[0], "some"))
    assert isinstance(source, TableTiming)
    return source


def priced(path: Path, query: tuple[int, int, int, int, int], **changes: Any) -> tuple[float, str]:
    times = timing(path, **changes).explain(PassQueries(*(np.array([axis]) for axis in query)))
    return int(times.total_ns[0]) / 1e6, RESOLUTIONS[times.resolution[0]]


# -- reading ---------------------------------------------------------------------------------------------------


def test_reads_a_table_as_its_producer_writes_it(pair: Path) -> None:
    (cell,) = read_cells(pair)
    assert cell.identity["model_path"] == "org/Some-1B"
    assert (cell.identity["tp"], cell.identity["enable_eplb"]) == (2, False)
    assert "moe_quant_mode" not in cell.identity  # NULL is unknown
    assert cell.prefill == tuple(sorted(PREFILL))
    assert cell.decode == tuple((b, 0, kv, ms) for b, kv, ms in DECODE)


def test_a_table_may_hold_several_deployments(tmp_path: Path) -> None:
    path = write_pair(tmp_path / "two.parquet", rows() + rows(tp=4) + rows(model="org/Other"))
    assert [cell.label for cell in read_cells(path)] == [
        "org/Some-1B tp2 pp1 dp1 moe_ep1",
        "org/Some-1B tp4 pp1 dp1 moe_ep1",
        "org/Other tp2 pp1 dp1 moe_ep1",
    ]


@pytest.mark.parametrize(
    ("sidecar", "match"),
    [
        ({"parquet_sha256": "0" * 64}, "was altered after it was sealed: its SHA-256 is"),
        ({"row_count": 3}, "has 14 rows and its sidecar says 3"),
        ({"schema_version": 5}, "version 5: expected aic_fpm_forward_perf of version 6 or 7"),
        ({"schema_name": "x"}, "is of schema 'x'"),
        ({"coordinate_system": "x"}, "coordinate_system is 'x'"),
        ({"backend": "sglang"}, "has rows of backend 'vllm', and its sidecar says 'sglang'"),
    ],
)
def test_a_pair_that_does_not_match_is_refused(tmp_path: Path, sidecar: dict[str, Any], match: str) -> None:
    path = write_pair(tmp_path / "some.parquet", rows(), **sidecar)
    with pytest.raises(GapscopeError, match=match):
        read_cells(path)


def test_a_table_without_its_sidecar_is_refused(pair: Path) -> None:
    pair.with_suffix(".metadata.json").unlink()
    with pytest.raises(GapscopeError, match=r"some.metadata.json cannot be read"):
        read_cells(pair)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"latency_ms": -1.0}, "row 0: latency_ms is -1.0, expected a positive number"),
        ({"workload_kind": "mixed"}, "row 0: workload_kind is 'mixed'"),
        ({"batch_size": 0}, "row 0: no prefill has batch 0"),
        ({"total_prefill_tokens": 300}, "row 1: this prefill geometry of this deployment was there before"),
    ],
)
def test_rows_that_cannot_be_are_refused(tmp_path: Path, change: dict[str, Any], match: str) -> None:
    content = rows()
    content[0] |= change
    with pytest.raises(GapscopeError, match=match):
        read_cells(write_pair(tmp_path / "some.parquet", content))


# -- prices by hand --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "ms", "resolution"),
    [
        ((0, 0, 0, 5, 500), 8.0, "exact"),
        ((0, 0, 0, 5, 2500), 10.0, "interpolated"),  # half way along its curve
        # Between batches 5 and 8: at KV 2000 they take 9.5 and 10.2 ms; 6 is a third of the way.
        ((0, 0, 0, 6, 2000), 9.5 + (10.2 - 9.5) / 3, "interpolated"),
        # Batch 1 has no curve at KV 2000: of 2, batches 5 and 8 are log2(2.5) and 2 octaves away.
        (
            (0, 0, 0, 2, 2000),
            (9.5 / np.log2(2.5) + 10.2 / 2) / (1 / np.log2(2.5) + 1 / 2),
            "interpolated",
        ),
        ((1, 100, 0, 0, 0), 10.0, "exact"),
        ((1, 200, 0, 0, 0), 15.0, "interpolated"),
        ((1, 200, 1024, 0, 0), 19.0, "interpolated"),
        # KV 2048 is one octave from both sites of batch 1: the mean of 19 and 28. KV 0 is far from any KV.
        ((1, 200, 2048, 0, 0), 23.5, "interpolated"),
        # At 250 tokens the curve at KV 4096 has ended: the other site alone answers.
        ((1, 250, 2048, 0, 0), 12.0 + 14.0 * 0.75, "interpolated"),
        # Batch 2 is one octave from batches 1 and 4.
        ((2, 200, 0, 0, 0), (15.0 + 17.5) / 2, "interpolated"),
    ],
)
def test_prices_by_hand(pair: Path, query: tuple[int, int, int, int, int], ms: float, resolution: str) -> None:
    assert priced(pair, query) == (pytest.approx(ms, abs=2e-6), resolution)


def test_a_batch_between_graph_rungs_lies_between_the_ends_of_its_rung(tmp_path: Path) -> None:
    decode = [(b, kv, ms) for b, ms in ((496, 10.0), (497, 20.0), (512, 23.0)) for kv in (1000, 9000)]
    path = write_pair(tmp_path / "rungs.parquet", rows(decode=decode))
    assert priced(path, (0, 0, 0, 500, 2000)) == (pytest.approx(20.0 + 3.0 * 3 / 15), "interpolated")
    assert priced(path, (0, 0, 0, 496, 2000))[0] == 10.0


def test_a_mixed_pass_pays_its_decode_above_the_lowest_kv(pair: Path) -> None:
    # Batch 5 begins at KV 500 (8 ms) and takes 10 ms at 2500.
    assert priced(pair, (1, 200, 0, 5, 2500)) == (pytest.approx(15.0 + 2.0), "interpolated")
    assert priced(pair, (1, 200, 0, 5, 2500), mixed_composition="sum")[0] == pytest.approx(25.0)
    assert priced(pair, (1, 100, 0, 1, 1))[0] == pytest.approx(10.0)  # decode at the floor adds nothing


@pytest.mark.parametrize(
    ("query", "ms"),
    [
        ((0, 0, 0, 9, 2000), 10.2),  # the nearest batch, at its own curve
        ((0, 0, 0, 5, 9000), 17.0),  # the end of batch 8's curve is nearer than that of batch 5's
        ((1, 400, 0, 0, 0), 20.0),
        ((1, 100, 9000, 0, 0), 18.0),
        ((5, 100, 0, 0, 0), 11.0),
    ],
)
def test_outside_the_domain(pair: Path, query: tuple[int, int, int, int, int], ms: float) -> None:
    assert priced(pair, query) == (pytest.approx(ms), "clamped")
    with pytest.raises(Refused, match="lies outside what table some measured"):
        priced(pair, query, on_refused="abort")
    with pytest.raises(Refused, match="prefill batches 1 to 4, new tokens 100 to 300, KV 0 to 4096"):
        timing(pair, on_refused="abort").pass_ns(*query)


def test_what_is_refused_may_be_answered_by_the_formula(pair: Path) -> None:
    changes = {"timing": "table", "on_refused": "analytic", "part": "h100-sxm", "model_preset": "qwen3-8b"}
    values = knobs.resolve(changes)
    source = build_timing(values, model_of(read_cells(pair)[0], "some", force=True))
    times = source.explain(PassQueries(*np.array([[0, 0, 0, 5, 500], [0, 0, 0, 50, 500]]).T))
    assert [times.sources[i] for i in times.source] == ["table", "analytic"]


def test_a_batch_above_all_sites_counts_as_the_largest_only_where_that_was_flat(tmp_path: Path) -> None:
    flat = [
        (b, t, 0, ms * (1.04 if b == 8 else 1.0)) for b in (4, 8) for t, ms in ((100, 10.0), (200, 20.0), (300, 30.0))
    ]
    path = write_pair(tmp_path / "flat.parquet", rows(prefill=flat))
    assert priced(path, (20, 200, 0, 0, 0), on_refused="abort") == (pytest.approx(20.8), "clamped")
    steep = [(b, t, kv, ms * 1.06 if b == 8 else ms) for b, t, kv, ms in flat]
    path = write_pair(tmp_path / "steep.parquet", rows(prefill=steep))
    with pytest.raises(Refused):
        priced(path, (20, 200, 0, 0, 0), on_refused="abort")


@settings(max_examples=60, deadline=None)
@given(
    queries=st.lists(
        st.tuples(
            st.integers(0, 6), st.integers(1, 400), st.integers(0, 6000), st.integers(0, 12), st.integers(0, 12_000)
        ),
        min_size=1,
        max_size=30,
    ),
    composition=st.sampled_from(["sum", "marginal"]),
    scale=st.sampled_from([1.0, 0.37]),
)
def test_scalar_and_array_answers_agree(
    tmp_path_factory: pytest.TempPathFactory, queries: list[tuple[int, ...]], composition: str, scale: float
) -> None:
    path = write_pair(tmp_path_factory.mktemp("t") / "some.parquet", rows())
    asked = [(p, t if p else 0, k if p else 0, d, max(d, kv) if d else 0) for p, t, k, d, kv in queries if p or d]
    if not asked:
        return
    source = timing(path, mixed_composition=composition, pass_scale=scale)
    times = source.explain(PassQueries(*np.array(asked).T))
    assert times.total_ns.tolist() == [
        timing(path, mixed_composition=composition, pass_scale=scale).pass_ns(*q) for q in asked
    ]
    assert decode_run(source, 5, [600, 700], 0, 1 << 60)[1] == [source.pass_ns(0, 0, 0, 5, kv) for kv in (600, 700)]


def test_says_what_it_was_read_from(pair: Path) -> None:
    times = timing(pair).explain(PassQueries(*np.array([[1, 200, 1024, 6, 2000], [0, 0, 0, 5, 500]]).T))
    assert [times.site_names[i] for i in times.sites] == ["prefill b1 kv1024 + decode b5|b8", "decode b5"]


# -- regime ----------------------------------------------------------------------------------------------------


def test_another_deployment_is_refused_by_what_differs(pair: Path) -> None:
    record = Identity()
    for group, name, value in (
        ("model", "name", "org/Some-1B"),
        ("source", "engine", "vllm"),
        ("source", "version", "0.26.0"),
        ("model", "kv_dtype", "bf16"),
        ("hardware", "part", "NVIDIA H200"),
        ("topology", "tp", 1),
    ):
        record.set(group, name, value, "test")
    (cell,) = read_cells(pair)
    model = model_of(cell, "some", of_run(record))
    values = knobs.resolve({"timing": "table"})
    with pytest.raises(GapscopeError) as error:
        build_timing(values, model)
    said = str(error.value)
    for part in ("engine version is 0.25.1 in the table and 0.26.0", "KV dtype is fp8", "tp is 2 in the table and 1"):
        assert part in said
    assert "GPU part" not in said
    forced = build_timing(values, model_of(cell, "some", of_run(record), force=True)).describe()
    assert len(forced["forced_differences"]) == 3


def test_the_deployment_that_fits_is_taken_of_several(tmp_path: Path) -> None:
    path = write_pair(tmp_path / "two.parquet", rows() + rows(tp=4))
    record = Identity()
    record.set("topology", "tp", 4, "test")
    assert table_model(str(path), [], of_run(record))["identity"]["tp"] == 4
    assert table_model(f"{path}#1", [])["identity"]["tp"] == 2
    with pytest.raises(GapscopeError, match=r"holds 2 deployments that may be meant: name one of two#1"):
        table_model(str(path), [])


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"on_refused": "extrapolate"}, "knows nothing beyond what was measured"),
        ({"attention_dp": 2, "dp_price": "combined"}, "rows of a table are passes of a rank"),
    ],
)
def test_knobs_that_a_table_cannot_follow_are_refused(pair: Path, changes: dict[str, Any], match: str) -> None:
    with pytest.raises(GapscopeError, match=match):
        timing(pair, **changes)


# -- the store, and tables of our own --------------------------------------------------------------------------


def test_a_kept_table_has_a_name(pair: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert keep(pair, store, "mine") == "mine"
    assert find_table("mine", [store])[0] == store / "tables" / "mine.parquet"
    with pytest.raises(GapscopeError, match=r"There is no table .mina.\. Did you mean mine"):
        find_table("mina", [store])
    other = write_pair(tmp_path / "other.parquet", rows(tp=4))
    with pytest.raises(GapscopeError, match="has another table of the name mine"):
        keep(other, store, "mine")


def test_measured_passes_become_a_table_and_come_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = find_bundle([SAMPLES], "fpm_sweep")
    path = tmp_path / "own.parquet"
    cell = write_measured(path, [FitSource(sweep)], {"system": "some_cpu", "model_path": "local/toyllama"})
    (back,) = read_cells(path)
    assert (back.prefill, back.decode, back.identity) == (cell.prefill, cell.decode, cell.identity)
    table = sweep.table("passes")
    assert table is not None
    first = next(
        row
        for row in table.to_pylist()
        if row["phase"] != "primer" and row["num_decode_requests"] and not row["num_prefill_requests"]
    )
    same = [
        row["duration_ns"] / 1e6
        for row in table.to_pylist()
        if row["phase"] != "primer"
        and not row["num_prefill_requests"]
        and (row["num_decode_requests"], row["sum_decode_kv_tokens"])
        == (first["num_decode_requests"], first["sum_decode_kv_tokens"])
    ]
    points = {(b, kv): ms for b, _, kv, ms in back.decode}
    key = first["num_decode_requests"], first["sum_decode_kv_tokens"]
    assert points[key] == pytest.approx(float(np.median(same)), abs=1e-6)
    with pytest.raises(GapscopeError, match="does not name its model: say it"):
        write_measured(path, [FitSource(sweep)])
    assert (
        main(
            [
                "table",
                "write",
                "fpm_sweep",
                "--store",
                str(SAMPLES),
                "--set",
                "model_path=local/toyllama",
                "--out",
                str(path),
            ]
        )
        == 0
    )
    assert "unknown, hence NULL:" in capsys.readouterr().err


def test_the_examples_that_write_a_table_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["table", "--help"])
    texts = capsys.readouterr().out, (Path(__file__).parents[2] / "docs" / "timing.md").read_text(encoding="utf-8")
    for text in texts:
        (line,) = re.findall(r"^ *gapscope (table write .*)$", text, re.MULTILINE)
        assert main([*shlex.split(line), "--store", str(SAMPLES)]) == 0
        (cell,) = read_cells(tmp_path / "own.parquet")
        assert (cell.identity["model_path"], cell.identity["system"]) == ("local/toyllama", "some_part")


def test_a_replay_from_a_table_carries_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, store = tmp_path / "own.parquet", tmp_path / "store"
    write_measured(path, [FitSource(find_bundle([SAMPLES], "fpm_sweep"))], {"model_path": "local/toyllama"})
    stores = ["--store", str(SAMPLES), "--store", str(store)]
    assert (
        main(
            [
                "replay",
                "--like",
                "ample8",
                "--table",
                str(path),
                "--set",
                "duration_s=5",
                "--set",
                "warmup_s=1",
                *stores,
            ]
        )
        == 0
    )
    run = find_bundle([store], capsys.readouterr().out.split()[-1])
    assert run.identity.value("timing", "kind") == "table"
    assert run.lineage["config"]["table"] == "own"
    assert list(run.identity.value("timing", "data_digests")) == ["own"]
    assert (store / "tables" / "own.parquet").is_file()
    assert main(["replay", "--like", run.run_id, "--set", "lanes=4", *stores]) == 0
