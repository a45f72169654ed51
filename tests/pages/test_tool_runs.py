"""Every page with runs of load generators that lack what a recording has: no exception, and it is said."""

from __future__ import annotations

from pathlib import Path

import pytest
import synthetic
import tool_runs
from conftest import Open, run_id
from test_pages import words

from dashboard.view import PAGES


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("tools")
    synthetic.pair(store)
    for write in tool_runs.RUNS.values():
        write(store)
    return store


@pytest.mark.parametrize("slug", tool_runs.RUNS)
@pytest.mark.parametrize("page", PAGES)
def test_measured_by_a_tool(opened: Open, tools: Path, page: str, slug: str) -> None:
    app = opened(tools, page, m=run_id(tools, slug), r=run_id(tools, "ample8-replay"), ack="true")
    assert not app.exception
    assert not app.error
    assert len(words(app)) > 100
