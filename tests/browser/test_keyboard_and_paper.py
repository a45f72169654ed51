"""The dashboard for those who use a keyboard, ask for less motion, or print: where the focus goes, what is on paper."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from driving import go, opened

pytestmark = pytest.mark.browser
FOCUSED = """async () => {
  for (let frame = 0; frame < 3; frame++) await new Promise(requestAnimationFrame);
  const look = e => { const s = getComputedStyle(e);
    return [s.outlineStyle, s.outlineWidth, s.outlineColor, s.boxShadow, s.backgroundColor, s.borderColor].join(' '); };
  const chain = []; let e = document.activeElement;
  for (let up = 0; e && up < 5; up++, e = e.parentElement) chain.push(e);
  const looks = () => chain.map(look).join('|');
  const one = document.activeElement, box = one.getBoundingClientRect();
  window.__before = {one, looks, seen: looks()};
  const holder = one.closest('[class*="st-key-chart-"], [class*="st-key-pairbar"], [data-testid="stSidebar"]');
  let alpha = 1; for (let up = one; up; up = up.parentElement) alpha *= Number(getComputedStyle(up).opacity);
  return {
    tag: one.tagName, name: one.getAttribute('aria-label') || one.innerText || one.title || one.id,
    in: holder ? (holder.className.match(/st-key-[\\w-]+/) || ['sidebar'])[0] : '',
    alpha, size: box.width * box.height,
  };
}"""
UNFOCUSED = "() => !window.__before || window.__before.seen !== window.__before.looks()"
WIDE_A4_PX = 277 / 25.4 * 96
"""What A4 across holds between its margins."""


@pytest.fixture(scope="module")
def page(browser: Any, server: str) -> Iterator[Any]:
    with opened(browser, server, reduced_motion="reduce") as found:
        yield found


def test_the_keyboard_goes_from_the_pair_bar_to_a_chart_and_its_rows(page: Any, server: str) -> None:
    go(page, f"{server}/percentiles")
    page.locator(".st-key-m input").focus()
    seen: list[dict[str, Any]] = []
    for _ in range(60):
        page.keyboard.press("Tab")
        if seen and seen[-1]["tag"] != "INPUT":  # in a field the caret is seen, whatever is around it
            page.wait_for_function(UNFOCUSED)  # else the focus on seen[-1] is not seen
        seen.append(page.evaluate(FOCUSED))
        if seen[-1]["in"] == "st-key-chart-curve" and "Rows" in seen[-1]["name"]:
            break
    places = [one["in"] for one in seen]
    assert "st-key-chart-curve" in places, "Tab does not lead from the pair bar to the first chart"
    assert places == sorted(places, key=["st-key-pairbar", "", "st-key-chart-curve"].index), places
    assert all(one["name"] and one["alpha"] > 0.9 and one["size"] > 1 for one in seen), seen
    page.keyboard.press("Enter")
    panel = page.get_by_test_id("stPopoverBody")
    panel.get_by_role("tab").first.wait_for()
    # Streamlit hangs a panel at the end of the page and leaves the focus on its button: one goes to it backwards.
    page.get_by_role("link", name="Skip to main content").focus()
    held = []
    for _ in range(12):
        page.keyboard.press("Shift+Tab")
        held.append(panel.evaluate("e => e.contains(document.activeElement)"))
    assert any(held[:3]), "the panel is not reached"
    page.keyboard.press("Escape")
    panel.wait_for(state="detached")


def test_the_list_of_a_long_page_leads_to_its_charts_by_keyboard(page: Any, server: str) -> None:
    go(page, f"{server}/cache_events")
    link = page.locator(".st-key-contents a").nth(4)
    link.focus()
    page.keyboard.press("Enter")
    target = link.get_attribute("href")
    assert page.url.endswith(target)
    chart = page.locator('[class*="st-key-chart-"]', has=page.locator(target))
    page.wait_for_function("e => e.getBoundingClientRect().top < 120", arg=chart.element_handle())
    box = chart.bounding_box()
    assert 0 <= box["y"] < 120  # below the header, which lies over the page
    page.keyboard.press("Tab")  # goes on from there
    assert page.evaluate("e => e.contains(document.activeElement)", chart.element_handle())


def test_nothing_moves_where_less_motion_is_asked_for(page: Any, server: str) -> None:
    go(page, f"{server}/passes")
    moving = page.evaluate(
        "() => [...document.querySelectorAll('*')].filter(e => { const s = getComputedStyle(e);"
        " return [s.transitionDuration, s.animationDuration].some(d => parseFloat(d) > 0.001); })"
        ".map(e => e.outerHTML.slice(0, 120))"
    )
    assert moving == []


def test_paper_has_the_pair_as_text_whole_charts_and_no_controls_of_the_screen(page: Any, server: str) -> None:
    page.set_viewport_size({"width": 1920, "height": 900})  # the widest that charts become
    go(page, f"{server}/percentiles")
    link = page.locator(".st-key-printed")
    assert not link.is_visible()
    page.emulate_media(media="print")
    words = link.inner_text()
    run = page.locator(".st-key-m input").input_value()
    assert run in words
    assert "estimator: linear" in words
    assert "/percentiles?v=" in words
    for gone in ("stSidebar", "stHeader", "stButton", "stPopover", "stDownloadButton"):
        assert not any(one.is_visible() for one in page.get_by_test_id(gone).all()), gone
    assert not page.locator(".st-key-pairbar").is_visible()
    assert page.locator("[class*=st-key-strip-] p").first.is_visible()
    assert page.locator(".st-key-contents a").first.is_visible()
    widths = page.evaluate(
        "() => [...document.querySelectorAll('.main-svg, [data-testid=\"stDataFrame\"]')]"
        ".map(e => e.getBoundingClientRect().width * e.currentCSSZoom)"
    )
    assert widths
    assert max(widths) <= WIDE_A4_PX
    written = page.pdf(prefer_css_page_size=True, print_background=True)
    assert written.startswith(b"%PDF")
    page.emulate_media(media="screen")
    page.set_viewport_size({"width": 1280, "height": 720})
