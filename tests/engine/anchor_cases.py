"""Artefacts and targets for tests of anchors."""

from __future__ import annotations

from typing import Any

from engine.timing.anchors.regime import AXES
from engine.timing.anchors.target import Target

KNOWN = {
    "model": "glm52mxfp4",
    "engine": "vllm",
    "engine_version": "0.14.0",
    "weight_dtype": "mxfp4",
    "kv_dtype": "fp8",
    "expert_dtype": "mxfp4",
    "attention_family": "aiter",
    "graph_mode": "graph",
    "aiter": None,
    "op_switches": None,
    "speculation": "off",
    "speculation_method": None,
    "part": "mi355x",
}


def artefact(
    sweep: dict[int, float] | None = None,
    grid: dict[tuple[int, float], float] | None = None,
    backend: str = "vllm",
    **meta: Any,
) -> dict[str, Any]:
    """A GLM-5.2-MXFP4 anchor of four MI355X; ``meta`` overrides keys, and removes those that are ``...``."""
    held = {
        "model": "zai-org/GLM-5.2-MXFP4",
        "input_len": 8192,
        "output_len": 1024,
        "tp": 8,
        "benchmark_tp": 4,
        "gpu_arch": "gfx950",
        "engine_version": "0.14.0",
        "weight_dtype": "mxfp4",
        "kv_cache_dtype": "fp8",
        "moe_expert_dtype": "mxfp4",
        "attention_backend": "ROCM_AITER_MLA",
        "enforce_eager": False,
        "speculative_method": None,
        "attention_data_parallel_size": 1,
        "decode_observable": "median_itl_single_wave",
        "prefix_caching": False,
        "prefill_anchor": {"points": [{"input_len": n, "mean_ttft_ms": 20 + n / 10} for n in (1024, 8192)]},
        **meta,
    }
    document: dict[str, Any] = {
        "backend": backend,
        "meta": {key: value for key, value in held.items() if value is not ...},
        "sweep": [{"batch": b, "decode_ms": ms} for b, ms in (sweep or {1: 8.0, 16: 12.0, 64: 20.0}).items()],
    }
    if grid:
        document["decode_ctx"] = [{"batch": b, "context": c, "decode_ms": ms} for (b, c), ms in grid.items()]
    return document


def target(**changes: Any) -> Target:
    """The deployment that :func:`artefact` was measured on; axes and other fields by name."""
    axes = {**KNOWN, **{name: changes.pop(name) for name in list(changes) if name in AXES}}
    known = {"tp": 4, "pp": 1, "ep": 1, "attention_dp": 1, "prompt_tokens": 8192.0, "requests": 64, "budget": 8192}
    return Target(axes, **{**known, **changes})
