"""AIPerf's summary, JSON of every schema and CSV, in one shape."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from engine.errors import GapscopeError
from engine.importers.clients.aiperf.tags import METRICS, tag_of, tag_of_head
from engine.importers.clients.aiperf.values import count, dig, mapping, text
from engine.importers.clients.reproduce import reported_rows
from engine.intake import InputFile, json_document
from engine.intake.rows import lines, number

CSV_DECIMALS = 2
_NOT_STATISTICS = ("unit", "tag", "header", "count")


@dataclass(frozen=True)
class Block:
    """The statistics of one tag in the tool's words; ``n`` is how many values they rest on."""

    unit: str | None
    statistics: dict[str, float]
    n: int | None = None


@dataclass
class Summary:
    """A summary; what the file does not say is empty or None."""

    file: InputFile
    document: dict[str, Any] = field(default_factory=dict)
    blocks: dict[str, Block] = field(default_factory=dict)
    warmup: dict[str, Block] = field(default_factory=dict)
    decimals: int | None = None

    @property
    def version(self) -> str | None:
        """The tool's version."""
        return text(self.document.get("aiperf_version"))

    @property
    def schema(self) -> str | None:
        """Version of the summary's own schema."""
        return text(self.document.get("schema_version"))

    @property
    def config(self) -> dict[str, Any]:
        """The configuration as the tool resolved it."""
        return mapping(self.document.get("input_config"))

    def stated(self, tag: str, statistic: str = "avg") -> float | None:
        """One figure, None where it is not stated."""
        block = self.blocks.get(tag)
        return None if block is None else block.statistics.get(statistic)

    def rows(self, labels: str | None = None, scope: str = "run") -> Iterator[dict[str, Any]]:
        """Rows of ``reported``: the run and, apart, the warm-up and the GPUs."""
        yield from block_rows(self.blocks, self.file.name, scope, labels)
        yield from block_rows(self.warmup, self.file.name, "warmup", labels)
        endpoints = mapping(dig(self.document, "telemetry_data", "endpoints"))
        for endpoint in endpoints.values():
            for gpu in mapping(dig(endpoint, "gpus")).values():
                name = " ".join(filter(None, (text(dig(gpu, "gpu_name")), text(dig(gpu, "gpu_index")))))
                blocks = blocks_of(mapping(dig(gpu, "metrics")))
                yield from block_rows(blocks, self.file.name, "gpu", name or None)


def block_rows(
    blocks: dict[str, Block],
    source: str,
    scope: str,
    labels: str | None = None,
    slice_ns: tuple[int, int] | None = None,
) -> Iterator[dict[str, Any]]:
    """Rows of ``reported`` of all tags."""
    for tag, block in blocks.items():
        metric, definition = METRICS.get(tag, (None, None))
        yield from reported_rows(
            scope,
            tag,
            block.statistics,
            source,
            unit=block.unit,
            metric=metric,
            definition=definition,
            labels=labels,
            n=block.n,
            slice_ns=slice_ns,
        )


def blocks_of(document: dict[str, Any]) -> dict[str, Block]:
    """Every tag of a document: the keys that hold an object with a unit and numbers."""
    found = {}
    for tag, value in document.items():
        if not isinstance(value, dict) or not ("unit" in value or "avg" in value):
            continue
        statistics = {
            word: told
            for word, item in value.items()
            if word not in _NOT_STATISTICS and (told := number(item)) is not None
        }
        found[tag_of(tag)] = Block(text(value.get("unit")), statistics, count(value.get("count")))
    return found


def read_summary(file: InputFile) -> Summary:
    """A JSON summary of any version.

    Raises:
        GapscopeError: it is no JSON, or no object.
    """
    document = json_document(file)
    if not isinstance(document, dict):
        raise GapscopeError(f"{file.name} holds no object: expected a summary of AIPerf.")
    tags = {**mapping(document.get("records")), **document}
    return Summary(file, document, blocks_of(tags), blocks_of(mapping(document.get("warmup_metrics"))))


def read_summary_csv(file: InputFile) -> Summary:
    """A CSV summary: a table of statistics and a table of single values; it says nothing about the run itself."""
    summary = Summary(file, decimals=CSV_DECIMALS)
    heads: list[str] = []
    for cells in csv_cells(file):
        if not cells:
            continue
        if cells[0] in ("Metric", "Endpoint"):
            heads = [cell.strip() for cell in cells]
        elif heads and heads[0] == "Metric":
            tag, unit = tag_of_head(cells[0])
            numbers = {
                ("avg" if head == "Value" else head): _cell(cell)
                for head, cell in zip(heads[1:], cells[1:], strict=False)
            }
            statistics = {head: value for head, value in numbers.items() if value is not None}
            summary.blocks[tag] = Block(unit, statistics)
    if not summary.blocks:
        raise GapscopeError(f"{file.name} holds no figure: expected the CSV summary of AIPerf.")
    return summary


def csv_cells(file: InputFile) -> Iterator[list[str]]:
    """The cells of each line of a CSV file whose sections have heads of their own; comments are left out.

    Raises:
        GapscopeError: it is no CSV.
    """
    try:
        yield from csv.reader(line for line in text_lines(file) if not line.startswith("#"))
    except csv.Error as error:
        raise GapscopeError(f"{file.name} is no CSV ({error}): get the file again.") from None


def text_lines(file: InputFile) -> Iterator[str]:
    """The lines of a text file without their ends, up to where it breaks off."""
    for _, line, broken in lines(file):
        if broken:
            return
        yield line.decode("utf-8", "replace").rstrip("\r").replace("\x00", "").replace("\r", " ")


def _cell(cell: str) -> float | None:
    try:
        return number(float(cell.replace(",", "")))
    except ValueError:
        return None
