"""A tool's own summary computed again from the rows, with the tool's definition, and compared to its rounding."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from engine.bundle import Check
from engine.intake.rows import number

OUR_WORDS = {
    "avg": "mean",
    "average": "mean",
    "median": "p50",
    "stddev": "std",
    "std_dev": "std",
    "total_sum": "sum",
    "n": "count",
}
"""Words of tools for statistics that ours have another word for."""

EXACT = 1e-9
"""Relative difference that the order of adding may make."""
_NAMED = 4
_PERCENTILE = re.compile(r"p(\d{1,2}|100)(?:[p._](\d+))?")


@dataclass(frozen=True)
class Figure:
    """One figure of a summary beside the same one from rows; ``recomputed`` None: undefined on these rows."""

    name: str
    statistic: str
    stated: float
    recomputed: float | None
    decimals: int | None = None
    """Decimals that the tool prints; None: all of them."""

    @property
    def agrees(self) -> bool:
        """Whether both are the same number, the tool's rounding apart."""
        if self.recomputed is None:
            return False
        slack = EXACT * max(abs(self.stated), abs(self.recomputed))
        if self.decimals is not None:
            slack += 0.5 * 10.0**-self.decimals * (1 + 1e-6)
        return abs(self.stated - self.recomputed) <= slack

    def __str__(self) -> str:
        found = "undefined" if self.recomputed is None else f"{self.recomputed:.10g}"
        return f"{self.name} {self.statistic} {self.stated:.10g}, from rows {found}"


def our_word(statistic: str) -> str:
    """The statistic in our word: mean, p50, p90, std, min, max, count, sum."""
    return OUR_WORDS.get(statistic, statistic)


def statistic(
    values: npt.NDArray[np.float64], word: str, ddof: int = 0, method: Literal["linear", "nearest"] = "linear"
) -> float | None:
    """A statistic of values by its word; None where it is undefined or the word is not known.

    Percentiles are numpy's of ``method``; ``p99.9``, ``p99p9`` and ``p99_9`` are the same.
    """
    try:
        with np.errstate(all="ignore"):
            found = _statistic(values, our_word(word), ddof, method)
    except OverflowError:  # a sum beyond the largest number
        return None
    return found if found is not None and math.isfinite(found) else None


def _statistic(
    values: npt.NDArray[np.float64], word: str, ddof: int, method: Literal["linear", "nearest"]
) -> float | None:
    if word == "count":
        return float(len(values))
    if word == "sum":
        return math.fsum(values)
    if len(values) == 0:
        return None
    if word == "mean":
        return math.fsum(values) / len(values)
    if word == "std":
        return float(np.std(values, ddof=ddof)) if len(values) > ddof else None
    if word == "min":
        return float(np.min(values))
    if word == "max":
        return float(np.max(values))
    found = _PERCENTILE.fullmatch(word)
    if found is None:
        return None
    percent = float(f"{found[1]}.{found[2] or 0}")
    return float(np.percentile(values, percent, method=method)) if percent <= 100 else None


def compare(
    rows: Mapping[str, Any],
    stated: Mapping[str, Mapping[str, Any]],
    decimals: int | None = None,
    ddof: int = 0,
    method: Literal["linear", "nearest"] = "linear",
) -> Iterator[Figure]:
    """Each figure of ``stated`` {name: {statistic: value}} that ``rows`` {name: floats} can tell.

    Names without rows, statistics of unknown words and values that are no finite numbers are passed over: whoever
    calls names what is left out on purpose. ``decimals`` is how many the tool prints, ``ddof`` its divisor of ``std``,
    ``method`` its rule for percentiles.
    """
    for name, block in stated.items():
        if name not in rows:
            continue
        values = np.asarray(rows[name], np.float64)
        for word, value in block.items():
            told = number(value)
            ours = our_word(word)
            known = ours in ("mean", "std", "min", "max", "count", "sum") or _PERCENTILE.fullmatch(ours)
            if told is not None and known:
                yield Figure(name, word, told, statistic(values, word, ddof, method), decimals)


def reproduced(figures: Iterable[Figure], source: str, aside: str = "", check: str = "summary_reproduced") -> Check:
    """The check that says how many figures of ``source`` follow from the rows, and names those that do not.

    ``aside`` is a sentence on what was not recomputed.
    """
    found = list(figures)
    wrong = [figure for figure in found if not figure.agrees]
    aside = f" {aside}" if aside else ""
    if not found:
        return Check(check, "unknown", f"{source} states no figure that the rows can tell.{aside}")
    if not wrong:
        return Check(check, "pass", f"all {len(found):,} figures of {source} follow from the rows.{aside}")
    named = "; ".join(str(figure) for figure in wrong[:_NAMED])
    more = f"; and {len(wrong) - _NAMED:,} more" if len(wrong) > _NAMED else ""
    detail = (
        f"{len(found) - len(wrong):,} of {len(found):,} figures of {source} follow from the rows; not: {named}{more}."
    )
    return Check(check, "fail", detail + aside)


def reported_rows(
    scope: str,
    name: str,
    statistics: Mapping[str, Any],
    source: str,
    *,
    unit: str | None = None,
    metric: str | None = None,
    definition: str | None = None,
    labels: str | None = None,
    n: int | None = None,
    slice_ns: tuple[int, int] | None = None,
) -> Iterator[dict[str, Any]]:
    """Rows of the table ``reported`` for one figure and its statistics; those that are no finite number are left out.

    Where ``metric`` names one of ours, statistics are written in our words.
    """
    for word, value in statistics.items():
        found = number(value)
        if found is None:
            continue
        yield {
            "scope": scope,
            "slice_start_ns": slice_ns and slice_ns[0],
            "slice_end_ns": slice_ns and slice_ns[1],
            "name": name,
            "labels": labels,
            "unit": unit,
            "statistic": our_word(word) if metric else word,
            "value": found,
            "n": n,
            "metric": metric,
            "definition": definition,
            "source": source,
        }
