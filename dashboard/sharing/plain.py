"""Text of runs inside Markdown that is copied elsewhere: as it stands, never markup and never a link."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from dashboard.charts.answer import Column

_MARKUP = re.compile(r"[\\`*_\[\]<>|~&$]")
_LINKED = re.compile(r"(?<=:)(?=//)|(?<=www)(?=[.])|(?=@)|(?<=#)(?=\d)|(?<=:)(?=[a-z0-9_+-]+:)", re.IGNORECASE)
"""Where GitHub makes a link, a mention, a reference or a picture out of plain words."""
_JOINER = "\u2060"


def literal(text: str) -> str:
    """Text on one line that Markdown shows as it is, wherever in a line it stands but at its beginning.

    Only what can become markup inside a line is escaped, so that the source reads well, too. A word joiner, which
    nobody sees, breaks addresses and mentions: those are linked even where they are escaped.
    """
    return _MARKUP.sub(r"\\\g<0>", _LINKED.sub(_JOINER, " ".join(text.split())))


def shown(value: Any, column: Column) -> str:
    """A cell as text: a dash where it is unknown or no number."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if column.format == "percent":
        return f"{100 * value:.1f} %"
    return column.format.replace("d", ".0f") % value if column.format else str(value)


def markdown_table(rows: pa.Table, columns: Sequence[Column] = ()) -> str:
    """The rows as a table of GitHub's Markdown; what a run says in them is no markup."""
    columns = columns or [Column(name, name) for name in rows.column_names]
    return grid(
        [column.label for column in columns],
        [[shown(row.get(column.name), column) for column in columns] for row in rows.to_pylist()],
        [bool(column.format) for column in columns],
    )


def grid(head: Sequence[str], body: Sequence[Sequence[str]], right: Sequence[bool]) -> str:
    """A table of plain text cells; ``right`` says which columns hold numbers."""
    rule = "|" + "|".join("---:" if numbers else "---" for numbers in right) + "|"
    lines = ["| " + " | ".join(literal(cell) or " " for cell in line) + " |" for line in (head, *body)]
    return "\n".join([lines[0], rule, *lines[1:]])
