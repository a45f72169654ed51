"""Summaries of nested blocks of statistics, as several tools write them, read into rows of ``reported``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from engine.importers.clients.reproduce import reported_rows
from engine.intake.rows import number

Meaning = tuple[str | None, str | None, str | None]
"""(metric of ours, unit, definition of the tool)."""
GIVEN = "value"
"""The statistic of a figure that is one number."""
_DEEPEST = 8


def blocks(document: Any, depth: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and statistics of every figure in nested objects: {statistic: number}, or one number as ``value``."""
    if not isinstance(document, dict) or depth > _DEEPEST:
        return
    for name, value in document.items():
        if isinstance(value, dict):
            numbers = {word: inner for word, inner in value.items() if number(inner) is not None}
            if is_statistics(value):
                yield name, numbers
            else:
                yield from blocks(value, depth + 1)
        elif number(value) is not None:
            yield name, {GIVEN: value}


def is_statistics(block: Mapping[str, Any]) -> bool:
    """Whether an object holds the statistics of one figure."""
    return bool({"mean", "min", "max", "median", "p50", "avg"} & block.keys())


def figure_rows(
    document: Any,
    meanings: Mapping[str, Meaning],
    source: str,
    scope: str = "run",
    labels: str | None = None,
    n: int | None = None,
) -> Iterator[dict[str, Any]]:
    """Rows of ``reported`` of every figure in nested objects; ``n`` is how many requests statistics rest on."""
    for name, statistics in blocks(document):
        metric, unit, definition = meanings.get(name, (None, None, None))
        count = None if GIVEN in statistics else n
        yield from reported_rows(
            scope, name, statistics, source, unit=unit, metric=metric, definition=definition, labels=labels, n=count
        )
