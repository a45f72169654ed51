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

import synthetic
from server import Server, serving
from test_flows import PATHS, settle

from dashboard.serving.password import make_hash, write_hash
from dashboard.view import PAGES

pytestmark = pytest.mark.browser
PASSWORD = "correct horse battery"
EVIL = (
    "<script>window.pwned=1</script><img src=x onerror='window.pwned=1'><img src=http://evil.example/a.png>"
    "<b>loud</b><a href='javascript:window.pwned=1'>press</a>![i](http://evil.example/b.png)"
    "[press](javascript:window.pwned=1)[out](http://evil.example) http://evil.example www.evil.example "
    "$\\frac{a}{b}$ :material/delete: :red[loud] **loud** `loud` {{loud}} '; DROP TABLE requests; -- "
    "\u202egnp.evil\u202c &lt;b&gt;loud " + "long" * 60
)
"""Markup, links, formulas, icons, colours, SQL, reversed text, and very long."""
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


def hostile_store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pair, a run that failed and a folder that is no bundle, each with texts that attack."""
    store = folder / "hidden-place"
    store.mkdir()
    plain = synthetic.rows
    ids = ("request_id", "source_trace_id", "conversation_id", "play_id")

    def attacked(row: dict[str, Any]) -> dict[str, Any]:
        named = {name: f"{row[name]} {EVIL}" for name in ids if row.get(name)}
        members = [attacked(one) for one in row.get("members", ())]
        return row | named | ({"members": members} if members else {})

    monkeypatch.setattr(
        synthetic, "rows", lambda *a: {name: [attacked(row) for row in rows] for name, rows in plain(*a).items()}
    )
    facts = {"source__engine": EVIL, "model__name": EVIL, "hardware__part": EVIL, "source__version": EVIL}
    synthetic.write(store, "measured", "first", title=EVIL, **facts)
    synthetic.write(store, "replay", "second", title=EVIL, speed=1.2, **facts)
    synthetic.write(store, "measured", "third", title=EVIL, failed=True, speed=1.4)
    broken = store / "broken-0123456789ab"
    broken.mkdir()
    (broken / "manifest.json").write_text('{"run_id": "' + "<script>window.pwned=1</script>" + '"}')
    return store


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
    context = browser.new_context(viewport={"width": 1280, "height": 720})
    asked: list[str] = []
    said: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    opened = context.new_page()
    opened.set_default_timeout(30_000)
    opened.on("console", lambda message: said.append(message.text))
    yield opened
    context.close()
    elsewhere = [url for url in asked if not url.startswith((f"http://{served.host}/", "data:", "blob:"))]
    assert not elsewhere, f"the pages fetch from elsewhere: {elsewhere[:3]}"
    assert not [words for words in said if "Content Security Policy" in words], "something foreign was tried"


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
    attack = {"find": EVIL[:80], "turn": EVIL[:80], "conv": EVIL[:80], "gates": EVIL[:80], "job": EVIL[:80]}
    page.goto(f"http://{served.host}/{PATHS[name]}?{urlencode(attack if name in ('runs', 'verdict') else {})}")
    settle(page)
    for plot in page.locator(".js-plotly-plot .nsewdrag").all()[:3]:
        plot.hover(force=True)
    wrong = page.evaluate(FOUND)
    assert not wrong, "\n".join(wrong)
    words = page.locator("body").inner_text()
    assert "hidden-place/" not in words
    assert str(served.log.parent) not in words, "a page tells where things lie on this machine"
    assert page.get_by_test_id("stException").count() == 0


def test_the_logout_ends_it(page: Any, served: Server) -> None:
    page.goto(f"http://{served.host}/runs")
    settle(page)
    page.get_by_role("link", name="Log out").click()
    page.get_by_label("Password").wait_for()
    page.goto(f"http://{served.host}/verdict")
    assert page.get_by_label("Password").count() == 1
    assert served.process.poll() is None
    assert "Traceback" not in served.log.read_text()
