"""Knobs of prefill/decode disaggregation: a pool for prompts, and the way from there to the pool for decodes."""

from __future__ import annotations

from engine.knobs.knob import Knob

KNOBS: tuple[Knob, ...] = (
    Knob(
        "prefill_replicas",
        int,
        0,
        "disaggregation",
        "engines that only compute prompts and sample first tokens; replicas then counts the engines that decode what "
        "comes from them; 0: every replica does both; both together, ranks counted, at most 1,024",
        "replicas",
        0,
        1024,
    ),
    Knob(
        "prefill_router",
        str,
        "round_robin",
        "disaggregation",
        "which prefill engine gets a request; the words of router, which chooses the one that decodes it",
        choices=("round_robin", "least_loaded", "session", "sibling", "kv_aware"),
    ),
    Knob(
        "prefill_attention_dp",
        int,
        0,
        "disaggregation",
        "attention_dp of a prefill engine; 0: as attention_dp",
        "ranks",
        0,
        1024,
    ),
    Knob(
        "prefill_kv_blocks",
        int,
        0,
        "disaggregation",
        "kv_blocks of a prefill engine; 0: as kv_blocks",
        "blocks",
        0,
        1_000_000_000,
    ),
    Knob(
        "prefill_max_num_seqs",
        int,
        0,
        "disaggregation",
        "max_num_seqs of a prefill engine; 0: as max_num_seqs",
        "requests",
        0,
        1_000_000,
    ),
    Knob(
        "prefill_max_num_batched_tokens",
        int,
        0,
        "disaggregation",
        "max_num_batched_tokens of a prefill engine, at least its max_num_seqs; 0: as max_num_batched_tokens",
        "tokens",
        0,
        100_000_000,
    ),
    Knob(
        "transfer_gb_s",
        float,
        50.0,
        "disaggregation",
        "bandwidth of a transfer, which shares it with no other; 0: any amount at once",
        "GB/s",
        0,
        1_000_000,
    ),
    Knob(
        "transfer_latency_us",
        float,
        5.0,
        "disaggregation",
        "what a transfer takes besides, however little is sent",
        "us",
        0,
        1e9,
    ),
    Knob(
        "transfer_bytes",
        str,
        "missing",
        "disaggregation",
        "what is sent; missing: the tokens of a prompt that the prefix cache of its destination lacks; full: the "
        "whole prompt",
        choices=("missing", "full"),
    ),
    Knob(
        "transfer_hold",
        str,
        "source",
        "disaggregation",
        "who holds blocks first; source (vLLM, TensorRT-LLM): a computed prompt waits where it was computed until its "
        "destination has room; destination (SGLang): a request is not sent to prefill before its destination has room",
        choices=("source", "destination"),
    ),
)
