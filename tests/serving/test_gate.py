"""The gate of OIDC: no run, no name and no control before a login, and all of them after it."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pages"))

import synthetic

from dashboard.serving import binding, granted

ENTRY = Path(synthetic.__file__).with_name("entry.py")


class Account:
    """What Streamlit tells of the account at the provider."""

    def __init__(self, **claims: Any) -> None:
        self.claims = claims
        self.is_logged_in = bool(claims)

    def to_dict(self) -> dict[str, Any]:
        return self.claims


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    synthetic.pair(tmp_path)
    monkeypatch.setenv("GAPSCOPE_STORE", str(tmp_path))
    found = binding.bind("0.0.0.0", 8501, ["gap.example"], "oidc", users=["@lab.example"])
    monkeypatch.setenv(binding.VARIABLE, binding.to_environment(found))

    def open_(account: Account) -> AppTest:
        monkeypatch.setattr(st, "user", account)
        return AppTest.from_file(str(ENTRY), default_timeout=60).run()

    return open_


@pytest.mark.parametrize(
    ("account", "words"),
    [
        (Account(), "Log in to see this gapscope."),
        (Account(email="eve@other.example", email_verified=True), "This account may not see this gapscope."),
        (Account(email="ann@lab.example", iat=1.0), "This login is over: log in again."),
    ],
)
def test_nothing_is_shown_before(opened: Any, account: Account, words: str) -> None:
    page = opened(account)
    assert not page.exception
    assert [one.value for one in page.title] == ["gapscope"]
    assert [one.value for one in page.markdown] == [words]
    assert [one.label for one in page.button] == ["Log in"]
    assert not page.selectbox
    assert "ample8" not in repr(page.main)


def test_the_page_is_shown_after(opened: Any) -> None:
    page = opened(Account(email="ann@lab.example", email_verified=True))
    assert not page.exception
    assert page.selectbox
    assert "Log out" in [one.label for one in page.sidebar.button]


@pytest.mark.parametrize("page", sorted((ENTRY.parents[2] / "dashboard" / "pages").glob("*.py")), ids=lambda p: p.stem)
def test_every_page_goes_through_the_entry_first(page: Path) -> None:
    """Streamlit may run a page on its own, once: before it shows anything it turns to the entry, where the gate is."""
    calls = [
        ast.unparse(node.value)
        for node in ast.parse(page.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Expr | ast.Assign) and isinstance(node.value, ast.Call | ast.Tuple)
    ]
    enters = ("widgets.entered(", "widgets.frame(", "source.source_frame(", "tool_frame(")  # each begins with entered()
    assert calls[0].removeprefix("(").startswith(enters), calls[0]


def test_uploads_are_of_sessions_that_were_let_in() -> None:
    granted.grant("ours")
    assert granted.is_granted("ours")
    assert not granted.is_granted("theirs")
    granted.withdraw("ours")
    assert not granted.is_granted("ours")
