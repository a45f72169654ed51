"""A report: one file that says what the pages say, loads nothing, and is the same whenever it is written."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dashboard.charts.panel.embedded import changes, figure_json, jsonable, script_json
from dashboard.cli import main
from dashboard.metrics import Estimator, Population, Window
from dashboard.report import as_html, as_markdown, gather
from dashboard.report.contents import Report
from dashboard.sides import frame_of
from dashboard.store import Store
from dashboard.view import from_link
from engine.errors import GapscopeError

SAMPLES = Path(__file__).parents[2] / "sample_runs"
SECTIONS = ["verdict", "contract", "identity", "cohort", "numbers", "percentiles", "passes", "coverage", "cache"]
SECTIONS += ["boundaries", "limits", "again"]
GATES = ["ttft.mean<=10%", "ttft.p90<=1%"]


class Page(HTMLParser):
    """What an HTML file holds: ids, addresses, scripts, and the tables by the figure around them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.handlers: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.tables: dict[str, list[list[tuple[str, str | None]]]] = {}
        self.toc: list[str] = []
        self._figure, self._tag, self._given = "", "", {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self._tag, self._given = tag, given
        if given.get("id"):
            self.ids.append(str(given["id"]))
        self.addresses += [str(given[name]) for name in ("src", "href", "action", "data", "srcset") if given.get(name)]
        self.handlers += [name for name in given if name.startswith("on")]
        if tag == "figure":
            self._figure = str(given["id"])
        if tag == "script":
            self.scripts.append((given, ""))
        if tag == "tr":
            self.tables.setdefault(self._figure, []).append([])
        if tag in ("td", "th"):
            self.tables[self._figure][-1].append(("", given.get("data-value")))

    def handle_data(self, data: str) -> None:
        if self._tag == "script" and self.scripts:
            given, text = self.scripts[-1]
            self.scripts[-1] = (given, text + data)
        elif self._tag in ("td", "th"):
            text, value = self.tables[self._figure][-1][-1]
            self.tables[self._figure][-1][-1] = (text + data, value)

    def handle_endtag(self, tag: str) -> None:
        self._tag = ""


@pytest.fixture(scope="module")
def store() -> Store:
    return Store([SAMPLES])


def report_of(store: Store, *names: str, gates: tuple[str, ...] = (), **scope: object) -> Report:
    from dashboard.compare.gates import Gate

    ids = [store.find(name).run_id for name in names]
    frame = frame_of(store, ids[0], ids[1:], Population("profile"), Estimator.LINEAR, Window.FIXED, **scope)  # type: ignore[arg-type]
    return gather(store, frame, [Gate.parse(gate) for gate in gates])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report by the command, as a person would write it."""
    file = tmp_path_factory.mktemp("report") / "review.html"
    options = [word for gate in GATES for word in ("--gate", gate)]
    assert main(["report", "tight8", "tight8-predicted", *options, "--store", str(SAMPLES), "--out", str(file)]) == 1
    return file


@pytest.fixture(scope="module")
def page(written: Path) -> Page:
    return Page(written.read_text())


def test_nothing_is_loaded_and_it_stays_small(written: Path, page: Page) -> None:
    assert written.stat().st_size < 6_000_000
    assert all(address.startswith("#") for address in page.addresses)
    assert {address[1:] for address in page.addresses} <= set(page.ids)
    assert not page.handlers
    text = written.read_text()
    assert "default-src 'none'" in text
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert style
    assert "url(" not in style[1]
    assert "@import" not in style[1]
    assert sum("plotly.js v" in script for _, script in page.scripts) == 1
    assert len(page.ids) == len(set(page.ids))


def test_every_section_is_there_and_in_the_contents(page: Page) -> None:
    assert [one for one in page.ids if one in SECTIONS] == SECTIONS
    assert [address for address in page.addresses if address != "#main"] == [f"#{name}" for name in SECTIONS]


def test_its_numbers_are_those_of_the_command(written: Path, page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    options = [word for gate in GATES for word in ("--gate", gate)]
    main(["compare", "tight8", "tight8-predicted", *options, "--format", "json", "--store", str(SAMPLES)])
    told = json.loads(capsys.readouterr().out)
    (held,) = [json.loads(text) for given, text in page.scripts if given.get("class") == "comparison"]
    assert held == jsonable(told)
    head, *body = page.tables["numbers-all"]
    at = {text: index for index, (text, _) in enumerate(head)}
    assert len(body) == len(told["rows"])
    decimals = {"ms": 1, "share": 2, "count": 0, "requests": 2, "1/s": 3, "tok/s": 1, "tokens": 1}
    for line, row in zip(body, told["rows"], strict=True):
        places = decimals.get(row["unit"], 2)
        for name, side in (("Measured", "measured"), ("Replay", "replay")):
            shown, value = line[at[name]], row[side]["value"]
            if row["unit"] == "share" and value is not None:
                value *= 100  # tables say shares in percent
            if value is None:
                assert shown == ("–", None)
            else:
                assert float(str(shown[1])) == pytest.approx(round(value, places), rel=1e-11)
                assert float(shown[0].replace(",", "")) == pytest.approx(round(value, places), rel=6e-6)
        gap = line[at["Gap (%)"]]
        if row["gap"] is None:
            assert gap == ("–", None)
        else:
            assert float(str(gap[1])) == pytest.approx(100 * row["gap"], rel=1e-11)
            assert abs(float(gap[0]) - 100 * row["gap"]) <= 0.0500001
        assert int(str(line[at["n measured"]][1])) == row["measured"]["n"]
        assert int(str(line[at["n replay"]][1])) == row["replay"]["n"]
    verdicts = [line[at_] for line in page.tables["contract-gates"][1:] for at_ in (0, 1)]
    assert [text for text, _ in verdicts] == ["ttft.mean<=10%", "pass", "ttft.p90<=1%", "fail"]


def test_no_number_is_none_in_text_or_data(written: Path, page: Page) -> None:
    own = [text for given, text in page.scripts if given.get("type") == "application/json"]
    assert len(own) > 15
    for text in own:
        json.loads(text, parse_constant=lambda word: pytest.fail(word))
    cells = [text for table in page.tables.values() for line in table for text, _ in line]
    assert not {"nan", "inf", "-inf", "infinity"} & {cell.strip().lower() for cell in cells}


def test_the_same_runs_give_the_same_bytes(written: Path, store: Store) -> None:
    report = report_of(store, "tight8", "tight8-predicted", gates=tuple(GATES))
    assert as_html(report) == written.read_text()


def test_it_says_how_to_make_it_again(store: Store) -> None:
    report = report_of(store, "tight8", "tight8-predicted", gates=tuple(GATES))
    ids = [store.find(name).run_id for name in ("tight8", "tight8-predicted")]
    assert report.command == (
        f"gapscope report {ids[0]} {ids[1]} --population profile --estimator linear --window fixed "
        "--gate 'ttft.mean<=10%' --gate 'ttft.p90<=1%' --out report.html"
    )
    view = from_link(report.link)
    assert (view.page, view["m"], view["r"], view["gates"]) == ("verdict", ids[0], [ids[1]], " ".join(GATES))
    assert report.link.startswith("/?")


def test_markdown_says_the_same(store: Store) -> None:
    report = report_of(store, "tight8", "tight8-predicted", gates=tuple(GATES))
    text = as_markdown(report)
    # README: TTFT mean +7.1 %, 1 preemption against 6 on tight8
    assert "TTFT mean +7.1%" in text
    assert re.search(r"\| Preemptions \| .*\| 6 \| 1 \|", text)
    for section in report.sections:
        assert f"\n## {section.title}\n" in text
    assert report.command in text
    assert report.link in text
    for block in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1


def test_four_runs_beside_one_stay_small_and_unlike_ones_have_no_gaps(store: Store) -> None:
    names = ("ample8", "ample8-predicted", "tight8", "ample8_repeat", "tight8-predicted")
    text = as_html(report_of(store, *names, acknowledged=True))
    assert len(text.encode()) < 6_000_000
    assert len([1 for given, _ in Page(text).scripts if given.get("class") == "comparison"]) == 4


def test_runs_without_tables_and_failed_ones_are_reported(store: Store) -> None:
    text = as_html(report_of(store, "stub_aiperf", "stub_vllm_bench", acknowledged=True))
    page = Page(text)
    assert [one for one in page.ids if one in SECTIONS] == SECTIONS
    assert "Not recorded" in text or "not recorded" in text
    assert "Coverage is about the timing of a replay" in text
    with pytest.raises(GapscopeError, match="name at least one run"):
        report_of(store, "ample8")
    with pytest.raises(GapscopeError, match="requests"):
        report_of(store, "ample8", "fpm_sweep")


def test_bad_options_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["report", "ample8", "ample8-predicted", "--store", str(SAMPLES), "--out"]
    assert main([*asked, str(tmp_path / "x.pdf")]) == 2
    assert "ends in .html or .md" in capsys.readouterr().err
    assert main([*asked, str(tmp_path / "none" / "x.md")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_figure_travels_once_with_what_the_dark_theme_changes() -> None:
    light = {"data": [{"x": [1.0, float("nan")], "name": "</script><b>"}], "layout": {"a": [1, {"c": "#fff"}]}}
    dark = {"data": [{"x": [1.0, float("nan")], "name": "</script><b>"}], "layout": {"a": [1, {"c": "#000"}]}}
    text = figure_json(light, dark)
    assert "</script" not in text
    told = json.loads(text)
    assert told["data"] == [{"x": [1.0, None], "name": "</script><b>"}]
    assert told["dark"] == [[["layout", "a", 1, "c"], "#000"]]
    assert changes([1, 2], [1]) == [([], [1])]
    assert script_json("\u2028<") == '"\\u2028\\u003c"'
    assert jsonable([0.1 + 0.2, float("inf"), True, None, "x"]) == [0.3, None, True, None, "x"]


def test_a_section_that_cannot_be_made_is_said_and_the_others_go_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*_given: object) -> None:
        raise GapscopeError("The answer took longer than 30 s.")

    monkeypatch.setattr("dashboard.charts.requests.boundaries.boundaries", slow)
    monkeypatch.setattr("dashboard.charts.cache.cache.pool", slow)
    report = report_of(store, "ample8", "ample8-predicted")
    said = {section.name: " ".join(section.words) for section in report.sections}
    assert "is not in this report. The answer took longer than 30 s." in said["boundaries"]
    assert "KV pool over time: not in this report. The answer took longer than 30 s." in said["cache"]
    assert [section.name for section in report.sections] == SECTIONS[:-1]
