"""A view and its link are the same thing, and an old link stays readable."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard import view
from dashboard.view import PAGES, PARAMS, SHARED, Param, View, from_link, from_query, params_of
from dashboard.view.versions import spelled_out
from engine.errors import GapscopeError

SOURCES = ["analytic:h100-sxm", "anchor:fpm_sweep", "table:qwen3#2", "anchor:a.b"]
LINKS = Path(__file__).parent / "golden" / "links.json"
M, R = "ample8-0123456789ab", "ample8_replay-fedcba987654"


def values_of(param: Param) -> st.SearchStrategy[Any]:
    if param.type is list:
        some = param.choices or ([M, R, "tight8-00000000000a"] if param.pattern is not view.SOURCE_NAME else SOURCES)
        return st.lists(st.sampled_from(some), max_size=int(param.high or 4), unique=True)
    if param.choices:
        return st.sampled_from(param.choices)
    if param.type is bool:
        return st.booleans()
    if param.type is int:
        return st.integers(int(param.low or 0), int(min(param.high or 1e6, 1e6)))
    if param.type is float:
        return st.floats(param.low or 0, min(param.high or 1e6, 1e6), allow_nan=False)
    if param.pattern is view.RUN_ID:
        return st.sampled_from(["", M, R])
    if param.pattern is not None:
        return st.sampled_from([text for text in ("", "3.-1", "12.7") if not text or param.pattern.fullmatch(text)])
    return st.text(max_size=30)


@st.composite
def views(draw: st.DrawFn) -> View:
    page = draw(st.sampled_from(sorted(PAGES)))
    chosen = draw(st.lists(st.sampled_from(params_of(page)), unique_by=lambda param: param.name))
    return View(page, {param.name: draw(values_of(param)) for param in chosen})


@given(views())
def test_a_link_restores_the_view(shown: View) -> None:
    again = from_link(shown.link("http://127.0.0.1:8501"))
    assert again.page == shown.page
    assert again.ignored == ()
    for param in params_of(shown.page):
        told, expected = again[param.name], shown[param.name]
        assert (list(told) == list(expected)) if param.type is list else (told == expected), param.name


def test_a_link_says_its_version_and_what_differs_from_the_defaults() -> None:
    shown = View("percentiles", {"m": M, "r": [R], "metric": "tpot", "pop": "complete", "top": 10, "pin": False})
    assert shown.query() == [("v", "2"), ("m", M), ("r", R), ("metric", "TPOT")]
    assert not any(name.startswith("k_") for name in dict(View("what_if").query()))


@pytest.mark.parametrize("kept", json.loads(LINKS.read_text()), ids=lambda kept: f"v{kept['version']}-{kept['page']}")
def test_links_of_every_version_stay_readable(kept: dict[str, Any]) -> None:
    """Never change what is in that file: such links are in people's review comments. New versions add theirs."""
    shown = from_link(kept["link"])
    assert parse_qs(urlsplit(kept["link"]).query)["v"] == [str(kept["version"])]
    assert shown.ignored == ()
    assert shown.page == kept["page"]
    assert {name: shown[name] for name in kept["values"]} == kept["values"]


def test_links_of_every_version_are_kept() -> None:
    kept = [link["version"] for link in json.loads(LINKS.read_text())]
    assert set(kept) == set(range(1, view.VERSION + 1))
    assert set(view.UPGRADERS) == set(range(1, view.VERSION))
    assert set(view.DEFAULTS) == set(range(2, view.VERSION + 1))


def test_a_link_of_the_present_version_is_written_as_it_is_kept() -> None:
    present = [kept for kept in json.loads(LINKS.read_text()) if kept["version"] == view.VERSION]
    for kept in present:
        shown = from_link(kept["link"])
        assert shown.link("http://127.0.0.1:8501") == kept["link"]


def test_a_default_changes_only_with_a_version() -> None:
    """A parameter that is new joins the table; one that changed needs a version (dashboard/view/versions.py)."""
    frozen = view.DEFAULTS[view.VERSION]
    present = {p.name: list(p.default) if p.type is list else p.default for p in PARAMS.values() if not p.by_data}
    assert present == frozen


def test_what_has_a_default_of_its_own_on_a_page_is_always_in_a_link() -> None:
    """A control whose default is chosen from the data says its value: another store would choose another."""
    folder = Path(view.__file__).parents[1]
    calls = [
        node
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("control", "widgets.control")
    ]
    named = {
        ast.literal_eval(call.args[0])
        for call in calls
        if any(word.arg == "default" for word in call.keywords) and isinstance(call.args[0], ast.Constant)
    }
    assert {"m", "r", "conv", "turn", "base", "fit", "tools", "src"} <= named
    assert [name for name in sorted(named) if not PARAMS[name].by_data] == []


