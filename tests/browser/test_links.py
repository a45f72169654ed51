"""Links and the address bar in a real browser: a link restores a view, controls and pages keep it, views are saved."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from driving import chosen, go, opened, query, settle, turn_to

from dashboard.view import View

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def page(browser: Any, server: str) -> Iterator[Any]:
    with opened(browser, server) as found:
        yield found


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
    for name in ("cohort", "cache_events", "verdict"):
        turn_to(page, name)
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
    with opened(browser, server) as elsewhere:
        go(elsewhere, link)
        assert "E2E" in chosen(elsewhere, "metric")


def test_back_after_a_swap_restores_every_candidate(page: Any, server: str, pair: tuple[str, str]) -> None:
    go(page, View("cohort", {"m": pair[0], "r": [pair[1]]}).link(server))
    page.get_by_role("button", name="Repeat").click()
    page.wait_for_url(lambda url: url.count("r=") == 2)
    settle(page)
    _, repeat = query(page)["r"]
    page.get_by_role("button", name="Swap").click()
    page.wait_for_url(lambda url: parse_qs(urlsplit(url).query)["r"][0] == pair[0])
    settle(page)
    for _ in range(2):  # a swap is of two values, so it takes two steps
        page.go_back()
        settle(page)
    assert chosen(page, "m") == pair[0]
    assert query(page)["r"] == [pair[1], repeat]
    shown = page.locator(".st-key-r").inner_text()
    assert pair[1] in shown
    assert repeat in shown


def test_an_absent_run_is_named_with_its_digest(page: Any, server: str) -> None:
    go(page, f"{server}/?v=1&m=ample8-0123456789ab")
    alert = page.get_by_role("alert").first.inner_text()
    assert "content digest 0123456789ab" in alert
    assert "other content" in alert


def test_the_sidebar_marks_the_default_page_at_both_of_its_addresses(page: Any, server: str) -> None:
    marked = page.locator("[data-testid=stSidebarNavLink][aria-current=page]")
    for path in ("verdict", ""):
        go(page, f"{server}/{path}")
        assert marked.all_inner_texts() == ["Verdict"]
        assert page.get_by_test_id("stSidebarNav").get_by_role("link", name="Verdict").count() == 1


def test_a_saved_view_is_opened_renamed_and_deleted(page: Any, server: str, pair: tuple[str, str]) -> None:
    go(page, View("percentiles", {"m": pair[0], "r": [pair[1]], "metric": "e2e"}).link(server))
    page.locator(".st-key-share button:visible").click()
    panel = page.get_by_test_id("stPopoverBody")
    panel.get_by_role("button", name="Save view").click()
    panel.get_by_role("alert").wait_for()  # a view needs a name
    panel.get_by_label("Save this view as").fill("the slow ones")
    panel.get_by_label("Note").fill("E2E is <b>long</b>")
    panel.get_by_role("button", name="Save view").click()
    panel.get_by_text("Saved as the slow ones").wait_for()
    page.keyboard.press("Escape")
    go(page, f"{server}/runs")
    page.locator(".st-key-saved-views summary").click()
    row = page.locator("[class*=st-key-view-list-]")
    row.get_by_text("E2E is <b>long</b>").wait_for()
    with page.context.expect_page() as other:
        row.get_by_role("link", name="the slow ones").click()
    settle(other.value)
    assert urlsplit(other.value.url).path == "/percentiles"
    assert (chosen(other.value, "m"), "E2E" in chosen(other.value, "metric")) == (pair[0], True)
    other.value.close()
    row.get_by_role("button", name="Edit").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("slow answers")
    dialog.get_by_role("button", name="Rename").click()
    row.get_by_role("link", name="slow answers").wait_for()
    assert row.count() == 1
    row.get_by_role("button", name="Edit").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.get_by_text("No view is saved yet").wait_for()
    assert row.count() == 0
