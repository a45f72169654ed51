"""Tables of whole passes made up for tests."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

IDENTITY: dict[str, Any] = {
    "gemm_quant_mode": "bfloat16",
    "moe_quant_mode": None,
    "fmha_quant_mode": None,
    "comm_quant_mode": "half",
    "kv_cache_dtype": "fp8",
    "tp": 2,
    "pp": 1,
    "dp": 1,
    "moe_tp": 1,
    "moe_ep": 1,
    "cp": 1,
    "moe_backend": "auto",
    "attention_backend": "auto",
    "enable_wideep": False,
    "enable_eplb": False,
}
PREFILL = [
    # batch, new tokens, KV, ms
    (1, 100, 0, 10.0),
    (1, 300, 0, 20.0),
    (1, 100, 1024, 12.0),
    (1, 300, 1024, 26.0),
    (1, 100, 4096, 18.0),
    (1, 200, 4096, 28.0),
    (4, 100, 0, 11.0),
    (4, 300, 0, 24.0),
]
DECODE = [
    # batch, KV, ms
    (1, 1, 5.0),
    (1, 1001, 6.0),
    (5, 500, 8.0),
    (5, 4500, 12.0),
    (8, 800, 9.0),
    (8, 8800, 17.0),
]


def rows(
    prefill: Any = PREFILL, decode: Any = DECODE, model: str = "org/Some-1B", **identity: Any
) -> list[dict[str, Any]]:
    base = {
        "cell_id": "a",
        "model_path": model,
        "system": "h200_sxm",
        "backend": "vllm",
        "backend_version": "0.25.1",
        "weight_quantization": "bfloat16",
        "partition_policy": "balanced_v1",
        **IDENTITY,
        **identity,
    }
    points = [("prefill", *point) for point in prefill] + [("decode", b, 0, kv, ms) for b, kv, ms in decode]
    return [
        base
        | {
            "workload_kind": kind,
            "batch_size": batch,
            "total_prefill_tokens": tokens,
            "total_kv_read_tokens": kv,
            "latency_ms": ms,
        }
        for kind, batch, tokens, kv, ms in points
    ]


def write_pair(path: Path, content: list[dict[str, Any]], **sidecar: Any) -> Path:
    """A table as its producer writes one, without this program."""
    pq.write_table(pa.Table.from_pylist(content), path)
    sealed = {
        "schema_name": "aic_fpm_forward_perf",
        "schema_version": 6,
        "coordinate_system": "iteration_totals_balanced_v1",
        "measurement_policy": "dynamo_native_single_sample_v1",
        "row_count": len(content),
        "parquet_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "system": "h200_sxm",
        "backend": "vllm",
        "backend_version": "0.25.1",
    } | sidecar
    path.with_suffix(".metadata.json").write_text(json.dumps(sealed), encoding="utf-8")
    return path
