"""A store whose texts attack the page, on a server that is open to others: every page shows them as text, and no more.

The same server shows the login in a real browser, and that nothing on its pages tells where things lie on the machine.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pages"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "serving"))

from driving import PATHS, go, opened, settle, turn_to
from hostile import EVIL, hostile_store
from server import Server, serving

from dashboard.serving.password import make_hash, write_hash
from dashboard.view import PAGES

pytestmark = pytest.mark.browser
PASSWORD = "correct horse battery"
ATTACKED, FILLED = ("runs", "verdict"), ("find", "turn", "conv", "gates", "job")
"""Pages that are opened by a link whose parameters hold them as well; the others are gone to by the sidebar."""
FOUND = """() => {
  const wrong = [];
  if (window.pwned) wrong.push('a script of a run ran');
  const deep = 'img, a, iframe, object, embed, script, link, form, use, image';
  for (const one of document.querySelectorAll(deep)) {
    const outside = ['src', 'href', 'xlink:href', 'action', 'data'].map(name => one.getAttribute(name) || '').join(' ');
    if (/evil[.]example|javascript:/.test(outside) || (one.tagName === 'SCRIPT' && /pwned/.test(one.textContent)))
      wrong.push(one.outerHTML.slice(0, 200));
  }
  for (const one of document.querySelectorAll('[onerror], [onclick], [onload], .katex, svg a'))
    wrong.push(one.outerHTML.slice(0, 200));
  for (const one of document.querySelectorAll('strong, b, em, code, mark, .stMarkdownColoredText, tspan'))
    if (one.textContent.trim() === 'loud') wrong.push(`loud as ${one.outerHTML.slice(0, 200)}`);
  return wrong;
}"""


@pytest.fixture(scope="module")
def served(installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("hostile")
    with pytest.MonkeyPatch.context() as monkeypatch:
        store = hostile_store(folder, monkeypatch)
    write_hash(make_hash(PASSWORD), folder / "password")
    options = ("--allow-host", "gap.example", "--password-file", str(folder / "password"))
    with serving(folder, *options, stores=str(store)) as server:
        yield server


@pytest.fixture(scope="module")
def page(browser: Any, served: Server) -> Iterator[Any]:
    with opened(browser, f"http://{served.host}", refused="401 (Unauthorized)") as found:
        yield found


def test_the_login_shows_nothing_before_and_the_view_after(page: Any, served: Server) -> None:
    page.goto(f"http://{served.host}/percentiles?v=1&metric=TPOT")
    assert page.locator("body").inner_text().split() == ["gapscope", "Password", "Log", "in"]
    page.get_by_label("Password").fill("not this one")
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("alert").get_by_text("This is not the password.").wait_for()
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    settle(page)
    assert page.url.startswith(f"http://{served.host}/percentiles?")
    assert page.locator(".st-key-metric input").input_value() == "TPOT"


@pytest.mark.parametrize("name", PAGES)
def test_nothing_of_a_run_becomes_markup(page: Any, served: Server, name: str) -> None:
    if page.url == "about:blank":
        page.goto(f"http://{served.host}/")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Log in").click()
        settle(page)
    if name in ATTACKED:
        go(page, f"http://{served.host}/{PATHS[name]}?{urlencode(dict.fromkeys(FILLED, EVIL[:80]))}")
    else:
        turn_to(page, name)
    for plot in page.query_selector_all(".js-plotly-plot .nsewdrag")[:3]:
        plot.hover(force=True)
    wrong = page.evaluate(FOUND)
    assert not wrong, "\n".join(wrong)
    words = page.locator("body").inner_text()
    assert "hidden-place/" not in words
    assert str(served.log.parent) not in words, "a page tells where things lie on this machine"
    assert page.get_by_test_id("stException").count() == 0


def test_the_logout_ends_it(page: Any, served: Server) -> None:
    go(page, f"http://{served.host}/runs")
    page.get_by_role("link", name="Log out").click()
    page.get_by_label("Password").wait_for()
    page.goto(f"http://{served.host}/verdict")
    assert page.get_by_label("Password").count() == 1
    assert served.process.poll() is None
    assert "Traceback" not in served.log.read_text()
