"""Whether the figures of a summary can be true together; all that can be asked where there are no rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from engine.bundle import Check

FASTEST_TOKEN_S = 1e-4
"""No server of today gives one request tokens faster than this, speculation included."""
SECONDS: Mapping[str, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "s/token": 1.0, "ms/token": 1e-3}
_SLACK = 1e-6


def statistics_ordered(rows: Iterable[Mapping[str, Any]]) -> Check:
    """Whether min <= percentiles <= max and min <= mean <= max for each figure of ``reported``."""
    blocks: dict[tuple[Any, ...], dict[str, float]] = defaultdict(dict)
    for row in rows:
        blocks[(row["scope"], row["labels"], row["name"])][row["statistic"]] = row["value"]
    wrong, asked = [], 0
    for (_, labels, name), block in blocks.items():
        ladder = _ladder(block)
        if len(ladder) < 2:
            continue
        asked += 1
        problem = _disorder(ladder, block)
        if problem:
            wrong.append(f"{name}{f' ({labels})' if labels else ''}: {problem}")
    if not asked:
        return Check("statistics_ordered", "unknown", "no figure has statistics that could be compared")
    if wrong:
        more = f"; and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        return Check("statistics_ordered", "fail", f"{len(wrong)} of {asked} figures: {'; '.join(wrong[:3])}{more}")
    return Check("statistics_ordered", "pass", f"the statistics of {asked} figures rise from min to max")


def _ladder(block: Mapping[str, float]) -> list[tuple[float, str, float]]:
    found = []
    for word, value in block.items():
        rank = {"min": -1.0, "max": 101.0, "median": 50.0}.get(word)
        if rank is None and word.startswith("p"):
            try:
                rank = float(word[1:].replace("p", ".").replace("_", "."))
            except ValueError:
                continue
        if rank is not None:
            found.append((rank, word, value))
    return sorted(found)


def _disorder(ladder: list[tuple[float, str, float]], block: Mapping[str, float]) -> str:
    for (_, below, under), (_, above, over) in pairwise(ladder):
        if under - over > _SLACK * max(abs(under), abs(over)):
            return f"{below} {under:.6g} above {above} {over:.6g}"
    mean = block.get("mean", block.get("avg"))
    if mean is None or "min" not in block or "max" not in block:
        return ""
    low, high = block["min"], block["max"]
    slack = _SLACK * max(abs(low), abs(high))
    return "" if low - slack <= mean <= high + slack else f"mean {mean:.6g} outside {low:.6g} to {high:.6g}"


def units_plausible(latency_s: float | None, ttft_s: float | None, output_tokens: float | None, words: str) -> Check:
    """Whether mean latency, mean TTFT and mean output can be of one run: a 3 ms request has no 32 tokens.

    ``words`` says where the units were read.
    """
    if latency_s is None or latency_s <= 0:
        return Check("units_plausible", "unknown", "no latency is stated that could be judged")
    problems = []
    if ttft_s is not None and ttft_s > latency_s * (1 + _SLACK):
        problems.append(f"the mean TTFT of {ttft_s:.6g} s is above the mean latency of {latency_s:.6g} s")
    if output_tokens is not None and output_tokens > 1 and latency_s / output_tokens < FASTEST_TOKEN_S:
        problems.append(
            f"{output_tokens:.6g} tokens in {latency_s:.6g} s are {latency_s / output_tokens * 1e6:.3g} us a token, "
            "too fast to be true: a unit is likely another than the one stated"
        )
    if problems:
        return Check("units_plausible", "fail", f"{words}: {'; '.join(problems)}")
    if ttft_s is None and output_tokens is None:
        return Check("units_plausible", "unknown", f"{words}: nothing to hold the latency of {latency_s:.6g} s against")
    return Check("units_plausible", "pass", f"{words}: latency {latency_s:.6g} s fits what else is stated")
