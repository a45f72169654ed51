"""What is asked of every imported run, whoever wrote it."""

from __future__ import annotations

from collections.abc import Sequence

from engine.bundle import Check, Phase, Spool
from engine.intake import BadRows


def standard_checks(requests: Spool | None, phases: Sequence[Phase], origin_ns: int, bad: BadRows) -> list[Check]:
    """The checks that need no more than the request rows."""
    return [Check("rows_used", "fail" if bad.count else "pass", bad.words)]
