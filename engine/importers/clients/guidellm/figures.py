"""GuideLLM's own figures: rows of ``reported``, and the same computed again by its rules.

Its percentiles are the nearest value of the sorted sample whose cumulated weight reaches the share; TPOT and ITL are
weighted by tokens, so that a long response counts more than a short one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.importers.clients.guidellm.rows import Request
from engine.importers.clients.reproduce import Figure, reported_rows
from engine.importers.clients.summaries import Meaning
from engine.importers.clients.values import count, dig, mapping
from engine.intake.rows import number

PERCENTILES = {
    "p001": "p0.1",
    "p01": "p1",
    "p05": "p5",
    "p10": "p10",
    "p25": "p25",
    "p50": "p50",
    "p75": "p75",
    "p90": "p90",
    "p95": "p95",
    "p99": "p99",
    "p999": "p99.9",
}
"""GuideLLM's words for percentiles, and ours: p001 is 0.1 %, p999 is 99.9 %."""
NEAREST = "percentiles: nearest rank"
_OVER_TIME = "a distribution over the time of the run; its mean is the count over the measured window"
MEANINGS: dict[str, Meaning] = {
    "request_latency": ("e2e", "s", f"end of the response - start; {NEAREST}"),
    "time_to_first_token_ms": ("ttft", "ms", f"first content of any kind - start; {NEAREST}"),
    "time_to_first_output_token_ms": ("ttfo", "ms", f"first content that is no reasoning - start; {NEAREST}"),
    "time_per_output_token_ms": (
        None,
        "ms",
        f"(last token - start) / output tokens, the first token inside; weighted by output tokens; {NEAREST}",
    ),
    "inter_token_latency_ms": (
        "tpot",
        "ms",
        f"(last token - first token) / (output tokens - 1), weighted by output tokens - 1; {NEAREST}",
    ),
    "prompt_token_count": ("input_tokens", "tokens", NEAREST),
    "output_token_count": ("output_tokens", "tokens", NEAREST),
    "total_token_count": (None, "tokens", NEAREST),
    "requests_per_second": ("request_rate", "requests/s", _OVER_TIME),
    "output_tokens_per_second": ("output_rate", "tokens/s", _OVER_TIME),
    "tokens_per_second": ("total_rate", "tokens/s", _OVER_TIME),
    "prompt_tokens_per_second": (None, "tokens/s", _OVER_TIME),
    "request_concurrency": (None, "requests", "requests in flight over the time of the run"),
}
RATES = ("requests_per_second", "output_tokens_per_second", "tokens_per_second")
_WORDS = {"mean": "mean", "median": "p50", "std_dev": "std", "min": "min", "max": "max", "total_sum": "sum"}
_OUTCOMES = ("successful", "incomplete", "errored", "total")


def figure_rows(metrics: Mapping[str, Any], source: str) -> Iterator[dict[str, Any]]:
    """Rows of ``reported`` of a benchmark's metrics; those of its successes stand beside ours, the rest is labelled."""
    for name, blocks in metrics.items():
        for outcome in _OUTCOMES:
            block = mapping(dig(blocks, outcome))
            n = count(block.get("count"))
            if n:
                yield from block_rows(name, outcome, statistics(block), n, source)
    for outcome, value in mapping(metrics.get("request_totals")).items():
        yield from reported_rows("run", "request_totals", {"value": value}, source, labels=outcome)


def block_rows(
    name: str, outcome: str, words: Mapping[str, Any], n: int | None, source: str
) -> Iterator[dict[str, Any]]:
    """Rows of one figure of one outcome; of a rate over time only the mean is a rate of the run."""
    metric, unit, definition = MEANINGS.get(name, (None, None, None))
    labels = None if outcome == "successful" else outcome
    if labels is None and name in RATES:
        mean = {"mean": words.get("mean")}
        yield from reported_rows("run", name, mean, source, unit=unit, metric=metric, definition=definition, n=n)
        metric, words = None, {word: value for word, value in words.items() if word != "mean"}
    yield from reported_rows(
        "run",
        name,
        words,
        source,
        unit=unit,
        metric=metric if labels is None else None,
        definition=definition,
        labels=labels,
        n=n,
    )


def statistics(block: Mapping[str, Any]) -> dict[str, float]:
    """The statistics of a block in our words; the median and the 50th percentile are one."""
    found = {ours: block.get(theirs) for theirs, ours in _WORDS.items()}
    found |= {ours: dig(block, "percentiles", theirs) for theirs, ours in PERCENTILES.items()}
    return {word: told for word, value in found.items() if (told := number(value)) is not None}


def recomputed(requests: Iterable[Request], metrics: Mapping[str, Any]) -> Iterator[Figure]:
    """Every figure of the successes that the rows can tell, beside the one that the report states."""
    samples: dict[str, list[tuple[float, float]]] = {}
    for request in requests:
        if request.outcome == "successful":
            for name, value, weight in own_terms(request):
                samples.setdefault(name, []).append((value, weight))
    for name in sorted(samples):
        block = mapping(dig(metrics, name, "successful"))
        ours = weighted(*np.asarray(samples[name], np.float64).T)
        stated: dict[str, Any] = {**statistics(block), "count": block.get("count")}
        for word, value in stated.items():
            told = number(value)
            if told is not None:
                yield Figure(name, word, told, ours.get(word))


def own_terms(request: Request) -> Iterator[tuple[str, float, float]]:
    """(figure, value, weight) of a success, as GuideLLM defines them."""
    start, first, last, tokens = request.start, request.first, request.last, request.output_tokens
    prompt = count(request.row.get("prompt_tokens"))
    if start is None:
        return
    if request.end is not None:
        yield "request_latency", request.end - start, 1.0
    if first is not None:
        yield "time_to_first_token_ms", (first - start) * 1e3, 1.0
    if request.first_output is not None:
        yield "time_to_first_output_token_ms", (request.first_output - start) * 1e3, 1.0
    if last is not None and tokens:
        yield "time_per_output_token_ms", (last - start) / tokens * 1e3, tokens
        if first is not None and tokens > 1:
            yield "inter_token_latency_ms", (last - first) / (tokens - 1) * 1e3, tokens - 1
    if prompt is not None:
        yield "prompt_token_count", prompt, 1.0
    if tokens is not None:
        yield "output_token_count", tokens, 1.0


def weighted(values: npt.NDArray[np.float64], weights: npt.NDArray[np.float64]) -> dict[str, float]:
    """Weighted statistics by our words; a percentile is the first value whose cumulated weight reaches its share."""
    order = np.argsort(values, kind="stable")
    values, weights = values[order], weights[order]
    total = math.fsum(weights)
    mean = math.fsum(values * weights) / total
    reached = np.cumsum(weights) / total
    found = {
        "mean": mean,
        "std": math.sqrt(math.fsum((values - mean) ** 2 * weights) / total),
        "min": float(values[0]),
        "max": float(values[-1]),
        "sum": math.fsum(values * weights),
        "count": total,
    }
    for word in PERCENTILES.values():
        place = int(np.searchsorted(reached, float(word[1:]) / 100))
        found[word] = float(values[min(place, len(values) - 1)])
    return found
