"""Stores of made-up runs, and the dashboard without a browser."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
from streamlit.testing.v1 import AppTest

sys.path.insert(0, str(Path(__file__).parent))

import synthetic

from dashboard.charts import draw
from dashboard.charts.panel.checked import Checked

PAGES = Path(__file__).resolve().parents[2] / "dashboard" / "pages"
ENTRY = Path(__file__).parent / "entry.py"
"""The entry point without a folder called pages beside it, as that makes AppTest run pages without the entry point."""
Open = Callable[..., AppTest]


@pytest.fixture(scope="session")
def paired(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A measured run, its repeat, a replay, one of other hardware, one with requests only, one that failed."""
    store = tmp_path_factory.mktemp("paired")
    synthetic.write(store, "replay", "cold", speed=1.1, start=0)
    synthetic.pair(store)
    synthetic.write(store, "measured", "ample8_repeat", speed=1.02)
    synthetic.write(store, "replay", "other-part", speed=0.8, hardware__part="H200")
    synthetic.write(store, "measured", "thin", tables=("requests",))
    synthetic.write(store, "measured", "broken", speed=1.5, failed=True)
    (store / "traces").mkdir()
    (store / "traces" / "trace-50853bd0473a.parquet").touch()  # what they played, told by its name
    return store


@pytest.fixture(autouse=True)
def _figures_pass_the_checks_of_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every figure that a page draws is looked at by plotly as well, property by property."""

    def checked(figure: dict[str, Any]) -> Checked:
        go.Figure(figure)
        return Checked(figure)

    monkeypatch.setattr(draw, "Checked", checked)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Open:
    """Open a page on a store, as a link would."""

    def open_(store: Path, page: str = "verdict", **query: str | list[str]) -> AppTest:
        monkeypatch.setenv("GAPSCOPE_STORE", str(store))
        app = AppTest.from_file(str(ENTRY), default_timeout=60)
        for name, value in query.items():
            app.query_params[name] = value
        app.run()
        if page != "verdict":
            app.switch_page(str(PAGES / f"{page}.py")).run()
        return app

    return open_


def run_id(store: Path, slug: str) -> str:
    """The run of a name."""
    (found,) = [path.name for path in store.iterdir() if path.name.rpartition("-")[0] == slug]
    return found
