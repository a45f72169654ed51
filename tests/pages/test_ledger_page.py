"""The ledger page: every hypothesis with what may follow, evidence that opens its view, lines that cannot be used."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import Open, run_id
from streamlit.testing.v1 import AppTest

from dashboard.hypotheses import FILE, record
from dashboard.view import View, from_link


def said(app: AppTest) -> str:
    kinds = ("markdown", "caption", "info", "warning", "error")
    return "\n".join(element.value for kind in kinds for element in app.get(kind)).replace("\\", "")


@pytest.fixture
def store(paired: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(paired, tmp_path / "store"))


def opened_one(store: Path, statement: str = "decode is priced too low") -> str:
    return record([store], "opened", statement=statement, prediction="the gap closes", layer="timing").id


def link(store: Path) -> str:
    return View("percentiles", {"m": run_id(store, "ample8"), "r": [run_id(store, "ample8-replay")]}).link("http://h")


def buttons(app: AppTest) -> set[str]:
    """Labels of the buttons of the only hypothesis, with those that are off in brackets."""
    own = [button for button in app.button if button.key and button.key.rpartition("-")[2].startswith("h")]
    return {f"({button.label})" if button.disabled else button.label for button in own}


def test_what_may_follow_is_offered(opened: Open, store: Path) -> None:
    own = opened_one(store)
    app = opened(store, "ledger")
    assert buttons(app) == {"Add evidence", "(Support)", "Retract"}
    assert "Support needs evidence" in app.button(key=f"supported-{own}").help
    record([store], "evidence", own, link=link(store), text="9 % low")
    assert buttons(app.run()) == {"Add evidence", "Support", "Retract"}
    record([store], "supported", own, residual="the tail")
    assert buttons(app.run()) == {"Add evidence", "Retract", "Open again"}
    assert "Unexplained: the tail" in said(app)
    record([store], "retracted", own, text="a warm run")
    assert buttons(app.run()) == {"Open again"}
    assert "Retracted because: a warm run" in said(app)
    assert "decode is priced too low" in said(app)
    assert not app.exception


def test_evidence_is_a_link_to_its_view(opened: Open, store: Path) -> None:
    own = opened_one(store)
    record([store], "evidence", own, link=link(store))
    absent = View("verdict", {"m": "gone-0123456789ab"}).link("http://h")
    record([store], "evidence", own, link=absent)
    app = opened(store, "ledger")
    urls = [button.proto.url for button in app.get("link_button")]
    assert [from_link(url).query() for url in urls] == [from_link(link(store)).query(), from_link(absent).query()]
    assert "not in this store: gone-0123456789ab" in said(app)


def test_the_status_chooses_and_the_counts_stay(opened: Open, store: Path) -> None:
    record([store], "retracted", opened_one(store, "one"), text="no")
    opened_one(store, "two")
    app = opened(store, "ledger", status="retracted")
    assert "1 open, 0 supported, 1 retracted" in said(app)
    assert "**one**" in said(app)
    assert "**two**" not in said(app)
    assert "No hypothesis has this status" in said(opened(store, "ledger", status="supported"))


def test_lines_that_cannot_be_used_are_said_and_the_others_shown(opened: Open, store: Path) -> None:
    opened_one(store)
    with (store / FILE).open("a") as file:
        file.write("{\n")
    app = opened(store, "ledger")
    assert "cannot be used, left as they are: 1" in said(app)
    assert f"store/{FILE} line 2" in said(app)
    assert "decode is priced too low" in said(app)


def test_a_view_of_a_newer_gapscope_is_said_and_not_opened(opened: Open, store: Path) -> None:
    own = opened_one(store)
    row = f'{{"id":"{own}","event":"evidence","time":"2099-01-01T00:00:00Z","view":"verdict?v=9&m=x-0123456789ab"}}'
    with (store / FILE).open("a") as file:
        file.write(row + "\n")
    app = opened(store, "ledger")
    assert "version 9" in said(app)
    assert not app.get("link_button")


def test_at_most_twenty_are_drawn_and_that_is_said(opened: Open, store: Path) -> None:
    for k in range(23):
        opened_one(store, f"claim {k}")
    app = opened(store, "ledger")
    assert sum(button.label == "Add evidence" for button in app.button) == 20
    assert "The 20 that changed last of 23" in said(app)


HOSTILE = "[x](http://evil.example) <b>www.evil.example</b>\n\n# **head** `code` :red[y]"


def test_what_people_write_is_neither_link_nor_markup(opened: Open, store: Path) -> None:
    own = record([store], "opened", statement=HOSTILE, prediction=HOSTILE, residual=HOSTILE).id
    record([store], "evidence", own, link=link(store), text=HOSTILE)
    record([store], "retracted", own, text=HOSTILE)
    app = opened(store, "ledger")
    raw = "\n".join(element.value for kind in ("markdown", "caption") for element in app.get(kind))
    for sign in ("](http", "http://", "www.", "<b>", "\n# ", "**head**", ":red["):
        assert sign not in raw, sign


def test_the_view_that_was_looked_at_is_remembered(opened: Open, store: Path) -> None:
    app = opened(store, "percentiles", metric="TPOT", curve="tail")
    seen = app.session_state["_seen"]
    assert (seen.page, seen["metric"], seen["curve"], seen["m"]) == (
        "percentiles",
        "tpot",
        "tail",
        run_id(store, "ample8"),
    )
