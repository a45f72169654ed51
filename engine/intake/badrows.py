"""Rows that cannot be used: refused, or left out, counted and named."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.errors import GapscopeError

NAMED = 5
"""How many of them are named; all are counted."""


@dataclass
class BadRows:
    """Collects rows that cannot be used. Without ``skip`` the first of them is refused."""

    skip: bool = False
    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, where: str, reason: str, rows: int = 1) -> None:
        """Leave out the row at ``where`` ("requests.jsonl line 7"), or several rows that cannot be told apart.

        Raises:
            GapscopeError: bad rows are not to be skipped.
        """
        if not self.skip:
            raise GapscopeError(
                f"{where}: {reason}. Repair the file, or import with --skip-bad-rows, which leaves such rows out and "
                "counts them."
            )
        self.count += rows
        if len(self.examples) < NAMED:
            self.examples.append(f"{where}: {reason}")

    @property
    def words(self) -> str:
        """How many were left out, and the first of them."""
        if not self.count:
            return "every row was used"
        more = "; and more" if self.count > len(self.examples) else ""
        return f"{self.count} rows left out: {'; '.join(self.examples)}{more}"
