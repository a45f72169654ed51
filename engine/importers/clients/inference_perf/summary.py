"""Summaries of inference-perf: their figures, and whether these follow from the rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from engine.bundle import Check
from engine.importers.clients.inference_perf.rows import Table
from engine.importers.clients.plausible import statistics_ordered, units_plausible
from engine.importers.clients.reproduce import compare, reproduced
from engine.importers.clients.summaries import Meaning, figure_rows
from engine.importers.clients.values import count, dig, mapping
from engine.intake import InputFile
from engine.intake.rows import number

MEANINGS: dict[str, Meaning] = {
    "request_latency": ("e2e", "s", "end of the response - start"),
    "time_to_first_token": ("ttft", "s", "first chunk with content - start"),
    "time_per_output_token": ("tpot", "s", "(last token - first token) / (output tokens - 1), one value per request"),
    "inter_token_latency": ("chunk_gap", "s", "gaps between the times kept, one per chunk, pooled over requests"),
    "normalized_time_per_output_token": (None, "s", "latency / output tokens, the first token inside"),
    "prompt_len": ("input_tokens", "tokens", "tokens of the prompt, as the client counts them"),
    "output_len": ("output_tokens", "tokens", "tokens of the response, as the client counts them"),
    "input_tokens_per_sec": (None, "tok/s", "input tokens / benchmark time"),
    "output_tokens_per_sec": ("output_rate", "tok/s", "output tokens / benchmark time"),
    "total_tokens_per_sec": ("total_rate", "tok/s", "input and output tokens / benchmark time"),
    "requests_per_sec": ("request_rate", "req/s", "successes / benchmark time"),
    "schedule_delay": ("dispatch_lag", "s", "start - scheduled"),
    "send_duration": (None, "s", None),
    "requested_rate": (None, "req/s", "as asked for"),
    "achieved_rate": (None, "req/s", "requests sent / send duration"),
    "benchmark_time_seconds": (None, "s", None),
}


def label_of(file: InputFile, summaries: list[InputFile]) -> str | None:
    """What part of the run a summary is of; None: all of it. A stage says at which rate it was to send."""
    stage = b'"requested_rate"' in file.head
    if not stage or len(summaries) == 1:
        return None
    found = re.search(r"stage_(\d+)", file.base)
    return f"stage {found[1]}" if found else file.base


def reported(documents: dict[InputFile, dict[str, Any]], summaries: list[InputFile]) -> Iterator[dict[str, Any]]:
    """Rows of ``reported`` of every summary."""
    for file, document in documents.items():
        label = label_of(file, summaries)
        scope = "slice" if label else "run"
        told = {key: document.get(key) for key in ("benchmark_time_seconds", "load_summary")}
        yield from figure_rows(told, MEANINGS, file.base, scope, label)
        successes = mapping(document.get("successes"))
        yield from figure_rows(successes, MEANINGS, file.base, scope, label, count(successes.get("count")))
        failures = {f"failed_{key}": value for key, value in mapping(document.get("failures")).items()}
        yield from figure_rows(failures, MEANINGS, file.base, scope, label)


def summary_checks(
    documents: dict[InputFile, dict[str, Any]],
    summaries: list[InputFile],
    reported: list[dict[str, Any]],
    table: Table | None,
) -> Iterator[Check]:
    """What is asked of the summary of the whole run; the rows answer where there are any."""
    yield statistics_ordered(reported)
    whole = next((d for file, d in documents.items() if label_of(file, summaries) is None), None)
    if whole is None:
        return
    source = next(file.base for file in documents if label_of(file, summaries) is None)
    successes, latency = mapping(whole.get("successes")), mapping(dig(whole, "successes", "latency"))
    means = [number(dig(latency, key, "mean")) for key in ("request_latency", "time_to_first_token")]
    length = number(dig(successes, "output_len", "mean"))
    yield units_plausible(means[0], means[1], length, "figures taken as seconds")
    if table is None:
        return
    stated = {**latency, "prompt_len": successes.get("prompt_len"), "output_len": successes.get("output_len")}
    blocks = {name: block for name, block in stated.items() if isinstance(block, dict)}
    aside = "Rates were not computed again: the rows do not say how long the benchmark took."
    yield reproduced(list(compare(table.values, blocks)), source, aside)
    yield table.spans.check(number(whole.get("benchmark_time_seconds")), source)
    yield _counts(successes, mapping(whole.get("failures")), table, source)


def _counts(successes: dict[str, Any], failures: dict[str, Any], table: Table, source: str) -> Check:
    stated = count(successes.get("count")), count(failures.get("count"))
    found = table.succeeded, table.failed
    detail = f"{source} counts {stated[0]} successes and {stated[1]} failures, the rows hold {found[0]} and {found[1]}"
    return Check("rows_counted", "pass" if stated == found else "fail", detail)
