"""Every chart says how it is read, what its rows came from, and by which definitions a latency in it was taken."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import Open, run_id

from dashboard.charts.panel import how
from dashboard.charts.panel.reading import READING, reading
from dashboard.charts.style import ROLES
from dashboard.frame import Side
from dashboard.store import Store
from dashboard.view import PAGES
from engine.definitions import END_CONTENT, FIRST_SAMPLED, FIRST_VISIBLE, ROLE_CHUNK, TOKENS_USAGE
from engine.identity import Identity

FOLDER = Path(__file__).resolve().parents[2] / "dashboard"
ROLE = "candidate 2"
"""Stands for what a key says of a run."""


def keys(path: Path) -> set[str]:
    """The keys that a page, or a module of charts, gives to ``draw``."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: set[str] = set()
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func) in ("draw", "draw.draw"):
            found |= _values(call.args[1], tree)
    return found


def _values(node: ast.expr, tree: ast.Module) -> set[str]:
    if isinstance(node, ast.Constant):
        return {node.value}
    if isinstance(node, ast.JoinedStr):
        return {"".join(part.value if isinstance(part, ast.Constant) else ROLE for part in node.values)}
    assert isinstance(node, ast.Name), ast.unparse(node)
    found = {
        key
        for one in ast.walk(tree)
        if isinstance(one, ast.Assign) and [ast.unparse(target) for target in one.targets] == [node.id]
        for key in _values(one.value, tree)
    }
    for loop in ast.walk(tree):  # for state, key, title in (("unknown", "unknown", ...), ...)
        if isinstance(loop, ast.For) and isinstance(loop.target, ast.Tuple) and isinstance(loop.iter, ast.Tuple):
            names = [ast.unparse(one) for one in loop.target.elts]
            if node.id in names:
                found |= {ast.literal_eval(row.elts[names.index(node.id)]) for row in loop.iter.elts}
    assert found, f"the key {node.id} is nowhere assigned"
    return found


PLACES = {"what_if": [FOLDER / "charts" / "replays" / "what_if.py"]}
"""Modules beside a page that draw for it."""


@pytest.mark.parametrize("page", PAGES)
def test_every_chart_of_a_page_says_how_it_is_read(page: str) -> None:
    paths = [FOLDER / "pages" / f"{page}.py", *PLACES.get(page, ())]
    drawn = {key for path in paths for key in keys(path)}
    assert [key for key in sorted(drawn) if not reading(page, key)] == []
    unused = [key for where, key in READING if where == page and not any(_fits(one, key) for one in drawn)]
    assert unused == []


def _fits(key: str, name: str) -> bool:
    return key.startswith(name[:-1]) if name.endswith("*") else key == name


def test_no_chart_is_drawn_elsewhere() -> None:
    """Pages draw; a module that draws for one stands in PLACES."""
    known = {FOLDER / "charts" / "draw.py", *(path for paths in PLACES.values() for path in paths)}
    drawing = [path for path in (FOLDER / "charts").rglob("*.py") if keys(path) and path not in known]
    assert drawing == []


def test_a_reading_is_one_or_two_sentences() -> None:
    for place, words in READING.items():
        assert 20 <= len(words) <= 260, place
        assert words.rstrip().endswith("."), place
        assert "  " not in words, place
        assert place[0] in PAGES, place


def sides(store: Path) -> list[Side]:
    found = Store([store])
    names = ("ample8", "ample8-replay")
    return [Side(own, found.bundle(run_id(store, name))) for own, name in zip(ROLES, names, strict=False)]


def test_the_files_behind_rows_are_told_with_their_digests(paired: Path) -> None:
    own = sides(paired)
    sql = f"-- measured\n-- requests_x: requests.parquet of run {own[0].run_id}\nSELECT 1"
    manifest = json.loads((paired / own[0].run_id / "run.json").read_text())["files"]["requests.parquet"]
    (found,) = how.rests_on(sql, own)
    assert (found.run, found.file) == (own[0].run_id, "requests.parquet")
    assert (found.digest, found.rows) == (manifest["content"][:12], manifest["rows"])


def test_without_a_query_the_runs_stand_for_their_files(paired: Path) -> None:
    own = sides(paired)
    assert [(one.run, one.digest) for one in how.rests_on("", own)] == [(s.run_id, s.run_id[-12:]) for s in own]


def made(place: int, clock: str | None = "client", **rules: str) -> Side:
    """A side with these definitions, all of whose moments are of one clock."""
    identity = Identity()
    for name, rule in rules.items():
        identity.set("definitions", name, rule, "a test")
    moments = ("dispatched_ns", "first_visible_ns", "last_visible_ns")
    clocks = {f"requests.{name}": clock for name in moments if clock}
    return Side(ROLES[place], SimpleNamespace(identity=identity, manifest={"clocks": clocks}))


def plain(text: str) -> str:
    """A text without its escapes, as a reader sees it."""
    return text.replace("\\", "")


ALIKE = {"first_token": FIRST_VISIBLE, "end_of_latency": END_CONTENT, "token_source": TOKENS_USAGE}


def test_latencies_of_one_definition_need_no_chip() -> None:
    assert how.chips([made(0, **ALIKE), made(1, **ALIKE)], "TPOT (ms): share of requests") == []
    other_words = ALIKE | {"first_token": FIRST_SAMPLED}  # of the same class: the first content
    assert how.chips([made(0, **ALIKE), made(1, **other_words)], "TTFT (ms)") == []


def test_a_first_token_that_is_another_one_is_said_at_the_axis() -> None:
    pair = [made(0, **ALIKE), made(1, **ALIKE | {"first_token": ROLE_CHUNK})]
    (chip,) = how.chips(pair, "TTFT (ms): share of requests at or below")
    assert plain(chip).startswith(":orange-badge[first token: role chunk, not content")
    assert "replay" in chip
    assert how.chips(pair, "E2E (ms)") == []  # which does not rest on it
    assert how.chips(pair, "Input tokens") == []


def test_what_a_side_does_not_name_is_said() -> None:
    pair = [made(0, **ALIKE), made(1, first_token=FIRST_VISIBLE, end_of_latency=END_CONTENT)]
    (chip,) = how.chips(pair, "TPOT by input length")
    assert chip == ":gray-badge[divisor, output tokens: not named by replay]"


def test_another_clock_and_an_unknown_one_are_said() -> None:
    (chip, *_) = how.chips([made(0, **ALIKE), made(1, clock="engine", **ALIKE)], "TTFT, ms")
    assert plain(chip) == ":orange-badge[clock of dispatched: client or engine]"
    chips = how.chips([made(0, **ALIKE), made(1, clock=None, **ALIKE)], "E2E, ms")
    assert ":gray-badge[clock of last visible: not named by replay]" in chips


def test_the_title_of_a_chart_explains_it(opened: Open, paired: Path) -> None:
    app = opened(paired, "cohort")
    (helped,) = [one.help for one in app.markdown if one.value.startswith("**Lanes over time")]
    assert "gaps between bars are think time" in plain(helped)
