"""AIPerf's names of figures: older spellings, units, the metric of ours that one stands beside, its definition."""

from __future__ import annotations

from typing import Any

from engine.intake.rows import number

ALIASES = {
    "ttft": "time_to_first_token",
    "ttst": "time_to_second_token",
    "isl": "input_sequence_length",
    "osl": "output_sequence_length",
    "inter_chunk_latencies": "inter_chunk_latency",
}
"""Names of the first releases and what they became."""

NS_OF = {
    "ns": 1.0,
    "nanoseconds": 1.0,
    "us": 1e3,
    "µs": 1e3,
    "microseconds": 1e3,
    "ms": 1e6,
    "milliseconds": 1e6,
    "s": 1e9,
    "sec": 1e9,
    "seconds": 1e9,
}
"""Nanoseconds of one unit of time, by AIPerf's words for units."""
SMALL = 1e9
"""A duration below this fits 64 bits of nanoseconds in each of the units."""
NS_PER_MS = 1e6

_WINDOW = "over the span that the tool divides by: see the check throughput_denominator"
METRICS: dict[str, tuple[str | None, str]] = {
    "time_to_first_token": ("ttft", "first content of any kind - start; one value per request"),
    "time_to_first_output_token": ("ttfo", "first content that is no reasoning - start"),
    "inter_token_latency": ("tpot", "(latency - TTFT) / (output tokens - 1); one value per request"),
    "inter_chunk_latency": ("chunk_gap", "gaps between chunks with content, pooled; percentiles of a run are a sketch"),
    "request_latency": ("e2e", "last content - start"),
    "input_sequence_length": ("input_tokens", "tokens of the prompt"),
    "output_sequence_length": ("output_tokens", "output and reasoning tokens"),
    "usage_prompt_cache_read_tokens": ("cached_tokens", "cached prompt tokens as the server says"),
    "credit_to_start_latency": ("dispatch_lag", "start - credit issued"),
    "request_throughput": ("request_rate", f"requests without error {_WINDOW}"),
    "output_token_throughput": ("output_rate", f"output tokens {_WINDOW}"),
    "total_token_throughput": ("total_rate", f"input and output tokens {_WINDOW}"),
    "input_token_throughput": (None, f"input tokens {_WINDOW}"),
    "goodput": (None, f"requests that meet every objective {_WINDOW}"),
    "time_to_second_token": (None, "second - first chunk with content"),
    "benchmark_duration": (None, "first start to last content over requests without error"),
    "request_error_rate": (None, "errors / (requests without error + errors)"),
    "effective_concurrency": (None, "requests in flight, weighted by time over the phase window"),
    "effective_latency": (None, "end - credit issued"),
    "output_token_throughput_per_user": (None, "1 / inter token latency; one value per request"),
    "theoretical_prefix_cache_hit": (None, "blocks already seen in the same play of the trace / blocks"),
}
"""(metric of ours, definition of the tool) by tag."""

# Heads of the CSV summary and the tags that they stand for; others keep their head as name.
HEADS = {
    "time to first token": "time_to_first_token",
    "time to second token": "time_to_second_token",
    "time to first output token": "time_to_first_output_token",
    "inter token latency": "inter_token_latency",
    "inter chunk latency": "inter_chunk_latency",
    "request latency": "request_latency",
    "input sequence length": "input_sequence_length",
    "output sequence length": "output_sequence_length",
    "output token count": "output_token_count",
    "reasoning token count": "reasoning_token_count",
    "output token throughput per user": "output_token_throughput_per_user",
    "prefill throughput per user": "prefill_throughput_per_user",
    "request throughput": "request_throughput",
    "output token throughput": "output_token_throughput",
    "input token throughput": "input_token_throughput",
    "total token throughput": "total_token_throughput",
    "request count": "request_count",
    "error request count": "error_request_count",
    "benchmark duration": "benchmark_duration",
    "request error rate": "request_error_rate",
    "credit-to-start latency": "credit_to_start_latency",
    "effective concurrency": "effective_concurrency",
    "usage prompt cache read tokens": "usage_prompt_cache_read_tokens",
    "theoretical prefix cache hit": "theoretical_prefix_cache_hit",
    "total output sequence length": "total_osl",
    "total input sequence length": "total_isl",
    "total output tokens": "total_output_tokens",
}


def tag_of(name: str) -> str:
    """The tag by today's name."""
    return ALIASES.get(name, name)


def tag_of_head(head: str) -> tuple[str, str | None]:
    """Tag and unit of a head of the CSV summary: ``Time to First Token (ms)``."""
    name, _, rest = head.rpartition(" (")
    unit = rest.removesuffix(")") if name and rest.endswith(")") else None
    name = name if unit else head
    return HEADS.get(name.strip().lower(), name.strip()), unit


def is_time(unit: Any) -> bool:
    """Whether a unit is one of time."""
    return str(unit).lower() in NS_OF


def beyond(value: float, unit: Any) -> bool:
    """Whether a value is a time that no clock reaches: it is in no row, and in no figure made of rows."""
    return is_time(unit) and in_ns(value, unit) is None


def in_ns(value: Any, unit: Any) -> int | None:
    """A duration in whole nanoseconds; None where it is no finite number or the unit is no unit of time."""
    found, factor = number(value), NS_OF.get(str(unit or "ms").lower())
    return None if found is None or factor is None or abs(found) * factor >= 2**62 else round(found * factor)


def in_ms(value: float, unit: Any) -> float:
    """A value of a time unit in milliseconds, any other as it is."""
    if unit == "ms" or not isinstance(unit, str):
        return value
    factor = NS_OF.get(unit.lower())
    return value if factor is None else value * factor / NS_PER_MS
