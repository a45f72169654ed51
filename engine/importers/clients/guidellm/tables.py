"""GuideLLM's CSV: three head lines (group, name, statistic) and a row per benchmark."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from engine.errors import GapscopeError
from engine.importers.clients.guidellm.figures import block_rows
from engine.importers.clients.reproduce import reported_rows
from engine.importers.clients.values import count, dig, text
from engine.intake import InputFile
from engine.intake.rows import MAX_COLUMNS, lines, number

_HEAD = b"Run Info,"
# Group and the rest of its column's name ("Successful ms" without the outcome), and the figure of the JSON report.
_FIGURES = {
    ("Request Latency", "Sec"): "request_latency",
    ("Time to First Token", "ms"): "time_to_first_token_ms",
    ("Time to First Output Token", "ms"): "time_to_first_output_token_ms",
    ("Time per Output Token", "ms"): "time_per_output_token_ms",
    ("Inter Token Latency", "ms"): "inter_token_latency_ms",
    ("Server Throughput", "Requests/Sec"): "requests_per_second",
    ("Server Throughput", "Concurrency"): "request_concurrency",
    ("Token Metrics", "Input Tokens"): "prompt_token_count",
    ("Token Metrics", "Output Tokens"): "output_token_count",
    ("Token Metrics", "Total Tokens"): "total_token_count",
    ("Token Throughput", "Input Tokens/Sec"): "prompt_tokens_per_second",
    ("Token Throughput", "Output Tokens/Sec"): "output_tokens_per_second",
    ("Token Throughput", "Total Tokens/Sec"): "tokens_per_second",
}
_WORDS = {"Mean": "mean", "Median": "p50", "Std Dev": "std"}
_LIST = ("min", "p0.1", "p1", "p5", "p10", "p25", "p75", "p90", "p95", "p99", "max")
"""What a cell of percentiles lists: the median has a column of its own, and the ends are the extremes."""


@dataclass(frozen=True)
class CsvRow:
    """One benchmark: a cell by (group, name, statistic)."""

    cells: dict[tuple[str, str, str], str]

    def cell(self, group: str, name: str) -> str:
        """A cell without a statistic; empty where there is none."""
        return next((v for (g, n, _), v in self.cells.items() if (g, n) == (group, name)), "")

    def document(self, group: str, name: str) -> Any:
        """The JSON that a cell holds, None where it holds none."""
        try:
            return orjson.loads(self.cell(group, name))
        except orjson.JSONDecodeError:
            return None

    @property
    def version(self) -> str | None:
        """The tool's version."""
        return text(dig(self.document("Runtime Info", "Metadata"), "guidellm_version"))

    def count(self, outcome: str) -> int | None:
        """How many requests had this outcome (``Successful``)."""
        return count(_number(self.cell("Request Counts", outcome)))

    def rows(self, source: str) -> Iterator[dict[str, Any]]:
        """Rows of ``reported``."""
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for (group, name, statistic), cell in self.cells.items():
            outcome, _, rest = name.partition(" ")
            figure = _FIGURES.get((group, rest))
            if figure is None or not cell:
                continue
            words = found.setdefault((figure, outcome.lower()), {})
            if statistic == "Percentiles":
                listed = _list(cell)
                if len(listed) == len(_LIST):
                    words.update(zip(_LIST, listed, strict=True))
            elif statistic in _WORDS:
                words[_WORDS[statistic]] = _number(cell)
        for (figure, outcome), words in found.items():
            yield from block_rows(figure, outcome, words, None, source)
        for outcome in ("Successful", "Incomplete", "Errored", "Total"):
            value = {"value": self.count(outcome)}
            yield from reported_rows("run", "request_totals", value, source, labels=outcome.lower())


def is_csv(file: InputFile) -> bool:
    """Whether a file is a table of benchmarks."""
    head = file.head.split(b"\n", 3)
    return len(head) > 2 and head[0].startswith(_HEAD) and b"Benchmark" in head[0] and b"Run ID" in head[1]


def read_csv(file: InputFile) -> list[CsvRow]:
    """The benchmarks of a table.

    Raises:
        GapscopeError: the head lines are of different lengths, or a row is.
    """
    try:
        table = [cells for cells in csv.reader(_text_lines(file)) if cells]
    except csv.Error as error:
        raise GapscopeError(f"{file.name} is no CSV ({error}): expected three head lines and a row a run.") from None
    if len(table) < 4:
        raise GapscopeError(f"{file.name} has {len(table)} lines: expected three head lines and a row a benchmark.")
    heads = table[:3]
    width = len(heads[0])
    if width > MAX_COLUMNS:
        raise GapscopeError(f"{file.name} has {width:,} columns, {MAX_COLUMNS:,} at most: is it the right file?")
    for number_, cells in enumerate(table, 1):
        if len(cells) != width:
            raise GapscopeError(f"{file.name} line {number_} has {len(cells)} cells where the first has {width}.")
    names = list(zip(*heads, strict=True))
    return [CsvRow(dict(zip(names, cells, strict=True))) for cells in table[3:]]


def _text_lines(file: InputFile) -> Iterator[str]:
    for number_, data, broken in lines(file):
        if broken:
            raise GapscopeError(f"{file.name} line {number_}: {broken}. Get the whole file.")
        yield data.decode("utf-8", "replace").replace("\x00", "") + "\n"


def _number(cell: str) -> float | None:
    try:
        return number(float(cell))
    except ValueError:
        return None


def _list(cell: str) -> list[Any]:
    try:
        found = orjson.loads(cell)
    except orjson.JSONDecodeError:
        return []
    return found if isinstance(found, list) else []
