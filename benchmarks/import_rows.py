"""Rows of other tools' files, made up from their number alone, for imports of any length."""

from __future__ import annotations

from typing import Any

START_NS = 1_780_000_000_000_000_000


def request_record(number: int) -> dict[str, Any]:
    """AIPerf's record of the ``number``-th request: 200 requests a second that take 2 to 5 s; every 50th failed."""
    start = START_NS + number * 5_000_000 + number * 7919 % 1_000_000
    tokens = 5 + number * 31 % 11
    gap_ms = 20 + number * 17 % 97 / 10
    ttft_ms = 150 + number * 13 % 1_009
    e2e_ms = ttft_ms + gap_ms * (tokens - 1)
    metadata = {
        "session_num": number,
        "x_request_id": f"{number * 2654435761 % 2**32:08x}-{number:012x}",
        "x_correlation_id": f"{number // 4:032x}",
        "conversation_id": f"session_{number // 4:06}",
        "turn_index": number % 4,
        "credit_issued_ns": start - 90_000,
        "request_start_ns": start,
        "request_ack_ns": start + 30_000_000,
        "request_end_ns": start + round(e2e_ms * 1e6) + 2_000_000,
        "worker_id": f"worker_{number % 8:08x}",
        "record_processor_id": f"record_processor_{number % 4:08x}",
        "benchmark_phase": "profiling",
        "was_cancelled": False,
    }
    if number % 50 == 49:
        error = {"code": 500, "type": "Internal Server Error", "message": "the engine is gone"}
        return {"metadata": metadata, "metrics": {"error_isl": _value(900, "tokens")}, "error": error}
    isl = 500 + number * 97 % 8_000
    metrics = {
        "time_to_first_token": _value(ttft_ms, "ms"),
        "time_to_second_token": _value(gap_ms, "ms"),
        "time_to_first_output_token": _value(ttft_ms, "ms"),
        "request_latency": _value(e2e_ms, "ms"),
        "inter_token_latency": _value(gap_ms, "ms"),
        "inter_chunk_latency": _value([gap_ms] * (tokens - 1), "ms"),
        "input_sequence_length": _value(isl, "tokens"),
        "output_sequence_length": _value(tokens, "tokens"),
        "output_token_count": _value(tokens, "tokens"),
        "usage_prompt_tokens": _value(isl, "tokens"),
        "usage_completion_tokens": _value(tokens, "tokens"),
        "usage_total_tokens": _value(isl + tokens, "tokens"),
        "usage_prompt_cache_read_tokens": _value(isl // 32 * 16, "tokens"),
        "output_token_throughput_per_user": _value(1000 / gap_ms, "tokens/sec/user"),
        "prefill_throughput_per_user": _value(isl / ttft_ms * 1000, "tokens/sec/user"),
        "http_req_duration": _value(e2e_ms, "ms"),
    }
    return {"metadata": metadata, "metrics": metrics, "error": None}


def _value(value: Any, unit: str) -> dict[str, Any]:
    return {"value": value, "unit": unit}


def pass_record(number: int) -> dict[str, Any]:
    """What a recorder of forward pass metrics keeps of the ``number``-th pass: four ranks in lockstep.

    Every 16th step computes prompts beside the decodes; every 1,000th is a heartbeat.
    """
    step, rank = divmod(number, 4)
    beat, prompts = step % 1_000 == 999, 1 + step % 3 if step % 16 == 0 else 0
    decodes = 0 if beat else 24 + (step * 7 + rank * 5) % 40
    scheduled = {
        "num_prefill_requests": prompts,
        "sum_prefill_tokens": prompts * (300 + rank * 11),
        "var_prefill_length": 1_234.5 * (prompts > 1),
        "sum_prefill_kv_tokens": prompts * 64,
        "num_decode_requests": decodes,
        "sum_decode_kv_tokens": decodes * (1_500 + step % 977),
        "var_decode_kv_tokens": 250_000.125 + step % 89 if decodes else 0.0,
    }
    queued = {
        "num_prefill_requests": step % 5,
        "sum_prefill_tokens": step % 5 * 700,
        "var_prefill_length": 81.25 * (step % 5 > 1),
        "num_decode_requests": 0,
        "sum_decode_kv_tokens": 0,
        "var_decode_kv_tokens": 0.0,
    }
    wall_s = 0.0 if beat else 0.012 + prompts * 0.004 + step % 31 * 1.0123e-5
    metrics = {
        "version": 1,
        "worker_id": "17587892060535417860",
        "dp_rank": rank,
        "counter_id": step + 1,
        "wall_time": wall_s,
        "scheduled_requests": scheduled,
        "queued_requests": queued,
    }
    received = START_NS + step * 25_000_000 + rank * 41_000
    return {"received_at_ns": received, "wire_counter": step + 1, "metrics": metrics}
