"""Statistics by time slice: each holds the requests that started in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.importers.clients.aiperf.summary import Block, block_rows, blocks_of
from engine.importers.clients.aiperf.tags import tag_of_head
from engine.importers.clients.aiperf.values import count, dig, mapping
from engine.intake import BadRows, InputFile, csv_rows, json_document
from engine.intake.rows import number


@dataclass
class Slices:
    """The slices as rows of ``reported``, and what they add up to."""

    rows: list[dict[str, Any]]
    slices: int = 0
    requests: float = 0.0
    output_tokens: float = 0.0
    first_start_ns: int | None = None


def read_slices(file: InputFile) -> Slices:
    """The JSON file of slices."""
    found = Slices([])
    entries = dig(json_document(file), "timeslices")
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        entry = mapping(entry)
        span = _span(entry.get("start_ns"), entry.get("end_ns"))
        blocks = blocks_of(entry)
        _sum(found, span, blocks)
        label = None if span else f"slice {entry.get('timeslice_index', index)}"
        if entry.get("is_complete") is False:
            label = "cut short"
        found.rows += block_rows(blocks, file.name, "slice", label, span)
    return found


def read_slices_csv(file: InputFile, bad: BadRows) -> Slices:
    """The CSV file of slices, a figure a line."""
    found = Slices([])
    by_slice: dict[tuple[str, tuple[int, int] | None], dict[str, Block]] = {}
    for line, cells in csv_rows(file, bad):
        try:
            value = number(float(cells.get("Value", "")))
        except ValueError:
            bad.add(f"{file.name} line {line}", "Value is no number")
            continue
        if value is None:
            continue
        span = _span(_int(cells.get("Start_NS")), _int(cells.get("End_NS")))
        tag, unit = tag_of_head(cells.get("Metric", ""))
        blocks = by_slice.setdefault((cells.get("Timeslice", ""), span), {})
        block = blocks.setdefault(tag, Block(cells.get("Unit") or unit, {}))
        block.statistics[cells.get("Stat", "avg")] = value
    for (name, span), blocks in by_slice.items():
        _sum(found, span, blocks)
        found.rows += block_rows(blocks, file.name, "slice", None if span else f"slice {name}", span)
    return found


def _sum(found: Slices, span: tuple[int, int] | None, blocks: dict[str, Block]) -> None:
    found.slices += 1
    if span and (found.first_start_ns is None or span[0] < found.first_start_ns):
        found.first_start_ns = span[0]
    found.requests += _stated(blocks, "request_count", "avg")
    found.output_tokens += _stated(blocks, "output_sequence_length", "sum")


def _stated(blocks: dict[str, Block], tag: str, word: str) -> float:
    block = blocks.get(tag)
    return block.statistics.get(word, 0.0) if block else 0.0


def _span(start: Any, end: Any) -> tuple[int, int] | None:
    first, last = count(start), count(end)
    return None if first is None or last is None else (first, last)


def _int(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() else None
