"""What AIPerf's summary is made of, gathered from the records by AIPerf's own rules."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from engine.importers.clients.aiperf.column import Column
from engine.importers.clients.aiperf.records import Record
from engine.importers.clients.aiperf.tags import SMALL, beyond, in_ms
from engine.importers.clients.aiperf.values import count
from engine.importers.clients.reproduce import Figure, our_word, statistic
from engine.intake.rows import number

_ADJUSTED = {
    "adj_request_latency": "request_latency",
    "adj_time_to_first_token": "time_to_first_token",
    "adj_inter_token_latency": "inter_token_latency",
    "adj_decode_duration": "decode_duration",
}
_SUMS = {"total_isl": "input_sequence_length", "total_osl": "output_sequence_length"}
_TOTALS = {
    "total_output_tokens": "output_token_count",
    "total_reasoning_tokens": "reasoning_token_count",
    "total_error_isl": "error_isl",
    **_SUMS,
}
_COUNTS = ("good_request_count",)
"""Tags whose summary is the sum over requests."""


def wanted_for(stated: Collection[str]) -> set[str]:
    """Tags of records that the figures ``stated`` by a summary are made of."""
    if not stated:
        return set()
    sums = {name.removeprefix("total_") for name in stated if name.startswith("total_usage_")}
    return {*stated, *_ADJUSTED.values(), *_TOTALS.values(), *_COUNTS, *sums}


class Moments:
    """Count, sum, least, largest and spread of values that are not kept."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self._mean = 0.0
        self._squares = 0.0
        self._least = math.inf
        self._largest = -math.inf

    def add(self, values: Any) -> None:
        """Take a list of numbers."""
        data = np.asarray(values, np.float64)
        n = len(data)
        if not n:
            return
        mean = float(data.mean())
        delta, together = mean - self._mean, self.count + n
        self._squares += float(((data - mean) ** 2).sum()) + delta * delta * self.count * n / together
        self._mean += delta * n / together
        self.count = together
        self.total += float(data.sum())
        self._least, self._largest = min(self._least, float(data.min())), max(self._largest, float(data.max()))

    def figures(self, name: str, stated: dict[str, float]) -> Iterator[Figure]:
        """The statistics that can be told, beside those of ``stated``; percentiles cannot."""
        if not self.count:
            return
        known = {
            "count": float(self.count),
            "sum": self.total,
            "mean": self._mean,
            "min": self._least,
            "max": self._largest,
            "std": math.sqrt(self._squares / self.count),
        }
        for word, value in stated.items():
            if our_word(word) in known:
                yield Figure(name, word, value, known[our_word(word)])


class Tally:
    """Values of the requests of one phase. Times are milliseconds, whatever the unit in the record.

    Only figures among ``wanted`` are kept, and those on disk, in ``folder``.
    """

    def __init__(self, folder: Path, phase: str, wanted: Collection[str]) -> None:
        self.gaps = Moments()
        self.valid = 0
        self.errors = 0
        self.canceled = 0
        self.skipped = 0
        self.silent = 0
        """Records that say neither what the answer was nor that there was none."""
        self.first_start_ns: int | None = None
        self.last_end_ns: int | None = None
        """Latest start plus latency."""
        names = enumerate(sorted(wanted))
        self._columns = {tag: Column(folder / f"{phase}.{number}") for number, tag in names}

    @property
    def values(self) -> dict[str, Column]:
        """The figures that some record has."""
        return {tag: column for tag, column in self._columns.items() if len(column)}

    @property
    def rows(self) -> int:
        """Records of the phase."""
        return self.valid + self.errors + self.skipped + self.silent

    def add(self, record: Record, answered: bool) -> None:
        """Take a record: valid ones with every figure, failed ones with the length of their prompt.

        ``answered`` is whether anything tells of an answer, the record's response included.
        """
        if record.skipped:
            self.skipped += 1
            return
        if record.silent and not answered:
            self.silent += 1
            return
        if self._columns:
            self._between(record)
        if record.error is not None:
            self.errors += 1
            self.canceled += record.canceled
            self._keep("error_isl", number(record.value("error_isl")))
            return
        self.valid += 1
        columns = self._columns
        for tag, entry in record.metrics.items():
            column = columns.get(tag)
            if column is not None:
                value, unit = (entry.get("value"), entry.get("unit")) if type(entry) is dict else (entry, None)
                found = number(value)
                if found is not None and (abs(found) < SMALL or not beyond(found, unit)):
                    column.append(found if unit == "ms" else in_ms(found, unit))
        if "inter_chunk_latency" in columns and record.gaps_ms is not None:
            self.gaps.add(record.gaps_ms[np.isfinite(record.gaps_ms)])
        start, latency = record.start_ns, record.duration_ns("request_latency")
        if start is not None and latency is not None:
            self.first_start_ns = start if self.first_start_ns is None else min(start, self.first_start_ns)
            self.last_end_ns = max(start + latency, self.last_end_ns or 0)

    def _keep(self, tag: str, value: float | None) -> None:
        if value is not None and tag in self._columns:
            self._columns[tag].append(value)

    def _between(self, record: Record) -> None:
        start, credit = record.start_ns, count(record.metadata.get("credit_issued_ns"))
        end = count(record.metadata.get("request_end_ns"))
        for tag, left, right in (("credit_to_start_latency", credit, start), ("effective_latency", credit, end)):
            if left is not None and right is not None:
                # AIPerf subtracts times as floats, which at this size step by 256 ns.
                self._keep(tag, (float(right) - float(left)) / 1e6)

    def total(self, tag: str) -> float | None:
        """Sum over the valid requests that have the tag; None where none has it."""
        found = self.values.get(tag)
        return statistic(np.asarray(found), "sum") if found else None

    @property
    def span_s(self) -> float | None:
        """First start to last content over the valid requests, in seconds."""
        if self.first_start_ns is None or self.last_end_ns is None:
            return None
        return (self.last_end_ns - self.first_start_ns) / 1e9

    def series(self) -> dict[str, Any]:
        """Values by tag, the derived tags of the summary included."""
        found: dict[str, Any] = {tag: values for tag, values in self.values.items() if tag not in _COUNTS}
        for name, value in self._scalars():
            if value is not None:
                found[name] = [value]
        return found

    def adjusted(self) -> dict[str, Any]:
        """Values of the error-adjusted tags: a failed request counts as one that never came."""
        failed = np.full(self.errors, np.inf)
        found = {name: self.values[tag] for name, tag in _ADJUSTED.items() if tag in self.values}
        return {name: np.concatenate([np.asarray(values), failed]) for name, values in found.items()}

    def _scalars(self) -> Iterator[tuple[str, float | None]]:
        attempted = self.valid + self.errors
        yield "request_count", float(self.valid)
        yield "error_request_count", float(self.errors)
        yield "completed_request_count", float(attempted)
        yield "context_overflow_count", float(self.skipped)
        yield "request_error_rate", 100 * self.errors / attempted if attempted else None
        for name, tag in _TOTALS.items():
            yield name, self.total(tag)
        for tag in self.values:
            if tag.startswith("usage_"):
                yield f"total_{tag}", self.total(tag)
        for tag in _COUNTS:
            yield tag, self.total(tag)
        cached, prompt = self.total("usage_prompt_cache_read_tokens"), self.total("usage_prompt_tokens")
        if cached is not None and prompt:
            yield "overall_usage_prompt_cache_read_pct", 100 * cached / prompt
        good = self.total("good_request_count")
        yield "good_request_fraction", good / attempted if good is not None and attempted else None
