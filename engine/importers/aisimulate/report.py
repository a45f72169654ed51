"""The report of AISimulate: its figures, what they mean, and whether they follow from the rows."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from engine.bundle import Check
from engine.importers.clients.reproduce import Figure, our_word, reported_rows, reproduced
from engine.importers.clients.values import count, mapping
from engine.intake.rows import number

PERCENTILES = "value at sorted index round((n-1)p), halves away from zero, no interpolation"
DENOMINATOR = "completed requests over the modelled duration"
_PERCENT = f"{PERCENTILES}; std of the population"
MEANINGS: dict[str, tuple[str | None, str, str]] = {
    "ttft": ("ttft", "ms", "first token - arrival"),
    "ttst": (None, "ms", "second token - arrival"),
    "tpot": ("tpot", "ms", "(last token - first token) / (output tokens - 1), one value per request"),
    "itl": ("itl", "ms", "gaps between tokens pooled, gaps of length 0 of a burst included; percentiles are a sketch"),
    "e2e_latency": ("e2e", "ms", "last token - arrival"),
    "output_token_throughput_per_user": (None, "tok/s/user", "1 / gap, gaps of length 0 left out; a sketch"),
}
FIGURES: dict[str, tuple[str | None, str | None, str | None]] = {
    "request_throughput_rps": ("request_rate", "req/s", DENOMINATOR),
    "input_throughput_tok_s": (None, "tok/s", f"input tokens of {DENOMINATOR}"),
    "output_throughput_tok_s": ("output_rate", "tok/s", f"output tokens of {DENOMINATOR}"),
    "total_throughput_tok_s": ("total_rate", "tok/s", f"input and output tokens of {DENOMINATOR}"),
    "duration_ms": (None, "ms", "last end of a completed request - start of the report, modelled"),
    "wall_time_ms": (None, "ms", "time of the machine that simulated, loading apart"),
    "prefix_cache_reused_ratio": (None, "share", "reused tokens, the most of any admission / input tokens, completed"),
    "first_admission_prefix_cache_reused_ratio": (
        None,
        "share",
        "tokens reused at the first admission / input tokens, completed",
    ),
    "gpu_hours": (None, "h", "time of the workers x their GPUs"),
}
_STATISTIC = re.compile(r"(mean|min|max|median|p\d+|std)_(\w+?)(?:_ms)?")
_SAMPLES = {"ttft": "num_ttft_samples", "tpot": "num_tpot_samples", "e2e_latency": "num_e2e_latency_samples"}
_NOT_FIGURES = re.compile(r"_digest$|^weka_|^agentic_|qualification")


def samples(report: dict[str, Any], name: str) -> int | None:
    """How many values the statistics of a figure rest on; None where the report does not say.

    An empty sample is written as zeros, so the count must be read.
    """
    if name in _SAMPLES:
        return count(report.get(_SAMPLES[name]))
    return count(report.get("num_tpot_samples")) if name in ("itl", "ttst") else None


def reported(report: dict[str, Any], source: str) -> Iterator[dict[str, Any]]:
    """Rows of ``reported``; statistics over no value are left out."""
    for key, value in report.items():
        if number(value) is None or _NOT_FIGURES.search(key):
            continue
        found = _STATISTIC.fullmatch(key)
        if found and found[2] in MEANINGS:
            n = samples(report, found[2])
            if n == 0:
                continue
            metric, unit, definition = MEANINGS[found[2]]
            rule = definition if found[1] in ("mean", "min", "max") else f"{definition}; {_PERCENT}"
            if found[2] == "itl":
                n = None  # the count is of requests, the gaps are not counted
            yield from reported_rows(
                "run", found[2], {found[1]: value}, source, unit=unit, metric=metric, definition=rule, n=n
            )
        else:
            beside, unit_of, words = FIGURES.get(key, (None, None, None))
            yield from reported_rows(
                "run", key, {"value": value}, source, unit=unit_of, metric=beside, definition=words
            )
    speculative = mapping(report.get("speculative_acceptance"))
    for key, value in speculative.items():
        yield from reported_rows("run", f"speculative_acceptance.{key}", {"value": value}, source)


def nearest_rank(values: Sequence[float], percent: float) -> float | None:
    """The value at sorted index round((n-1) percent / 100), halves away from zero."""
    if not len(values):
        return None
    place = math.floor((len(values) - 1) * percent / 100 + 0.5)
    return float(np.partition(np.asarray(values, np.float64), place)[place])


def statistic(values: Sequence[float], word: str) -> float | None:
    """A statistic by the report's rules; None where there are no values."""
    word = our_word(word)
    if not len(values):
        return None
    if word == "mean":
        return math.fsum(values) / len(values)
    if word == "std":
        return float(np.std(np.asarray(values, np.float64)))
    if word in ("min", "max"):
        return float(min(values) if word == "min" else max(values))
    return nearest_rank(values, float(word[1:]))


_PER_SECOND = {
    "request_throughput_rps": ("completed_requests",),
    "input_throughput_tok_s": ("total_input_tokens",),
    "output_throughput_tok_s": ("total_output_tokens",),
    "total_throughput_tok_s": ("total_input_tokens", "total_output_tokens"),
}
_PER_INPUT_TOKEN = {
    "prefix_cache_reused_ratio": "reused_tokens",
    "first_admission_prefix_cache_reused_ratio": "first_reused_tokens",
}


def _quotients(report: dict[str, Any], totals: dict[str, float]) -> Iterator[Figure]:
    """Rates and shares of the report beside those of the rows; without a duration or a token they are 0."""
    duration, tokens = number(report.get("duration_ms")) or 0.0, totals.get("total_input_tokens", 0)
    for key, names in _PER_SECOND.items():
        rate = number(report.get(key))
        if rate is not None:
            total = sum(totals.get(name, 0) for name in names)
            yield Figure(key, "value", rate, total / duration * 1e3 if duration > 0 else 0.0)
    for key, name in _PER_INPUT_TOKEN.items():
        share = number(report.get(key))
        if share is not None and name in totals:
            yield Figure(key, "value", share, totals[name] / tokens if tokens else 0.0)


def summary_check(report: dict[str, Any], values: dict[str, list[float]], totals: dict[str, float]) -> Check:
    """Whether the figures of the report follow from the rows.

    ``values`` are those of completed requests, in milliseconds; ``totals`` counts and sums of the rows.
    """
    figures = []
    for key, value in report.items():
        told = number(value)
        found = _STATISTIC.fullmatch(key)
        if told is None:
            continue
        if found and found[2] in values:
            if samples(report, found[2]) != 0:
                figures.append(Figure(found[2], found[1], told, statistic(values[found[2]], found[1])))
        elif key in totals:
            figures.append(Figure(key, "value", told, totals[key]))
        elif key in _SAMPLES.values():
            name = next(name for name, counter in _SAMPLES.items() if counter == key)
            figures.append(Figure(key, "value", told, float(len(values.get(name, ())))))
    figures += _quotients(report, totals)
    aside = "Pooled gaps (itl) and rates per user are sketches over single tokens, which the rows do not hold."
    return reproduced(figures, "the report", aside)
