"""A view and its link are the same thing, and an old link stays readable."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard import view
from dashboard.view import PAGES, PARAMS, SHARED, Param, View, from_link, from_query, params_of
from engine.errors import GapscopeError

SOURCES = ["analytic:h100-sxm", "anchor:fpm_sweep", "table:qwen3#2", "anchor:a.b"]
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
        return st.sampled_from(["", "3.-1", "12.7"])
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
        expected = shown[param.name]
        assert again[param.name] == (list(expected) if param.type is list else expected), param.name


def test_a_link_writes_every_value_and_its_version() -> None:
    query = dict(View("percentiles", {"m": M, "r": [R]}).query())
    assert query["v"] == "1"
    for param in params_of("percentiles"):
        assert param.type is list or param.name in query, param.name
    assert not any(name.startswith("k_") for name in dict(View("what_if").query()))


def test_links_of_the_first_version_stay_readable() -> None:
    """Never change these: they are in people's review comments."""
    shown = from_link(
        f"http://127.0.0.1:8501/percentiles?v=1&m={M}&r={R}&pop=matched+source-turns&tol=16&phase=warm-up"
        "&est=nearest+rank&win=observed+span&ack=true&metric=TPOT&curve=tail&pct_x=linear&by=turn+depth&top=5"
    )
    assert shown.ignored == ()
    assert dict(shown.values) == {
        "m": M, "r": [R], "pop": "matched", "tol": 16, "phase": "warmup", "est": "nearest_rank", "win": "observed_span",
        "ack": True, "metric": "tpot", "curve": "tail", "pct_x": "linear", "by": "turn_index", "top": 5,
    }  # fmt: skip


def test_a_choice_is_read_by_its_name_and_by_its_words() -> None:
    for text in ("matched", "matched source-turns"):
        assert from_query("verdict", {"pop": [text]})["pop"] == "matched"


def test_no_candidate_is_not_the_default_candidate() -> None:
    assert ("r", "") in View("verdict", {"r": []}).query()
    assert from_link(View("verdict", {"r": []}).link())["r"] == []


def test_the_default_page_lives_at_the_root() -> None:
    assert View("verdict").link("http://h/").startswith("http://h/?v=1")
    assert from_link("http://h/?v=1").page == "verdict"


@pytest.mark.parametrize("text", ["2", "17", "999"])
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

    monkeypatch.setattr(view, "VERSION", 3)
    monkeypatch.setattr(view, "UPGRADERS", {1: first, 2: second})
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
