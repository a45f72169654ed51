"""Keys that are read of an artefact, and those that look like a slip of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

NEAR = 0.8
"""Likeness (of difflib) from which a key that is not read counts as a slip of one that is."""
_TOP = ("backend", "built_digest", "client", "decode_ctx", "meta", "sweep")
META = (
    "aiter_ops",
    "attention_backend",
    "attention_data_parallel_size",
    "backend",
    "benchmark_ep",
    "benchmark_pp",
    "benchmark_tp",
    "between_ns",
    "config_digest",
    "decode_floor_ms",
    "decode_observable",
    "decode_pad_to_capture",
    "enforce_eager",
    "engine",
    "engine_version",
    "env_overrides",
    "ep",
    "forced_differences",
    "gpu",
    "gpu_arch",
    "host",
    "input_len",
    "kv_cache_dtype",
    "level_of",
    "mixed_composition",
    "mixed_errors",
    "model",
    "moe_expert_dtype",
    "num_hidden_layers",
    "num_speculative_tokens",
    "output_len",
    "pp",
    "prefill_anchor",
    "prefill_observable",
    "prefix_caching",
    "quantization",
    "resolved_attention_backend",
    "server_args",
    "sources",
    "speculative_acceptance_length",
    "speculative_method",
    "speculative_num_tokens",
    "tp",
    "use_aiter",
    "weight_dtype",
)
_PROBE = (
    "curve_fit",
    "implied_fixed_ms",
    "ms_per_token",
    "negative_pairs",
    "packed",
    "pairwise_ms_per_token",
    "points",
)


def slips(document: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Keys that are not read and near to one that is: where they stand, the key, and the one that may be meant."""
    meta = document.get("meta")
    probe = meta.get("prefill_anchor") if isinstance(meta, Mapping) else None
    for where, value, known in (
        ("the anchor", document, _TOP),
        ("meta", meta, META),
        ("prefill_anchor", probe, _PROBE),
    ):
        for key in value if isinstance(value, Mapping) else ():
            near = [] if key in known else get_close_matches(key.lower().replace("-", "_"), known, 1, NEAR)
            if near:
                yield where, key, near[0]
