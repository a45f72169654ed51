"""Cells and tables as text: values in the unit and decimals of their kind, columns aligned or in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

NOTHING = "–"

_SHOWN: dict[str, tuple[str, float, int]] = {
    "ms": ("ms", 1, 2),
    "1/s": ("1/s", 1, 3),
    "tok/s": ("tok/s", 1, 1),
    "share": ("%", 100, 2),
    "count": ("count", 1, 0),
    "requests": ("requests", 1, 2),
    "tokens": ("tokens", 1, 1),
}
"""Of each unit: what the column says, the factor, the decimals."""


def shown_unit(unit: str) -> str:
    """The unit as a table names it."""
    return _SHOWN[unit][0]


def shown_value(value: float | None, unit: str) -> str:
    """A value in fixed decimals, without its unit."""
    _, factor, decimals = _SHOWN[unit]
    return NOTHING if value is None else f"{value * factor:,.{decimals}f}"


_LEFT = {
    "metric",
    "name",
    "check",
    "detail",
    "file",
    "sha256",
    "what",
    "value",
    "taken from the measurement",
    "statistic",
    "unit",
    "state",
    "phase",
    "gate",
    "verdict",
    "reason",
    "run",
    "kind",
    "side",
    "part",
    "tool",
    "id",
    "page",
    "note",
    "saved",
    "link",
    "definition",
    "rule",
    "source",
    "rate",
    "beside the first run",
    "the tool's words",
    "the gap",
    "front",
    "contract",
    "why",
}


def grid(head: Sequence[str], rows: Sequence[Sequence[str]], markdown: bool = False) -> str:
    """Aligned columns, or a Markdown table; text to the left, numbers to the right."""
    left = [name in _LEFT for name in head]
    if markdown:
        lines = ["| " + " | ".join(head) + " |", "|" + "|".join("---" if side else "---:" for side in left) + "|"]
        return "\n".join(lines + ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows])
    widths = [max(len(line[i]) for line in (head, *rows)) for i in range(len(head))]
    lines = []
    for line in (head, tuple("-" * width for width in widths), *rows):
        parts = [
            cell.ljust(width) if side else cell.rjust(width)
            for cell, width, side in zip(line, widths, left, strict=True)
        ]
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def section(mark: str, name: str, lines: Sequence[str]) -> str:
    """Lines under their name; ``mark`` is that of a Markdown heading, or empty."""
    return "\n".join([f"{mark}{name}", *([""] if mark else []), *lines])
