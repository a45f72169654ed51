"""What a page drew, told as Markdown: on every page, once each, and the verdict in one click."""

from __future__ import annotations

import html
from pathlib import Path

import pytest
import synthetic
from conftest import Open, run_id
from test_pages import plain, words

from dashboard.metrics import Estimator, Population, Window
from dashboard.report import as_html, as_markdown, gather
from dashboard.sides import frame_of
from dashboard.store import Store


@pytest.mark.parametrize("page", ["runs", "verdict", "identity", "percentiles", "cache_events", "what_if"])
def test_a_page_becomes_a_comment(opened: Open, paired: Path, page: str) -> None:
    app = opened(paired, page)
    shown = app.session_state["_shown"]
    text = shown.page_comment()
    assert text.startswith("**gapscope: ")
    assert "v=2" in text
    assert "nan" not in text.lower().split()
    assert "inf" not in text.lower().split()
    if shown.drawn:
        assert run_id(paired, "ample8") in text
        # What is a chart and a table as well stands there once.
        told = {key: one for key, one in shown.drawn.items() if f"{key}-table" not in shown.drawn}
        assert all(f"**{one.title.split()[0]}" in text for one in told.values())
    app.run()
    assert app.session_state["_shown"].page_comment() == text  # what is drawn again stands there once


def test_the_panel_of_the_bar_shows_it(opened: Open, paired: Path) -> None:
    app = opened(paired, "percentiles", metric="TPOT")
    assert not any("gapscope: Percentiles" in code.value for code in app.code)
    app.session_state["copy"] = True
    app.run()
    (text,) = [code.value for code in app.code if "gapscope: Percentiles" in code.value]
    assert "metric=tpot" in text.lower()
    assert "**TPOT (ms): share of requests at or below**" in text


def test_the_verdict_holds_headline_and_gates_alone(opened: Open, paired: Path) -> None:
    app = opened(paired, "verdict", gates="ttft.mean<=1000%")
    text = app.session_state["_shown"].verdict_comment()
    titles = [line for line in text.splitlines() if line.startswith("**")]
    assert titles[0] == "**gapscope: Verdict**"
    assert any("headline" in title for title in titles)
    assert len(titles) == 3
    app.session_state["copy"] = True
    app.run()
    (whole,) = [code.value for code in app.code if "gapscope: Verdict" in code.value]
    assert "1 of 1 gate holds." in whole
    assert "gates=ttft.mean" in whole
    assert "**Number by number**" in whole


def test_traces_are_offered_for_every_run(opened: Open, paired: Path) -> None:
    labels = [one.label for one in opened(paired, "passes").get("download_button")]
    assert [label for label in labels if label.startswith("Trace")] == ["Trace, measured", "Trace, replay"]
    labels = [one.label for one in opened(paired, "request", turn="c1/2").get("download_button")]
    assert [label for label in labels if label.startswith("Trace")] == ["Trace, measured", "Trace, replay"]


def test_the_report_page_says_what_it_writes(opened: Open, paired: Path) -> None:
    app = opened(paired, "report", gates="ttft.mean<=1%")
    assert [one.label for one in app.get("download_button")][:2] == ["HTML", "Markdown"]
    (command,) = [one.value for one in app.code if one.value.startswith("gapscope report")]
    assert run_id(paired, "ample8") in command
    assert "--gate 'ttft.mean<=1%'" in command
    claims = next(one.value for one in app.dataframe if "claim" in one.value)
    assert " of 1 gate hold" in claims["claim"][0]
    app.session_state["preview"] = True
    app.run()
    assert not app.exception
    (text,) = [one.value for one in app.code if one.value.startswith("# gapscope: ")]
    assert "## Limits: what was not shown" in text
    assert "Acceptance contract" in text


@pytest.mark.parametrize("slug", ["broken", "thin", "other-part"])
def test_reports_hold_runs_in_any_state(paired: Path, slug: str) -> None:
    store = Store([paired])
    scope = (Population("profile"), Estimator.LINEAR, Window.FIXED)
    report = gather(store, frame_of(store, run_id(paired, "ample8"), [run_id(paired, slug)], *scope))
    text, page = as_markdown(report), as_html(report)
    limits = " ".join(report.sections[-1].words)
    assert run_id(paired, slug) in text
    if slug == "broken":
        assert "failed the check" in limits
    if slug == "thin":
        assert "Not recorded" in limits or "not recorded" in limits
    if slug == "other-part":
        assert "Not like for like" in text
        assert 'class="comparison"' not in page  # gaps are withheld until that is acknowledged


def test_what_a_run_says_is_text_in_reports_and_comments(tmp_path: Path, opened: Open) -> None:
    evil = '<img src=x onerror="alert(1)"> | [a](http://e.org) @team'
    synthetic.write(tmp_path, "measured", "ample8", model__name=evil)
    synthetic.write(tmp_path, "replay", "other", speed=1.1, model__name="toy")
    store = Store([tmp_path])
    scope = (Population("profile"), Estimator.LINEAR, Window.FIXED)
    report = gather(store, frame_of(store, run_id(tmp_path, "ample8"), [run_id(tmp_path, "other")], *scope))
    page, text = as_html(report), as_markdown(report)
    assert "<img src=x" not in page
    assert html.escape(evil) in page
    assert "<img" not in text.replace("\\<", "")
    assert "http://e.org" not in text
    app = opened(tmp_path, "identity", r=run_id(tmp_path, "other"))
    told = app.session_state["_shown"].page_comment()
    assert "onerror" in told
    assert "<img" not in told.replace("\\<", "")
    assert "http://e.org" not in told


def test_the_report_page_shows_the_contract_row_by_row(opened: Open, paired: Path) -> None:
    # the replay is a tenth longer in everything: 20 % hold it, 1 % do not
    app = opened(paired, "report", gates="ttft.mean<=20% ttft.mean<=1%")
    assert not app.exception
    (table,) = [one.value for one in app.dataframe if "gate" in one.value]
    assert list(table["gate"]) == ["ttft.mean<=20%", "ttft.mean<=1%"]
    assert list(table["verdict_0"]) == ["pass", "fail"]
    assert "Acceptance contract: 1 of 2 gates hold" in plain(words(app))
    wrong = opened(paired, "report", gates="fast")
    assert "expected metric.statistic" in plain(wrong.error[0].value)
    assert "gate" not in [name for one in wrong.dataframe for name in one.value]
