"""Texts that attack, in every parameter of a link and in every export of a run: they stay text."""

from __future__ import annotations

import csv
import io
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlencode

import pytest
import synthetic
from conftest import Open, run_id
from hostile import hostile_store
from streamlit.testing.v1 import AppTest

from dashboard.metrics import Estimator, Population, Window
from dashboard.report import as_html, as_markdown, gather
from dashboard.report.contents import Report
from dashboard.sharing.files import as_csv
from dashboard.sharing.plain import markdown_table
from dashboard.sides import frame_of
from dashboard.store import Store
from dashboard.view import PAGES, PARAMS, SHARED, from_link, params_of

EVIL = "[x](http://evil.example) <b>www.evil.example</b> a@evil.example # **head** `code` &lt; $x$ :red[y] '; DROP x --"
SIGNS = ("](", "http://", "www.", "<b>", "**head**", "`code`", ":red[", "$x$")
"""What is markup, or a link, in what a page says as it travels to the browser; escaped, none of these is left."""
SPOKEN = ("markdown", "caption", "info", "warning", "error", "success")
NAMED = ("button", "checkbox", "expander", "multiselect", "number_input", "selectbox", "text_input")


def said(app: AppTest) -> str:
    """Everything on a page that Markdown reads."""
    texts = [element.value for kind in SPOKEN for element in app.get(kind)]
    return "\n".join(texts + [element.label for kind in NAMED for element in app.get(kind)])


@pytest.mark.parametrize("page", PAGES)
def test_no_value_of_a_link_becomes_markup(opened: Open, paired: Path, page: str) -> None:
    app = opened(paired, page, **dict.fromkeys([param.name for param in params_of(page)], EVIL))
    assert not app.exception
    assert not [sign for sign in SIGNS if sign in said(app)]
    assert page != "verdict" or "DROP x" in said(app)  # it is said
    again = app.run()  # what the controls hold by now
    assert not again.exception
    assert not [sign for sign in SIGNS if sign in said(again)]


@pytest.mark.parametrize("name", PARAMS)
def test_a_value_of_another_form_is_left_out_and_named(name: str) -> None:
    param = PARAMS[name]
    page = next(iter(PAGES)) if param.owner == SHARED else param.owner
    shown = from_link(f"/{page}?{urlencode({name: EVIL})}")
    free = param.type in (str, list) and not param.choices and param.pattern is None
    if free:
        assert shown[name] in (EVIL, [EVIL])
        assert from_link(shown.link())[name] == shown[name]  # encoded, so that it stays the value of this parameter
    else:
        assert name not in shown.values
        assert [words.partition("=")[0] for words in shown.ignored] == [name]


def report_of(folder: Path, measured: str, replay: str) -> Report:
    store = Store([folder])
    scope = (Population("profile"), Estimator.LINEAR, Window.FIXED)
    return gather(store, frame_of(store, run_id(folder, measured), [run_id(folder, replay)], *scope))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Report:
    with pytest.MonkeyPatch.context() as monkeypatch:
        store = hostile_store(tmp_path_factory.mktemp("hostile"), monkeypatch)
    return report_of(store, "first", "second")


class Tags(HTMLParser):
    """Every tag with the names of its attributes, and where its links and pictures lead."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen: set[tuple[str, ...]] = set()
        self.leads: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add((tag, *sorted(name for name, _ in attrs)))
        self.leads |= {str(value)[:5] for name, value in attrs if name in ("href", "src")}


def test_a_report_has_the_tags_of_one_of_plain_texts(hostile: Report, tmp_path: Path) -> None:
    synthetic.write(tmp_path, "measured", "first")
    synthetic.write(tmp_path, "replay", "second", speed=1.2)
    page = as_html(hostile)
    found, plain = Tags(page), Tags(as_html(report_of(tmp_path, "first", "second")))
    assert "pwned" in page
    assert found.seen <= plain.seen
    assert found.leads <= plain.leads


def test_the_markdown_of_a_report_has_no_markup_of_a_run(hostile: Report) -> None:
    text = as_markdown(hostile)
    assert "pwned" in text
    for sign in ("<script", "<img", "<a ", "<b>", "](javascript", "](http://evil", "**loud**", "`loud`", " www.evil"):
        assert sign not in text.replace("\\\\", "").replace(f"\\{sign}", ""), sign
    assert "http://evil" not in text


def test_files_hold_texts_as_they_are(hostile: Report) -> None:
    attacked = 0
    for answer in [part.answer for section in hostile.sections for part in section.parts]:
        head, *lines = list(csv.reader(io.StringIO(as_csv(answer.rows, answer.columns).decode(), newline="")))
        assert len(lines) == answer.rows.num_rows
        assert len(head) == answer.rows.num_columns
        for at, name in enumerate(answer.rows.column_names):
            for cell, value in zip((line[at] for line in lines), answer.rows.column(name).to_pylist(), strict=True):
                attacked += isinstance(value, str) and "pwned" in value
                assert not isinstance(value, str) or cell == value
        table = markdown_table(answer.rows, answer.columns).splitlines()
        assert len(table) == 2 + answer.rows.num_rows
        assert {line.replace("\\|", "").count("|") for line in table} == {table[1].count("|")}
    assert attacked
