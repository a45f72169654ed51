"""What a reviewer does, in a real browser: follow a link, change a control, share, run a what-if."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from dashboard.view import DEFAULT_PAGE, PAGES, View
from engine.stores import PROJECT

pytestmark = pytest.mark.browser
SETTLED = """() => {
  const app = document.querySelector('[data-testid="stApp"]');
  return app && app.getAttribute('data-test-script-state') === 'notRunning'
    && document.querySelector('.st-key-pairbar') && !document.querySelector('[data-testid="stSkeleton"]')
    && !document.querySelector('[data-stale="true"]');
}"""
SCREENSHOTS = os.environ.get("GAPSCOPE_SCREENSHOTS")
PATHS = {page: "" if page == DEFAULT_PAGE else page for page in PAGES}


def go(page: Any, address: str) -> None:
    page.goto(address)
    settle(page)


def settle(page: Any) -> None:
    """Wait until the script has run and every chart is drawn."""
    page.wait_for_function(SETTLED, timeout=60_000)


def query(page: Any) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


def chosen(page: Any, key: str) -> str:
    """What a select box shows."""
    return page.locator(f".st-key-{key} input").input_value()


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1280, "height": 720}, color_scheme="light", accept_downloads=True)
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    opened = context.new_page()
    opened.set_default_timeout(30_000)
    yield opened
    context.close()
    elsewhere = [url for url in asked if not url.startswith(("http://127.0.0.1", "data:", "blob:"))]
    assert not elsewhere, f"the pages fetch from elsewhere: {elsewhere[:3]}"


@pytest.fixture(scope="module")
def pair(page: Any, server: str) -> tuple[str, str]:
    """The pair that opens first: the sample and its replay."""
    go(page, f"{server}/percentiles")  # the first page of a fresh server, and not the default one
    measured = chosen(page, "m")
    (replay,) = re.findall(r"[a-z0-9_-]+-[0-9a-f]{12}", page.locator(".st-key-r").inner_text())
    assert measured.startswith("ample8-")
    return measured, replay


def test_a_link_restores_the_whole_view(page: Any, server: str, pair: tuple[str, str]) -> None:
    values = {
        "m": pair[0], "r": [pair[1]], "pop": "matched", "phase": "all", "est": "nearest_rank", "win": "observed_span",
        "metric": "tpot", "curve": "tail", "pct_x": "linear", "by": "turn_index", "top": 7,
    }  # fmt: skip
    go(page, View("percentiles", values).link(server))
    assert "matched source-turns" in chosen(page, "pop")
    assert "all phases" in chosen(page, "phase")
    assert "nearest rank" in chosen(page, "est")
    assert "observed span" in chosen(page, "win")
    assert "TPOT" in chosen(page, "metric")
    assert page.get_by_role("figure", name=re.compile(r"^TPOT \(ms\): share of requests above")).count() == 1
    assert page.locator(".st-key-by [aria-checked=true]").inner_text() == "turn depth"
    assert page.locator(".st-key-top input").input_value() == "7"
    assert "population: source-turns that succeeded on both sides" in page.locator(".st-key-strip-curve").inner_text()


def test_changing_a_control_updates_the_address(page: Any, server: str, pair: tuple[str, str]) -> None:
    go(page, f"{server}/percentiles")
    page.locator(".st-key-curve").get_by_text("tail").click()
    page.wait_for_url("**curve=tail**")
    page.locator(".st-key-pct_x").get_by_text("linear").click()
    page.wait_for_url("**pct_x=linear**")
    settle(page)
    assert page.get_by_role("figure", name=re.compile("share of requests above")).count() == 1


def test_switching_pages_keeps_the_selection(page: Any, server: str, pair: tuple[str, str]) -> None:
    go(page, View("percentiles", {"m": pair[0], "r": [pair[1]], "est": "nearest_rank"}).link(server))
    page.locator(".st-key-phase").click()
    page.get_by_role("option", name="warm-up").click()
    page.wait_for_url("**phase=warm-up**")
    settle(page)
    for name in ("Cohort", "Cache events", "Verdict"):
        page.get_by_test_id("stSidebarNav").get_by_role("link", name=name).click()
        page.wait_for_url(lambda url: "phase=warm-up" in url and "est=nearest" in url)
        settle(page)
        assert "warm-up" in chosen(page, "phase")
        assert "estimator: nearest rank" in page.locator("[class*=st-key-strip-]").first.inner_text()


def test_the_permalink_opens_the_same_view_elsewhere(
    page: Any, browser: Any, server: str, pair: tuple[str, str]
) -> None:
    go(page, f"{server}/percentiles?metric=E2E&curve=percentiles")
    page.locator(".st-key-share button:visible").click()
    link = page.locator("[data-testid=stPopoverBody] code").inner_text().replace("\n", "")
    page.keyboard.press("Escape")
    told = parse_qs(urlsplit(link).query)
    assert told == {"v": ["2"], "m": [pair[0]], "r": [pair[1]], "metric": ["E2E"], "curve": ["percentiles"]}
    assert "/" not in urlsplit(link).query.replace("%2F", "/")
    other = browser.new_context()
    opened = other.new_page()
    go(opened, link)
    assert "E2E" in chosen(opened, "metric")
    other.close()


def test_an_absent_run_is_named_with_its_digest(page: Any, server: str) -> None:
    go(page, f"{server}/?v=1&m=ample8-0123456789ab")
    alert = page.get_by_role("alert").first.inner_text()
    assert "content digest 0123456789ab" in alert
    assert "other content" in alert


@pytest.mark.parametrize("name", [page for page in PAGES if page not in ("runs", "what_if", "ledger")])
def test_every_chart_has_a_name_and_its_strip(page: Any, server: str, pair: tuple[str, str], name: str) -> None:
    go(page, f"{server}/{PATHS[name]}")
    assert page.locator("[data-testid=stException]").count() == 0
    charts = page.locator("[class*='st-key-chart-']")
    assert charts.count() > 0
    assert page.locator("[class*='st-key-strip-']").count() == charts.count()
    for strip in page.locator("[class*='st-key-strip-']").all():
        text = strip.inner_text()
        assert pair[0] in text
        assert "identity:" in text or name == "source"  # which is about one run
        assert "estimator:" in text
    drawn = page.locator("[data-testid=stPlotlyChart]").count()
    assert page.get_by_role("figure", name=re.compile(pair[0])).count() == drawn


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
    link = page.locator("[data-testid=stPageLink] a").first
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
    page.locator(".st-key-r").get_by_text(re.compile("ample8.*what-if-")).wait_for(timeout=90_000)
    settle(page)
    joined = query(page)["r"]
    assert joined[0] == pair[1]
    assert "what-if" in joined[1]
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
    page.get_by_text(re.compile("done · import of")).wait_for(timeout=90_000)
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
    page.get_by_role("button", name="Add rung 5").wait_for(timeout=120_000)
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
    page.get_by_test_id("stSidebarNav").get_by_role("link", name="Ledger").click()
    page.wait_for_url("**/ledger**")
    settle(page)
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


def test_the_sidebar_marks_the_default_page_at_both_of_its_addresses(page: Any, server: str) -> None:
    marked = page.locator("[data-testid=stSidebarNavLink][aria-current=page]")
    for path in ("verdict", ""):
        go(page, f"{server}/{path}")
        assert marked.all_inner_texts() == ["Verdict"]
        assert page.get_by_test_id("stSidebarNav").get_by_role("link", name="Verdict").count() == 1


@pytest.mark.parametrize(
    ("width", "height", "scheme"), [(1280, 720, "light"), (1440, 900, "light"), (1280, 720, "dark")]
)
@pytest.mark.skipif(not SCREENSHOTS, reason="GAPSCOPE_SCREENSHOTS names no folder for screenshots")
def test_screenshots(browser: Any, server: str, width: int, height: int, scheme: str) -> None:
    folder = Path(str(SCREENSHOTS))
    folder.mkdir(parents=True, exist_ok=True)
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    opened = context.new_page()
    for name in PAGES if scheme == "light" else ("verdict", "passes"):
        go(opened, f"{server}/{PATHS[name]}")
        opened.wait_for_timeout(700)  # Plotly's own transitions
        opened.screenshot(path=folder / f"{name}-{width}-{scheme}.png")
    context.close()
