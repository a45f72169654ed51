"""Imports of forward passes: reduced captures in each form, older and mixed streams, and what a fit says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_fpm_streams import checks, imported, json_lines, packed, record, rows, wrapped

from engine.bundle import Bundle, open_bundle
from engine.cli.main import main
from engine.errors import GapscopeError
from engine.importers import import_any, plan_import
from engine.importers.fpm.records import BLOCK_ROWS
from engine.intake import open_intake

PHASE = (
    "phase,workload_segment,counter_id,worker_id,dp_rank,ctx_tokens,ctx_requests,ctx_kv_tokens,decode_tokens,"
    "decode_requests,decode_kv_tokens,mean_decode_kv_tokens,queued_ctx_tokens,queued_ctx_requests,"
    "queued_decode_requests,queued_decode_kv_tokens,latency_ms\n"
    "context,sweep,4,77,1,128,2,64,0,0,0,0,700,3,0,0,17.111\n"
    "mixed,real,6,77,1,256,1,0,5,5,1000,200,0,0,1,90,21.5\n"
)
BARE = "num_context_tokens,num_decode_tokens,latency_ms\n128,0,17.111\n0,4,8.25\n256,5,21.5\n"
SETTINGS = {
    "artifact_kind": "fpm",
    "effective_config": {
        "vllm_version": "0.20.1",
        "model_config.dtype": "torch.bfloat16",
        "model_config.max_model_len": 40960,
        "cache_config.block_size": 16,
        "cache_config.cache_dtype": "fp8",
        "cache_config.enable_prefix_caching": True,
        "compilation_config.cudagraph_mode": "FULL",
        "attention_config.backend": None,
        "parallel_config.tensor_parallel_size": 2,
        "parallel_config.data_parallel_size": 2,
        "scheduler_config.max_num_seqs": 128,
        "scheduler_config.max_num_batched_tokens": 2048,
    },
    "requested": {
        "deployment_config": {"model": "acme/model", "gpu_memory_utilization": 0.9},
        "engine_args": ["--model", "acme/model", "--enable-expert-parallel"],
    },
}


def capture(tmp_path: Path, **files: str) -> Bundle:
    """The import of a folder with these files (``_csv`` and ``_json`` stand for the endings)."""
    folder = tmp_path / "gpu"
    folder.mkdir()
    for name, text in files.items():
        (folder / name.replace("_csv", ".csv").replace("_json", ".json")).write_text(text)
    (run_id,) = import_any(folder, tmp_path / "store")
    return open_bundle(tmp_path / "store" / run_id)


def test_a_capture_by_phase_has_no_variances(tmp_path: Path) -> None:
    first, second = rows(capture(tmp_path, fpm_metrics_phase_csv=PHASE))
    expected = {
        "counter": 4,
        "worker_id": "77",
        "dp_rank": 1,
        "segment": "sweep",
        "duration_ns": 17_111_000,
        "start_ns": None,
        "num_prefill_requests": 2,
        "sum_prefill_tokens": 128,
        "sum_prefill_kv_tokens": 64,
        "var_prefill_length": None,
        "num_decode_requests": 0,
        "queued_num_prefill_requests": 3,
        "queued_sum_prefill_tokens": 700,
    }
    assert {name: first[name] for name in expected} == expected
    assert (second["num_decode_requests"], second["sum_decode_kv_tokens"]) == (5, 1000)
    assert (second["queued_num_decode_requests"], second["queued_sum_decode_kv_tokens"]) == (1, 90)


def test_a_bare_capture_says_tokens_and_not_how_many_share_them(tmp_path: Path) -> None:
    bundle = capture(tmp_path, fpm_metrics_csv=BARE)
    found = rows(bundle)
    assert [row["sum_prefill_tokens"] for row in found] == [128, 0, 256]
    assert [row["num_prefill_requests"] for row in found] == [None, 0, None]
    assert [row["num_decode_requests"] for row in found] == [0, 4, 5]
    assert [row["duration_ns"] for row in found] == [17_111_000, 8_250_000, 21_500_000]
    assert {(row["counter"], row["dp_rank"], row["sum_decode_kv_tokens"]) for row in found} == {(None, None, None)}
    assert checks(bundle)["counters_unbroken"] == ("unknown", "none of 3 passes carries a counter")
    assert checks(bundle)["ranks_complete"][0] == "unknown"


def test_the_fullest_form_of_a_capture_is_read_and_the_plan_says_why_not_the_others(tmp_path: Path) -> None:
    bundle = capture(tmp_path, fpm_metrics_csv=BARE, fpm_metrics_phase_csv=PHASE, fpm_segment_txt="sweep\n")
    assert bundle.rows("passes") == 2
    assert list(bundle.lineage["source_files"]) == ["fpm_metrics_phase.csv"]
    with open_intake(tmp_path / "gpu") as intake:
        (part,) = plan_import(intake).parts
        assert dict(part.ignores)["fpm_metrics.csv"] == "fpm_metrics_phase.csv says more of the same passes"


def test_identity_is_what_the_configuration_beside_it_says(tmp_path: Path) -> None:
    bundle = capture(tmp_path, fpm_metrics_phase_csv=PHASE, vllm_metadata_json=json.dumps(SETTINGS))
    expected = {
        ("source", "engine"): "vllm",
        ("source", "version"): "0.20.1",
        ("model", "name"): "acme/model",
        ("model", "weights_dtype"): "bfloat16",
        ("model", "kv_dtype"): "fp8",
        ("topology", "tp"): 2,
        ("topology", "attention_dp"): 2,
        ("topology", "pp"): None,
        ("topology", "ep"): "enabled",
        ("kernels", "graph_mode"): "FULL",
        ("kernels", "attention_backend"): None,
        ("capacity", "block_size"): 16,
        ("capacity", "memory_fraction"): 0.9,
        ("scheduler", "max_num_seqs"): 128,
        ("scheduler", "max_num_batched_tokens"): 2048,
        ("speculation", "method"): "none",
        ("telemetry", "fpm_scope"): None,
        ("telemetry", "clock"): "durations only",
    }
    assert {key: bundle.identity.value(*key) for key in expected} == expected
    # Rank 1 of the two that ran is here; counters 4 and 6 leave out one.
    assert checks(bundle)["ranks_complete"] == ("fail", "ranks 1 of 2 that the engine ran; missing: 0")
    assert "1 missing in 1 gaps, 0 repeated, 0 resets" in checks(bundle)["counters_unbroken"][1]


def test_a_row_of_a_capture_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "gpu.csv").write_text(BARE + "12.5,0,3\n,1,3\n64,1,\n")
    with pytest.raises(GapscopeError, match=r"gpu.csv line 5.*num_context_tokens is 12.5, expected a whole number"):
        import_any(tmp_path / "gpu.csv", tmp_path / "store")
    (run_id,) = import_any(tmp_path / "gpu.csv", tmp_path / "store", skip_bad_rows=True)
    found = rows(open_bundle(tmp_path / "store" / run_id))
    assert [row["sum_prefill_tokens"] for row in found] == [128, 0, 256, 64]
    assert found[3]["duration_ns"] is None


def older(one: dict[str, Any]) -> dict[str, Any]:
    """The variant before version 1."""
    return {name: value for name, value in one.items() if name not in ("version", "counter_id")}


def test_the_variant_before_version_1_has_no_counter(tmp_path: Path) -> None:
    values = [older(record(n, 0.01 * n, prefill=64 * n)) for n in (1, 2)]
    places = [[*(v for v in one.values() if not isinstance(v, dict))] for one in values]
    for place, one in zip(places, values, strict=True):
        place += [list(one["scheduled_requests"].values()), list(one["queued_requests"].values())]
    found = []
    for name, data in (("lines", json_lines(values)), ("maps", packed(values)), ("places", packed(places))):
        (tmp_path / name).mkdir()
        bundle = imported(tmp_path / name, data)
        found.append(rows(bundle))
        assert checks(bundle)["version_known"][0] == "unknown"
        assert checks(bundle)["counters_unbroken"][0] == "unknown"
    assert [(row["duration_ns"], row["sum_prefill_tokens"], row["counter"]) for row in found[0]] == [
        (10_000_000, 64, None),
        (20_000_000, 128, None),
    ]
    assert found[0] == found[1] == found[2]


def test_counter_0_is_none(tmp_path: Path) -> None:
    bundle = imported(tmp_path, json_lines(wrapped([record(0, 0.02), record(0, 0.02)])))
    assert checks(bundle)["counters_unbroken"] == ("unknown", "none of 2 passes carries a counter")


def test_a_version_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GapscopeError, match=r"capture line 2.*version 2 of forward pass metrics, expected 1"):
        imported(tmp_path, json_lines([record(1, 0.02), record(2, 0.02, version=2)]))


def test_a_scope_that_records_name_is_theirs_and_lost_messages_show(tmp_path: Path) -> None:
    values = wrapped([record(n, 0.02, timing_scope="model_step_cuda") for n in (1, 2, 3)])
    values[2]["wire_counter"] = 9
    bundle = imported(tmp_path, json_lines(values))
    assert bundle.identity.value("telemetry", "fpm_scope") == "model_step_cuda"
    assert checks(bundle)["wire_counters_agree"] == (
        "fail",
        "1 of 3 records came under another number than their own",
    )


def test_one_odd_record_changes_nothing_about_its_neighbours(tmp_path: Path) -> None:
    """Blocks are read at once, and one by one as soon as one record is unlike the others: with the same result."""
    many = [record(n, 0.001 * (1 + n % 50), prefill=n % 3 * 16, rank=n % 2) for n in range(1, BLOCK_ROWS + 3)]
    odd = [*many[:5], older(many[5]) | {"version": None, "counter_id": 6}, *many[6:]]
    for name, values in (("even", many), ("odd", odd)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "capture").write_bytes(json_lines(values))
    found = []
    for name in ("even", "odd"):
        (run_id,) = import_any(tmp_path / name / "capture", tmp_path / name / "store")
        found.append(rows(open_bundle(tmp_path / name / "store" / run_id)))
    assert len(found[0]) == BLOCK_ROWS + 2
    assert found[0] == found[1]


def test_ranks_in_lockstep_in_nine_of_ten_steps(tmp_path: Path) -> None:
    """Of ten counters that both ranks have, one may differ; with two apart, nothing proves that ranks wait."""

    def two_ranks(apart: int) -> list[dict[str, Any]]:
        return [record(n, 0.02 * (3 if rank and n <= apart else 1), rank=rank) for n in range(1, 11) for rank in (0, 1)]

    for apart, steps in ((1, set(range(1, 11))), (2, {None})):
        (tmp_path / str(apart)).mkdir()
        bundle = imported(tmp_path / str(apart), json_lines(wrapped(two_ranks(apart))))
        assert {row["step"] for row in rows(bundle)} == steps
        assert ("80%" in bundle.lineage["lockstep"]) == (apart == 2)


def test_a_slow_start_is_cold_only_if_passes_that_did_no_less_were_faster(tmp_path: Path) -> None:
    """A first pass of 4,096 tokens may take long: the later ones had fewer."""
    later = [record(n, 0.02, prefill=128, decode=0) for n in range(2, 12)]
    bundle = imported(tmp_path, json_lines(wrapped([record(1, 3.0, prefill=4096, decode=0), *later])))
    assert checks(bundle)["passes_warm"][0] == "pass"
    assert {row["phase"] for row in rows(bundle)} == {"profile"}


def test_fit_leaves_cold_passes_out_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two cold passes, then 60 whose time is 10 ms + 10 us a token: the model has no trace of seconds."""
    cold = [record(n, 3.0, prefill=128, decode=0) for n in (1, 2)]
    warm = [record(n, 0.010 + 1e-5 * 128 * (n % 12 + 1), prefill=128 * (n % 12 + 1), decode=0) for n in range(3, 63)]
    warm += [record(n, 0.008 + 1e-4 * (n % 16), decode=1 + n % 16) for n in range(63, 123)]
    bundle = imported(tmp_path, json_lines(wrapped(cold + warm)))
    assert [row["counter"] for row in rows(bundle) if row["phase"] == "primer"] == [1, 2]
    model = tmp_path / "model.json"
    command = ["fit", bundle.run_id, "--store", str(tmp_path / "store"), "--out", str(model)]
    assert main(command) == 0
    assert f"{bundle.run_id}: 2 cold passes were left out" in capsys.readouterr().err
    assert '"primer":2' in model.read_text()
