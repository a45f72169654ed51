"""The figures of InferenceX results as rows of ``reported``, with what each of them means."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from engine.importers.clients.inferencex.header import HEADER
from engine.importers.clients.reproduce import reported_rows
from engine.importers.clients.values import dig, mapping, text
from engine.intake.rows import number

Row = dict[str, Any]
Meaning = tuple[str | None, str | None, str | None]
"""(metric of ours, unit, definition of the tool)."""

_CLIENT = "as the vLLM-derived client measures it"
FIXED: dict[str, Meaning] = {
    "ttft": ("ttft", "s", f"first chunk - start, {_CLIENT}"),
    "tpot": ("tpot", "s", f"(latency - TTFT) / (output tokens - 1), {_CLIENT}"),
    "itl": ("chunk_gap", "s", f"gaps between chunks, pooled over requests, {_CLIENT}"),
    "e2el": ("e2e", "s", f"last chunk - start, {_CLIENT}"),
    "intvty": (None, "tok/s/user", "1 / TPOT of the same statistic, so that a high percentile is the slow tail"),
    "tput_per_gpu": (None, "tok/s/GPU", "input and output tokens / benchmark call / all GPUs"),
    "output_tput_per_gpu": (None, "tok/s/GPU", "output tokens / benchmark call / GPUs (of decode, where apart)"),
    "input_tput_per_gpu": (None, "tok/s/GPU", "input tokens / benchmark call / GPUs (of prefill, where apart)"),
}
_REQUESTS = "successful profiling requests"
_SPAN = "last end - first start of the successful profiling requests"
AGENTIC: dict[str, Meaning] = {
    "ttft": ("ttft", "s", f"AIPerf's TTFT: first content of any kind - start; {_REQUESTS}"),
    "e2el": ("e2e", "s", f"AIPerf's request latency: last content - start; {_REQUESTS}"),
    "itl": ("tpot", "s", f"AIPerf's ITL: (latency - TTFT) / (output tokens - 1), one value per request; {_REQUESTS}"),
    "tpot": ("tpot", "s", "a copy of itl"),
    "intvty": (
        None,
        "tok/s/user",
        "mean and percentiles are 1 / those of itl; std is that of the rates of the single requests (population)",
    ),
    "full_response_itl": (None, "s", None),
    "full_response_intvty": (None, "tok/s/user", None),
    "e2e_norm_intvty": (None, "tok/s/user", None),
    "input": ("input_tokens", "tokens", f"tokens of the prompt; {_REQUESTS}"),
    "output_actual": ("output_tokens", "tokens", f"output and reasoning tokens that came; {_REQUESTS}"),
    "output_expected": (None, "tokens", "output tokens that were asked for"),
    "qps": (None, "req/s", "completions in windows of the stated length"),
    "ttlt": ("e2e", "s", "last token - start"),
    "input_tokens": ("input_tokens", "tokens", "tokens of the prompt"),
    "output_tokens_actual": ("output_tokens", "tokens", "output tokens that came"),
    "output_tokens_expected": (None, "tokens", "output tokens that were asked for"),
}
_RATES = {"input": None, "output": "output_rate", "total": "total_rate"}
# The flat results of 2026-04 came from the trace replay of kv-cache-tester, with its own ITL.
FLAT: dict[str, Meaning] = {
    **AGENTIC,
    "ttft": ("ttft", "s", "end of prefill (first content) - start"),
    "itl": ("tpot", "s", "(last token - first token) / (output tokens - 1), one value per request"),
    "input_tput_tps": (None, "tok/s", f"input tokens / ({_SPAN})"),
    "output_tput_tps": ("output_rate", "tok/s", f"output tokens / ({_SPAN})"),
    "total_tput_tps": ("total_rate", "tok/s", f"input and output tokens / ({_SPAN})"),
    "tput_per_gpu": (None, "tok/s/GPU", "total_tput_tps / tp"),
    "output_tput_per_gpu": (None, "tok/s/GPU", "output_tput_tps / tp"),
    "input_tput_per_gpu": (None, "tok/s/GPU", "input_tput_tps / tp"),
    "duration_seconds": (None, "s", _SPAN),
}
_STATISTIC = re.compile(r"(mean|median|std|min|max|p\d{1,2}(?:\.\d+)?)_(\w+)")
_GIVEN = "value"
"""The statistic of a figure that is one number."""


def flat_rows(point: dict[str, Any], meanings: dict[str, Meaning], source: str) -> Iterator[Row]:
    """Every number of a flat result that is not of its head."""
    for key, value in point.items():
        if key in HEADER or number(value) is None:
            continue
        found = _STATISTIC.fullmatch(key)
        name, word = (found[2], found[1]) if found else (key, _GIVEN)
        metric, unit, definition = meanings.get(name, (None, "W" if key.startswith("power") else None, None))
        yield from reported_rows("run", name, {word: value}, source, unit=unit, metric=metric, definition=definition)


def agentic_rows(point: dict[str, Any], source: str) -> Iterator[Row]:
    """The nested figures of an AgentX result: the client's, then the server's."""
    metrics = mapping(point.get("request_metrics"))
    blocks = {
        **mapping(metrics.get("latency")),
        **mapping(metrics.get("tokens")),
        **({"qps": metrics["qps"]} if isinstance(metrics.get("qps"), dict) else {}),
    }
    for name, block in blocks.items():
        if isinstance(block, dict):
            metric, unit, definition = AGENTIC.get(name, (None, None, None))
            yield from reported_rows("run", name, block, source, unit=unit, metric=metric, definition=definition)
    yield from _throughput(mapping(metrics.get("throughput")), source)
    rate = dig(metrics, "cache", "theoretical_cache_hit_rate")
    definition = "blocks already seen in the same play of the trace / blocks; no measurement of the server"
    yield from reported_rows(
        "run", "theoretical_cache_hit_rate", {_GIVEN: rate}, source, unit="share", definition=definition
    )
    accounting = mapping(point.get("request_accounting"))
    totals = {**accounting, **{k: v for k, v in point.items() if k.startswith("num_requests")}}
    for name, value in totals.items():
        yield from reported_rows("run", name, {_GIVEN: value}, source, unit="requests")
    yield from _server(mapping(point.get("server_metrics")), source)


def _throughput(block: dict[str, Any], source: str) -> Iterator[Row]:
    for side, metric in _RATES.items():
        definition = f"{side} tokens / ({_SPAN}); AIPerf's own summary divides by the phase window"
        yield from reported_rows(
            "run",
            f"{side}_tput",
            {_GIVEN: dig(block, side, "tokens_per_second")},
            source,
            unit="tok/s",
            metric=metric,
            definition=definition,
        )
    yield from reported_rows(
        "run", "duration", {_GIVEN: block.get("duration_seconds")}, source, unit="s", definition=_SPAN
    )
    for name, value in mapping(block.get("per_gpu")).items():
        yield from reported_rows(
            "run", name, {_GIVEN: value}, source, unit="tok/s/GPU", definition="the rate of the same name / GPUs"
        )


def _server(block: dict[str, Any], source: str) -> Iterator[Row]:
    definition = "a counter or gauge of the server over the run"
    for group, values in block.items():
        if group == "sources":
            continue
        for name, value in _leaves(group, values):
            unit = "share" if name.endswith(("hit_rate", "usage_pct")) else None
            yield from reported_rows("server", name, {_GIVEN: value}, source, unit=unit, definition=definition)
    sources = block.get("sources")
    for entry in sources if isinstance(sources, list) else []:
        label = " ".join(filter(None, (text(dig(entry, "role")), text(dig(entry, "id"))))) or None
        for name, value in mapping(entry).items():
            unit = "share" if name.endswith(("hit_rate", "usage_pct")) else None
            yield from reported_rows(
                "server", name, {_GIVEN: value}, source, unit=unit, definition=definition, labels=label
            )


def _leaves(name: str, value: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and depth < 4:
        for key, inner in value.items():
            yield from _leaves(f"{name}.{key}", inner, depth + 1)
    elif number(value) is not None:
        yield name, value
