"""What a reviewer does, in a real browser: look behind a chart, run a what-if, import a file, climb a ladder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from driving import chosen, go, opened, query, settle, turn_to

from dashboard.view import View
from engine.stores import PROJECT

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def page(browser: Any, server: str) -> Iterator[Any]:
    with opened(browser, server, accept_downloads=True) as found:
        yield found


def test_a_chart_answers_with_rows_sql_and_markdown(page: Any, server: str, pair: tuple[str, str]) -> None:
    go(page, f"{server}/passes")
    page.locator(".st-key-rows-classes button:visible").click()
    panel = page.locator("[data-testid=stPopoverBody]")
    panel.get_by_role("tab", name="Table").wait_for()
    with page.expect_download() as download:
        panel.get_by_role("button", name="CSV", exact=True).click()
    text = Path(download.value.path()).read_text()
    assert text.splitlines()[0].startswith('"Side","run","Class"')
    assert {line.split(",")[0] for line in text.splitlines()[1:]} == {'"measured"', '"replay"'}
    panel.get_by_role("tab", name="SQL").click()
    assert "GROUP BY class" in panel.inner_text()
    panel.get_by_role("tab", name="Markdown").click()
    assert "| Side | Class |" in panel.inner_text()
    assert pair[0] in panel.inner_text()
    page.keyboard.press("Escape")


def test_a_click_on_a_cell_shows_its_passes(page: Any, server: str, pair: tuple[str, str]) -> None:
    go(page, f"{server}/passes?cls=decode+only")
    marks = page.locator(".st-key-plot-geometry .scatterlayer .point")
    mark = marks.nth(marks.count() // 2)
    mark.scroll_into_view_if_needed()
    box = mark.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.move(x + 1, y)
    page.mouse.click(x + 1, y)
    page.wait_for_url("**cell=**")
    settle(page)
    assert page.locator(".st-key-chart-cell").count() == 1
    rows = page.locator(".st-key-chart-cell [data-testid=stDataFrame]")
    rows.scroll_into_view_if_needed()
    box = rows.bounding_box()
    page.mouse.click(box["x"] + 15, box["y"] + 54)  # the first row's box
    link = page.get_by_test_id("stPageLink").locator("a[href*=request]").first
    turn = link.inner_text().split()[-1]
    link.click()
    page.wait_for_url("**/request?**")
    settle(page)
    assert chosen(page, "turn") == turn
    assert query(page)["turn"] == [turn]


def test_a_what_if_survives_a_reload_and_joins_the_pair(page: Any, server: str, pair: tuple[str, str]) -> None:
    go(page, f"{server}/what_if?m={pair[0]}&r={pair[1]}&base={pair[1]}&k_kv_blocks=2048&k_lanes=6")
    bar = page.locator(".st-key-run-bar")
    assert "lanes 8 → 6" in bar.inner_text()
    page.get_by_role("button", name="Run the replay").click()
    page.wait_for_url("**job=**")
    page.reload()
    page.locator(".st-key-r").get_by_text(re.compile("ample8.*what-if-")).wait_for()
    settle(page)
    # The bar, not the address: of a job that was over before the reload Streamlit does not write it there.
    joined = page.locator(".st-key-r").inner_text()
    assert pair[1] in joined
    assert "what-if-" in joined
    titles = page.locator("body").inner_text()
    assert "with lanes=6, kv_blocks=2048" in titles


def test_a_file_is_looked_at_then_imported_and_leads_to_its_run(page: Any, server: str) -> None:
    go(page, f"{server}/runs")
    client = PROJECT / "tests" / "data" / "aiperf" / "cancellation"
    page.locator(".st-key-upload input[type=file]").set_input_files([str(one) for one in sorted(client.iterdir())])
    page.get_by_role("button", name="Look", exact=True).first.click()
    plan = page.locator(".st-key-plan")
    plan.get_by_text("1 run would be made; nothing is written yet.").wait_for()
    assert "AIPerf 0.13.0" in plan.inner_text()
    page.get_by_role("button", name="Import", exact=True).first.click()
    # The link beside the result: until it is drawn, the only one of that name is the sidebar's.
    link = page.locator("[data-testid=stMain]").get_by_role("link", name="Cross-tool").last
    page.get_by_text(re.compile("done · import of")).wait_for()
    link.click()
    page.get_by_text("What became of the requests, by outcome class").wait_for()
    settle(page)
    (made,) = query(page)["tools"]
    # 103 requests, 21 of them cancelled by the client, 6 answered without content.
    words = page.locator(".st-key-chart-outcomes").inner_text()
    assert made in words
    assert "n 103" in words


def test_a_ladder_is_built_survives_a_reload_and_names_a_layer(page: Any, server: str, pair: tuple[str, str]) -> None:
    go(page, f"{server}/ladder?m={pair[0]}&r={pair[1]}")
    page.get_by_role("button", name="Build the ladder").click()
    page.locator("[class*=st-key-job-]").wait_for()
    page.reload()
    page.get_by_role("button", name="Add rung 5").wait_for()
    settle(page)
    assert "The largest part of the TTFT mean gap is the " in page.locator("body").inner_text()
    mark = page.locator(".st-key-plot-heat .scatterlayer .point").nth(7 * 8 + 3)  # E2E mean, of seven columns
    mark.scroll_into_view_if_needed()
    box = mark.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.click(box["x"] + box["width"] / 2 + 1, box["y"] + box["height"] / 2)
    page.wait_for_url("**ladder_number=E2E+mean**")
    page.get_by_role("button", name="Add rung 4").click()
    page.wait_for_url("**-rung4-**")
    assert query(page)["r"][0] == pair[1]


def test_a_view_becomes_evidence_and_one_click_restores_it(page: Any, server: str, pair: tuple[str, str]) -> None:
    go(page, View("percentiles", {"m": pair[0], "r": [pair[1]], "metric": "tpot", "curve": "tail"}).link(server))
    turn_to(page, "ledger")
    page.get_by_role("button", name="New hypothesis").click()
    page.get_by_label("Statement").fill("Decode passes are priced too low")
    page.get_by_role("button", name="Open it").click()
    page.get_by_text("needs a prediction that could fail").wait_for()
    page.get_by_label("Prediction that could fail").fill("The TPOT gap closes with measured durations")
    page.get_by_role("button", name="Open it").click()
    card = page.locator("[class*=st-key-hypothesis-]").filter(has_text="Decode passes are priced too low")
    card.get_by_role("button", name="Add evidence").click()
    page.get_by_label("What it shows").fill("the tail is low")
    page.get_by_role("button", name="Use this view as evidence").click()
    page.get_by_text("the tail is low").first.wait_for()
    with page.context.expect_page() as opened:
        card.locator("a").first.click()
    settle(opened.value)
    assert urlsplit(opened.value.url).path == "/percentiles"
    assert (chosen(opened.value, "m"), "TPOT" in chosen(opened.value, "metric")) == (pair[0], True)
    opened.value.close()
    card.get_by_role("button", name="Support").click()
    page.get_by_role("dialog").get_by_role("button", name="Support").click()
    card.get_by_text("supported").first.wait_for()