def test_spelled_out_defaults_hold_a_link_when_a_default_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = view.DEFAULTS[2] | {"est": "nearest_rank", "kind": ["measured"]}
    monkeypatch.setattr("dashboard.view.link.VERSION", 3)
    monkeypatch.setitem(view.DEFAULTS, 3, changed)
    monkeypatch.setitem(view.UPGRADERS, 2, spelled_out(2))
    monkeypatch.setitem(PARAMS, "est", replace(PARAMS["est"], default="nearest_rank"))
    assert from_link(f"http://h/runs?v=2&m={M}&r=")["est"] == "linear"
    assert from_link(f"http://h/runs?v=2&m={M}&r=")["kind"] == []
    assert from_link(f"http://h/runs?v=1&m={M}&r=")["est"] == "linear"
    assert from_link(f"http://h/runs?v=3&m={M}&r=")["est"] == "nearest_rank"


def test_a_choice_is_read_by_its_name_and_by_its_words() -> None:
    for text in ("matched", "matched source-turns"):
        assert from_query("verdict", {"pop": [text]})["pop"] == "matched"


def test_no_candidate_is_not_the_default_candidate() -> None:
    assert ("r", "") in View("verdict", {"r": []}).query()
    assert from_link(View("verdict", {"r": []}).link())["r"] == []


def test_the_default_page_lives_at_the_root() -> None:
    assert View("verdict").link("http://h/") == "http://h/?v=2"
    assert from_link("http://h/?v=1").page == "verdict"


@pytest.mark.parametrize("text", ["3", "17", "999"])
def test_a_newer_link_is_refused_with_both_versions(text: str) -> None:
    with pytest.raises(GapscopeError, match=rf"version {text}.*up to version {view.VERSION}"):
        from_query("runs", {"v": [text]})


@pytest.mark.parametrize("text", ["0", "-1", "x", "", "1.5"])
def test_a_version_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(GapscopeError, match="expected a whole number"):
        from_query("runs", {"v": [text]})


def test_upgraders_run_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def first(query: dict[str, list[str]]) -> dict[str, list[str]]:
        return {"m" if name == "measured" else name: texts for name, texts in query.items()}

    def second(query: dict[str, list[str]]) -> dict[str, list[str]]:
        return {**query, "phase": ["warm-up" if text == "warm" else text for text in query.get("phase", ["profile"])]}

    monkeypatch.setattr("dashboard.view.link.VERSION", 3)
    monkeypatch.setattr("dashboard.view.link.UPGRADERS", {1: first, 2: second})
    shown = from_query("verdict", {"v": ["1"], "measured": [M], "phase": ["warm"]})
    assert (shown["m"], shown["phase"]) == (M, "warmup")
    assert from_query("verdict", {"v": ["3"], "phase": ["warm"]})["phase"] == "profile"


def test_values_that_cannot_be_used_are_left_out_and_named() -> None:
    shown = from_query("percentiles", {"top": ["-3"], "metric": ["nonsense"], "colour": ["red"], "curve": ["tail"]})
    assert dict(shown.values) == {"curve": "tail"}
    assert len(shown.ignored) == 3


@pytest.mark.parametrize(("text", "value"), [("1e3", 1000), ("8.0", 8), ("+7", 7), ("007", 7)])
def test_a_whole_number_is_read_in_every_spelling(text: str, value: int) -> None:
    shown = from_query("what_if", {"k_lanes": [text]})
    assert shown.ignored == ()
    assert shown["k_lanes"] == value


@pytest.mark.parametrize("text", ["1.5", "1e400", "nan", "", "ten", "--3"])
def test_what_is_no_whole_number_is_named(text: str) -> None:
    shown = from_query("what_if", {"k_lanes": [text]})
    assert "k_lanes" not in shown.values
    assert len(shown.ignored) == 1


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../../runs/ample8-0123456789ab", "C:\\runs", "ample8-0123456789ab/.."]
)
def test_no_path_passes_for_a_run(path: str) -> None:
    shown = from_query("verdict", {"m": [path], "r": [path]})
    assert "m" not in shown.values
    assert "r" not in shown.values


def test_at_most_four_candidates() -> None:
    texts = [f"run{index}-00000000000{index}" for index in range(6)]
    assert from_query("verdict", {"r": texts})["r"] == texts[:4]


def test_a_page_ignores_what_belongs_to_another_silently() -> None:
    shown = from_query("runs", {"metric": ["TPOT"], "m": [M]})
    assert shown.ignored == ()
    assert dict(shown.values) == {"m": M}


def test_an_unknown_page_names_those_that_exist() -> None:
    with pytest.raises(GapscopeError, match="percentiles"):
        from_link("http://h/nowhere?v=1")


def test_every_parameter_has_an_owner_that_exists() -> None:
    for param in PARAMS.values():
        assert param.owner in (SHARED, *PAGES), param.name
        if param.choices and param.type is str:
            assert param.default in param.choices, param.name
            words = [param.say(choice) for choice in param.choices]
            assert len(set(words)) == len(words), param.name


def test_a_candidate_too_many_is_named() -> None:
    found = from_query("verdict", {"v": ["2"], "m": [M], "r": [f"run{n}-0123456789ab" for n in range(5)]})
    assert found["r"] == [f"run{n}-0123456789ab" for n in range(4)]
    assert found.ignored == ("r=run4-0123456789ab: more than the 4 of 'Replay, or up to four candidates'",)
