"""Every page for those who use a keyboard, a screen reader, another contrast, a narrow window or paper.

axe-core looks at names, roles and contrast; what it cannot know (that a chart has its table as text, where the focus
goes, what is printed) is looked at here. Both themes; one load of a page in each.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from test_flows import PATHS, go

from dashboard.view import PAGES

pytestmark = pytest.mark.browser

STREAMLITS = {
    "list": "[data-testid=stSidebarNavItems]",  # a ul whose sections are divs around the li
    "listitem": "[data-testid=stSidebarNavItems] li",  # the same, from the other side
    "presentation-role-conflict": "[data-testid=stFileUploaderDropzone]",  # role=presentation, and named
}
"""What axe finds in Streamlit's own markup, which a page cannot change: rule and where. Anything else is ours."""
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
RUN_AXE = """async ([only, excused]) => {
  const found = await axe.run(document, {resultTypes: ['violations'], runOnly: only});
  const ours = [];
  for (const rule of found.violations) for (const node of rule.nodes) {
    const where = document.querySelector(node.target[0]);
    if (where && excused[rule.id] && where.matches(excused[rule.id])) continue;
    ours.push(`${rule.id}: ${node.html.slice(0, 160)} (${node.failureSummary.slice(0, 200)})`);
  }
  return ours;
}"""
NAMES = """() => {
  const wrong = [];
  const shown = e => e.getClientRects().length > 0;
  if (document.documentElement.lang !== 'en') wrong.push('the page names no language');
  if (document.querySelectorAll('main').length !== 1) wrong.push('not one main landmark');
  const titles = [...document.querySelectorAll('h1')];
  if (titles.length !== 1 || !titles[0].innerText.trim()) wrong.push('not one title');
  let level = 0;
  for (const one of document.querySelectorAll('main h1, main h2, main h3, main h4, main h5, main h6')) {
    const own = Number(one.tagName[1]);
    if (own > level + 1) wrong.push(`heading ${one.innerText} skips a level`);
    level = own;
  }
  for (const chart of document.querySelectorAll('[class*="st-key-chart-"]')) {
    const name = chart.className.match(/st-key-chart-[\\w-]+/)[0];
    for (const plot of chart.querySelectorAll('[data-testid="stPlotlyChart"]')) {
      if (plot.getAttribute('role') !== 'figure') wrong.push(`${name} is no figure`);
      const words = plot.getAttribute('aria-label') || '';
      if (!/ from .+ to /.test(words)) wrong.push(`${name} does not say its range: ${words.slice(0, 200)}`);
    }
    const buttons = [...chart.querySelectorAll('button')].filter(shown).map(b => b.innerText);
    if (!buttons.some(words => words.includes('Rows'))) wrong.push(`${name} does not lead to its rows`);
  }
  for (const table of document.querySelectorAll('[data-testid="stDataFrame"]')) {
    const own = table.closest('[class*="st-key-table-"]');
    if (own && !table.querySelector('[aria-label], [role=grid]')) wrong.push(`${own.className} has no name`);
  }
  return wrong;
}"""
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
def axe() -> str:
    """The text of axe.min.js, from the package that brings it: nothing is fetched."""
    found = find_spec("axe_playwright_python")
    assert found is not None
    assert found.submodule_search_locations
    return (Path(found.submodule_search_locations[0]) / "axe.min.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module", params=["light", "dark"])
def page(browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    context = browser.new_context(
        viewport={"width": 1280, "height": 720}, color_scheme=request.param, reduced_motion="reduce"
    )
    opened = context.new_page()
    opened.set_default_timeout(30_000)
    opened.gapscope_theme = request.param
    said: list[str] = []
    opened.on("console", lambda message: said.append(message.text))
    yield opened
    context.close()
    assert not [words for words in said if "Content Security Policy" in words], "the policy forbids what a page does"


@pytest.mark.parametrize("name", PAGES)
def test_names_roles_and_contrast(page: Any, server: str, axe: str, name: str) -> None:
    go(page, f"{server}/{PATHS[name]}")
    page.evaluate(axe)
    whole = page.gapscope_theme == "light"  # names and roles do not hang on the theme
    rules: Any = {"type": "tag", "values": RULES} if whole else {"type": "rule", "values": ["color-contrast"]}
    wrong = page.evaluate(RUN_AXE, [rules, STREAMLITS])
    wrong += page.evaluate(NAMES) if whole else []
    assert not wrong, "\n".join(wrong)
    narrow = narrow_windows(page) if whole else []
    assert not narrow, "\n".join(narrow)


SIDEWAYS = """() => {
  const main = document.querySelector('[data-testid="stMain"]');
  return Math.max(document.documentElement.scrollWidth - innerWidth, main.scrollWidth - main.clientWidth) > 0;
}"""


def narrow_windows(page: Any) -> list[str]:
    """Whether the page itself scrolls sideways in a narrow window or on a phone; tables may, inside themselves."""
    from playwright.sync_api import TimeoutError as TooLong

    wrong = []
    for width in (900, 420):
        page.set_viewport_size({"width": width, "height": 720})
        try:
            page.wait_for_function(f"() => !({SIDEWAYS})()", timeout=20_000)  # charts are laid out anew
        except TooLong:
            wrong.append(f"at {width} px the page scrolls sideways")
    page.set_viewport_size({"width": 1280, "height": 720})
    return wrong


def test_the_keyboard_goes_from_the_pair_bar_to_a_chart_and_its_rows(page: Any, server: str) -> None:
    go(page, f"{server}/percentiles")
    page.locator(".st-key-m input").focus()
    seen: list[dict[str, Any]] = []
    for _ in range(60):
        page.keyboard.press("Tab")
        if seen and seen[-1]["tag"] != "INPUT":  # in a field the caret is seen, whatever is around it
            page.wait_for_function(UNFOCUSED, timeout=20_000)  # else the focus on seen[-1] is not seen
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
