"""How the browser tests drive the dashboard: open an address, wait for a state, look at what a page asked and said."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from dashboard.view import DEFAULT_PAGE, PAGES

PATHS = {page: "" if page == DEFAULT_PAGE else page for page in PAGES}
PATIENCE_MS = 120_000
"""Nothing that is waited for takes a tenth of this on a calm machine; a test that fails waits once."""
SETTLED = """asked => {
  const app = document.querySelector('[data-testid="stApp"]');
  const still = app && app.getAttribute('data-test-script-state') === 'notRunning'
    && document.querySelector('.st-key-pairbar') && !document.querySelector('[data-testid="stSkeleton"]')
    && !document.querySelector('[data-stale="true"]');
  if (!still || window.gapscopeAsked !== asked) window.gapscopeStill = 0;
  window.gapscopeAsked = asked;
  return ++window.gapscopeStill > 5;
}"""
"""Whether nothing moved for a few frames: what the last run of the script left goes a frame after its end."""
ASKED = count()
PROBES = ("/_stcore/health", "/_stcore/host-config")
"""Streamlit's page looks for its server below the path of a page before it looks at the root, which is a 404 each."""


def go(page: Any, address: str) -> None:
    page.goto(address, timeout=PATIENCE_MS)
    settle(page)


def settle(page: Any) -> None:
    """Wait until the script has run and every chart is drawn."""
    page.wait_for_function(SETTLED, arg=next(ASKED), timeout=PATIENCE_MS)


def turn_to(page: Any, name: str) -> None:
    """Go to a page by the sidebar, which keeps the session."""
    title = PAGES[name]
    page.get_by_test_id("stSidebarNav").get_by_role("link", name=title, exact=True).click()
    page.locator(".st-key-title h1").get_by_text(title, exact=True).wait_for(state="attached")
    settle(page)


def shot(page: Any, name: str) -> None:
    """A picture of the window, where ``GAPSCOPE_SCREENSHOTS`` names a folder for them; ask the page for less motion."""
    if folder := os.environ.get("GAPSCOPE_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png")  # makes the folder


def query(page: Any) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


def chosen(page: Any, key: str) -> str:
    """What a select box shows."""
    return page.locator(f".st-key-{key} input").input_value()


@contextmanager
def opened(browser: Any, home: str, *, refused: str = "", **options: Any) -> Iterator[Any]:
    """A page in a context of its own, at 1280x720.

    Afterwards: it fetched nothing from elsewhere than ``home``, tried nothing that the content policy forbids, and its
    console holds no error but those of requests that the test wants to be ``refused``, by their status.
    """
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 720}, "color_scheme": "light", **options})
    asked: list[str] = []
    said: list[str] = []

    def told(message: Any) -> None:
        own = urlsplit(message.location["url"]).path.endswith(PROBES) or (refused and refused in message.text)
        if (message.type == "error" and not own) or "Content Security Policy" in message.text:
            said.append(f"{message.text} ({message.location['url']})")

    context.on("request", lambda request: asked.append(request.url))
    context.on("console", told)
    context.on("weberror", lambda error: said.append(str(error.error)))
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    try:
        yield page
    finally:
        context.close()
    elsewhere = [url for url in asked if not url.startswith((f"{home}/", "data:", "blob:"))]
    assert not elsewhere, f"the pages fetch from elsewhere: {elsewhere[:3]}"
    assert not said, said[:5]
