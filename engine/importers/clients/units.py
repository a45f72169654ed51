"""Units that nobody knows: a time in one is left out of what is computed, and said."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.bundle import Check

TIMES = frozenset(["ttft", "ttfo", "tpot", "chunk_gap", "e2e", "dispatch_lag"])
"""Metrics of ours that are times."""
_NAMED = 4


@dataclass
class UnknownUnits:
    """Counts figures whose unit is no unit of time that is known, by figure and unit."""

    found: dict[tuple[str, str], int] = field(default_factory=dict)
    first: dict[tuple[str, str], str] = field(default_factory=dict)

    def take(self, name: str, unit: object, where: str) -> None:
        """Note a figure that is in ``unit`` in the row, or the summary, ``where``."""
        key = (name, f"{unit!s:.40}")
        self.found[key] = self.found.get(key, 0) + 1
        self.first.setdefault(key, where)

    def check(self) -> Check:
        """The check ``units_known``."""
        if not self.found:
            return Check("units_known", "pass", "every time is in a unit that is known")
        said = [
            f"{name} in {unit!r}, {count:,} time{'s' if count > 1 else ''}, first in {self.first[name, unit]}"
            for (name, unit), count in self.found.items()
        ]
        more = f"; and {len(said) - _NAMED} more" if len(said) > _NAMED else ""
        words = f"no unit of time, so that nothing is computed from them: {'; '.join(said[:_NAMED])}{more}"
        return Check("units_known", "fail", words)
