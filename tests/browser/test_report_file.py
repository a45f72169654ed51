"""A report opens from disk without a network: charts are drawn in both themes, and nothing goes wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dashboard.cli import main
from engine.stores import PROJECT


@pytest.fixture(scope="module")
def report(installed: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("file") / "review.html"
    samples = str(PROJECT / "sample_runs")
    assert main(["report", "ample8", "ample8-predicted", "--store", samples, "--out", str(file)]) == 0
    return file


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_draws_every_chart_offline(report: Path, browser: Any, scheme: str) -> None:
    context = browser.new_context(color_scheme=scheme, offline=True, viewport={"width": 1280, "height": 720})
    page = context.new_page()
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith("file:") else wrong.append(request.url))
    page.goto(report.as_uri())
    charts = page.locator(".chart")
    page.wait_for_function(
        "() => [...document.querySelectorAll('.chart')].every(box => box.querySelector('.main-svg'))"
    )
    assert charts.count() > 10
    curve = page.locator("#percentiles-curve-ttft path.js-line").first.get_attribute("style") or ""
    assert ("rgb(0, 114, 178)" if scheme == "light" else "rgb(86, 180, 233)") in curve  # the blue of the measured run
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the report"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.url.endswith("#verdict")
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    assert wrong == []
    context.close()
