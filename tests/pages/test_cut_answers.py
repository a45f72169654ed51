"""No question is without a limit, and a page says where an answer reached its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import Open

from dashboard import view
from dashboard.charts.answer import Answer
from dashboard.store import Result, Store

FEW = 5


@pytest.mark.parametrize("page", [name for name in view.PAGES if name not in ("runs", "ledger", "report")])
def test_every_cut_answer_that_a_page_draws_says_so(
    opened: Open, paired: Path, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    """With a limit of a few rows in place of the usual one, whatever has more is cut and stands with a sentence."""
    ask, drawn = Store.query, []

    def few(self: Store, name: str, *parts: Any, row_cap: int | None = FEW, **words: Any) -> Result:
        return ask(self, name, *parts, row_cap=None if row_cap is None else min(row_cap, FEW), **words)

    def noted(self: Answer, *values: Any, **words: Any) -> None:
        begin(self, *values, **words)
        if self.truncated:
            drawn.append(self)

    begin = Answer.__init__
    monkeypatch.setattr(Store, "query", few)
    monkeypatch.setattr(Answer, "__init__", noted)
    app = opened(paired, page)
    assert not app.exception
    said = [warning.value for warning in app.warning if "was cut at" in warning.value]
    assert bool(said) == bool(drawn), f"{len(drawn)} answers were cut, and {len(said)} say so"
