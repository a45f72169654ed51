"""An acceptance contract as text and as rows: number, bound and population of each gate."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dashboard.compare.gates import Gate
from dashboard.metrics import HEADLINE_STATISTICS, MEASURES, METRICS, PHASES, SUBSETS

NUMBERS = tuple(
    [f"{name}.{statistic}" for name in METRICS for statistic in HEADLINE_STATISTICS]
    + [f"{name}.{statistic}" for name, measure in MEASURES.items() for statistic in measure.statistics]
)
"""Numbers that a gate is offered for; the text takes every other statistic as well."""
POPULATIONS = (
    "",
    *(f"{phase}{'' if subset == 'complete' else '.' + subset}" for phase in PHASES for subset in SUBSETS),
)
"""Populations by name; the empty one is the headline."""
FIRST = "ttft.mean"
FIRST_BOUND = "<=10%"
_ROW = re.compile(r"(?P<number>[^@<=]*)(?:@(?P<population>[^<=]*))?(?P<bound>[<=].*)?")


@dataclass(frozen=True)
class Row:
    """One gate as it is edited; it need not be right yet."""

    number: str
    bound: str
    population: str = ""

    @property
    def text(self) -> str:
        """The gate as text, without blanks."""
        where = f"@{self.population}" if self.population else ""
        return "".join(f"{self.number}{where}{self.bound}".split())


def rows(text: str) -> list[Row]:
    """The rows of a contract, whatever is wrong with them."""
    found = []
    for part in parts(text):
        match = _ROW.fullmatch(part)
        assert match is not None  # every part of the pattern may be empty
        found.append(Row(match["number"], match["bound"] or "", match["population"] or ""))
    return found


def parts(text: str) -> list[str]:
    """The gates of a contract as texts: separated by spaces or semicolons."""
    return text.replace(";", " ").split()


def text_of(edited: Sequence[Row]) -> str:
    """The contract of these rows."""
    return " ".join(row.text for row in edited if row.text)


def parse_gates(text: str) -> list[Gate]:
    """The gates of a contract.

    Raises:
        GapscopeError: one of them is none.
    """
    return [Gate.parse(part) for part in parts(text)]
