"""All that is looked at on a page: charts with their strips, names and roles, contrast in both themes, narrow windows.

axe-core looks at names, roles and contrast; what it cannot know (that a chart says its range and leads to its rows) is
looked at here. Where ``GAPSCOPE_SCREENSHOTS`` names a folder, a picture of each page is left there.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from driving import PATHS, go, settle, shot

STREAMLITS = {
    "list": "[data-testid=stSidebarNavItems]",  # a ul whose sections are divs around the li
    "listitem": "[data-testid=stSidebarNavItems] li",  # the same, from the other side
    "presentation-role-conflict": "[data-testid=stFileUploaderDropzone]",  # role=presentation, and named
}
"""What axe finds in Streamlit's own markup, which a page cannot change: rule and where. Anything else is ours."""
RULES: dict[str, Any] = {
    "light": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]},
    "dark": {"type": "rule", "values": ["color-contrast"]},  # names and roles do not hang on the theme
}
RUN_AXE = """async ([only, excused]) => {
  const found = await axe.run(document, {resultTypes: ['violations'], runOnly: only});
  const ours = [], theirs = [];
  for (const rule of found.violations) for (const node of rule.nodes) {
    const where = document.querySelector(node.target[0]);
    if (where && excused[rule.id] && where.matches(excused[rule.id])) theirs.push(rule.id);
    else ours.push(`${rule.id}: ${node.html.slice(0, 160)} (${node.failureSummary.slice(0, 200)})`);
  }
  return [ours, theirs];
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
RUN = re.compile(r"[a-z0-9_-]+-[0-9a-f]{12}")
SIDEWAYS = """() => {
  const main = document.querySelector('[data-testid="stMain"]');
  return Math.max(document.documentElement.scrollWidth - innerWidth, main.scrollWidth - main.clientWidth) > 0;
}"""
LAID_OUT_MS = 20_000
"""How long charts may take to be laid out anew in another window."""
DARK = """() => {
  const ground = getComputedStyle(document.querySelector('[data-testid="stApp"]')).backgroundColor;
  return ground.match(/\\d+/g).slice(0, 3).every(part => Number(part) < 128);
}"""
RERUN = """() => {
  const app = document.querySelector('[data-testid="stApp"]'), state = 'data-test-script-state';
  window.gapscopeRan = false;
  new MutationObserver(() => { window.gapscopeRan ||= app.getAttribute(state) !== 'notRunning'; })
    .observe(app, {attributes: true, attributeFilter: [state]});
}"""


def look_at(page: Any, server: str, name: str, measured: str) -> tuple[list[str], set[str]]:
    """Load a page once and look at it in all ways: what is wrong, and the rules that were excused.

    The page is left blank, at 1280 pixels and in the light theme.
    """
    go(page, f"{server}/{PATHS[name]}")
    shot(page, f"{name}-1280-light")
    wrong = strips(page, name, measured)
    page.evaluate(axe())
    ours, theirs = page.evaluate(RUN_AXE, [RULES["light"], STREAMLITS])
    wrong += ours + page.evaluate(NAMES)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(DARK)
    rerun(page)  # Streamlit's own parts follow by themselves, charts with the next run of the script
    wrong += [f"dark: {words}" for words in page.evaluate(RUN_AXE, [RULES["dark"], {}])[0]]
    shot(page, f"{name}-1280-dark")
    wrong += narrow_windows(page)
    page.goto("about:blank")
    page.set_viewport_size({"width": 1280, "height": 720})
    page.emulate_media(color_scheme="light")
    return wrong, set(theirs)


@cache
def axe() -> str:
    """The text of axe.min.js, from the package that brings it: nothing is fetched."""
    found = find_spec("axe_playwright_python")
    assert found is not None
    assert found.submodule_search_locations
    return (Path(found.submodule_search_locations[0]) / "axe.min.js").read_text(encoding="utf-8")


def strips(page: Any, name: str, measured: str) -> list[str]:
    """What is wrong with the charts of a page and the strips below them; ``measured`` is a run that all name."""
    wrong = ["an exception is on the page"] if page.get_by_test_id("stException").count() else []
    charts = page.locator("[class*='st-key-chart-']").count()
    if not charts and name not in ("runs", "what_if", "ledger"):
        wrong.append("there is no chart")
    if name in ("runs", "what_if", "ledger"):
        return wrong
    found = page.locator("[class*='st-key-strip-']").all_inner_texts()
    if len(found) != charts:
        wrong.append(f"{charts} charts have {len(found)} strips")
    for text in found:
        pair = name != "source" and len(set(RUN.findall(text))) > 1  # else the chart is about one run
        asked = (measured, "estimator:", *(("identity:",) if pair else ()))
        wrong += [f"a strip lacks {words}: {text}" for words in asked if words not in text]
    if found and name != "source" and not any("identity:" in text for text in found):
        wrong.append("no strip has the identity of the pair")
    drawn = page.get_by_test_id("stPlotlyChart").count()
    named = page.get_by_role("figure", name=re.compile(measured)).count()
    return wrong + ([] if named == drawn else [f"{named} of {drawn} charts name the run"])


def narrow_windows(page: Any) -> list[str]:
    """Whether the page itself scrolls sideways in a narrow window or on a phone; tables may, inside themselves."""
    from playwright.sync_api import TimeoutError as TooLong

    wrong = []
    for width in (900, 420):
        page.set_viewport_size({"width": width, "height": 720})
        try:
            page.wait_for_function(f"() => !({SIDEWAYS})()", timeout=LAID_OUT_MS)
        except TooLong:
            wrong.append(f"at {width} px the page scrolls sideways")
    return wrong


def rerun(page: Any) -> None:
    """Run the script again by Streamlit's key for it, and wait for its end."""
    page.evaluate(RERUN)
    page.keyboard.press("r")
    page.wait_for_function("() => window.gapscopeRan")
    settle(page)
