"""What leaves a page: Markdown for a review comment, and files of exactly the rows shown."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dashboard.charts import figures, style
from dashboard.charts.answer import Answer, Column
from dashboard.charts.figures import Axis
from dashboard.charts.panel.image import captioned, image_options, plain_strip
from dashboard.compare import pair_label
from dashboard.frame import Frame, Side, is_whole, strip_lines
from dashboard.metrics import Estimator, Population, Window
from dashboard.queries.identity import identity
from dashboard.sharing.comment import Drawn, Shown, comment, table_of
from dashboard.sharing.files import about, as_csv, as_parquet
from dashboard.sharing.plain import literal, markdown_table, shown
from dashboard.store import Store

SAMPLES = Path(__file__).parents[2] / "sample_runs"
EVIL = "x | y <img src=//e.org/a> ![p](http://e.org) **b** `c` @team #12 www.e.org a~~b~~ \\| $m$ &lt; _i_\n\n# h"


@pytest.fixture(scope="module")
def store() -> Store:
    return Store([SAMPLES])


def frame_of(store: Store) -> Frame:
    measured, replay = (store.find(name).run_id for name in ("ample8", "ample8-predicted"))
    label, diffs = pair_label(store, measured, replay), identity(store, measured, replay).rows
    sides = Side(style.ROLES[0], store.bundle(measured)), Side(style.ROLES[1], store.bundle(replay), label, diffs, 0.9)
    return Frame(sides[0], sides[1:], Population("profile"), Estimator.LINEAR, Window.FIXED)


def cells(line: str) -> list[str]:
    """The cells of a line of a GitHub table: split at each bar that no backslash stands before."""
    assert line.startswith("| ")
    assert line.endswith(" |")
    found = re.split(r"(?<!\\)(?:\\\\)*\|", line)
    return found[1:-1]


def markup(text: str) -> str:
    """What is left of a text for Markdown to read, when escaped characters are taken out."""
    return re.sub(r"\\[!-/:-@\[-`{-~]", "", text)


def test_markdown_has_units_in_headers_signs_and_a_dash_for_unknown() -> None:
    rows = pa.table({"metric": ["TTFT"], "gap": [5.04], "n": [None]})
    columns = [Column("metric", "Metric"), Column("gap", "Gap (%)", "%+.1f"), Column("n", "n", "%d")]
    assert markdown_table(rows, columns).splitlines() == [
        "| Metric | Gap (%) | n |",
        "|---|---:|---:|",
        "| TTFT | +5.0 | – |",
    ]
    assert shown(0.8173, Column("x", "x", "percent")) == "81.7 %"
    assert [shown(value, Column("x", "x", "%.1f")) for value in (float("nan"), float("inf"))] == ["–", "–"]


def test_text_of_a_run_is_no_markup_and_no_link() -> None:
    left = markup(literal(EVIL))
    assert not re.search(r"[`*_\[\]<>|~&$\\]", left)
    assert not re.search(r"://|www\.|@|#\d", left.replace("\u2060", "§").replace(":§//", "").replace("§@", ""))
    assert "\n" not in literal(EVIL)
    assert literal("plain words, -4.1% (8 of 9)") == "plain words, -4.1% (8 of 9)"


def test_a_table_keeps_its_shape_whatever_a_run_says() -> None:
    columns = [Column("who", EVIL), Column("n", "n", "%d")]
    head, rule, *body = markdown_table(pa.table({"who": [EVIL, "", None], "n": [1, 2, 3]}), columns).splitlines()
    assert rule == "|---|---:|"
    assert [len(cells(line)) for line in (head, *body)] == [2, 2, 2, 2]
    assert len(body) == 3


def test_a_table_is_cut_and_says_so() -> None:
    columns = [Column("n", "n", "%d"), Column("reason", "Rests on")]
    said = table_of(Answer(pa.table({"n": list(range(40)), "reason": ["r"] * 40}), columns=columns))
    assert said.splitlines()[2:4] == ["| 0 |", "| 1 |"]
    assert said.endswith("| 14 |\n\n15 of 40 rows.")
    assert "cut" not in table_of(Answer(pa.table({"n": [1]}), columns=columns[:1]))
    assert table_of(Answer(pa.table({"n": [1]}), columns=columns[:1], truncated=True)).endswith("cut there.")
    assert table_of(Answer(pa.table({}), not_recorded="Not recorded: passes.")) == "Not recorded: passes."


def test_a_comment_has_verdict_link_identity_and_rows(store: Store) -> None:
    frame = frame_of(store)
    answer = Answer(pa.table({"n": [7]}), columns=[Column("n", "n", "%d")], n={frame.measured.run_id: 662})
    page = Shown(store, "Percentiles", lambda: "http://127.0.0.1:1/percentiles?v=2&m=a", lambda: "ttft.mean<=1%")
    page.tell(Drawn(frame, "a", "first", answer))
    page.tell(Drawn(frame, "b", "second", answer))
    page.tell(Drawn(frame, "a", "first again", answer))  # a fragment that draws it anew
    parts = page.page_comment().strip().split("\n\n")
    replay = frame.replays[0]
    assert parts[0] == "**gapscope: Percentiles**"
    # README: TTFT mean +5.7 %; 662 and 635 successes
    assert parts[1].startswith(f"{replay.run_id} (post-result exploratory): Over 662 measured and 635 replayed")
    assert "TTFT mean +5.7%" in parts[1]
    assert "\n" not in parts[1]
    assert "0 of 1 gate holds; this does not: ttft.mean\\<=1%." in parts[1]
    assert parts[2] == "[This view](http://127.0.0.1:1/percentiles?v=2&m=a)"
    table = parts[3].splitlines()
    assert [len(cells(line)) for line in (table[0], *table[2:])] == [5, 5, 5]
    assert f"{replay.differing} differ" in table[3]
    assert f", {replay.unknown} unknown" in table[3]
    assert [part for part in parts if part.startswith("**")][1:] == ["**first again**", "**second**"]
    assert parts[-1].splitlines()[2] == "| 7 |"
    chart = page.chart_comment(page.drawn["b"])
    assert chart.startswith(replay.run_id)
    assert "| 662 |" in chart
    assert "first" not in chart


def test_an_unlike_pair_has_no_gaps_in_its_verdict(store: Store) -> None:
    frame = frame_of(store)
    (replay,) = frame.replays
    diffs = tuple(replace(one, state="differs") if one.field == "part" else one for one in replay.diffs)
    frame = replace(frame, replays=(replace(replay, diffs=diffs),))
    text = Shown(store, "Verdict", str, str).chart_comment(Drawn(frame, "a", "t", Answer(pa.table({"n": [1]}))))
    assert text.startswith(f"{frame.replays[0].run_id} (post-result exploratory): Not like for like (")
    assert "gaps are" in text
    assert "TTFT mean" not in text


def test_a_bad_contract_is_said(store: Store) -> None:
    frame = frame_of(store)
    page = Shown(store, "Verdict", str, lambda: "be good")
    assert "No verdict: Gate 'be'" in page.chart_comment(Drawn(frame, "a", "t", Answer(pa.table({"n": [1]}))))


def test_csv_has_units_in_headers_and_every_row_unrounded() -> None:
    count = 1200  # more than the 500 that a page shows
    rows = pa.table(
        {
            "kind": pa.array(["a", None] * (count // 2)).dictionary_encode(),
            "ttft_ms": pa.array([1 / 3, float("nan"), float("inf"), None] * (count // 4)),
            "members": pa.array([[1, 2], [], None, [3]] * (count // 4)),
            "words": pa.array(["", None, 'say "x",\n', "="] * (count // 4)),
        }
    )
    data = as_csv(rows, [Column("ttft_ms", "TTFT (ms)", "%.1f")])
    lines = list(csv.reader(io.StringIO(data.decode())))
    assert lines[0] == ["kind", "TTFT (ms)", "members", "words"]
    assert len(lines) == 1 + count
    assert lines[1] == ["a", "0.3333333333333333", "[1, 2]", ""]
    assert lines[2] == ["", "", "[]", ""]
    assert lines[3] == ["a", "", "", 'say "x",\n']
    text = data.decode().splitlines()
    assert text[1].endswith(',""')
    assert text[2].endswith(",")
    assert not re.search(r"nan|inf", data.decode(), re.IGNORECASE)


def test_parquet_says_what_its_rows_are(store: Store) -> None:
    frame = frame_of(store)
    rows = pa.table({"gap": [1 / 3, float("inf"), None], "members": [[1], [], None]})
    answer = Answer(rows, "SELECT 1", [Column("gap", "Gap (%)", "%+.1f")], {frame.measured.run_id: 3}, "a definition")
    footer = about(frame, "Gaps", answer, None, "http://10.0.0.7:8501/percentiles?v=2&m=ample8-3167a9060ea5")
    table = pq.read_table(io.BytesIO(as_parquet(rows, answer.columns, footer)))
    assert table.to_pydict() == {"gap": [1 / 3, None, None], "members": [[1], [], None]}
    assert table.schema.field("gap").metadata[b"label"] == b"Gap (%)"
    said = json.loads(table.schema.metadata[b"gapscope"])
    assert [run["run_id"] for run in said["runs"]] == [side.run_id for side in frame.sides]
    assert [run["n"] for run in said["runs"]] == [3, None]
    assert (said["population"], said["sql"], said["rows"]) == ("profile", "SELECT 1", 3)
    assert said["link"].startswith("/percentiles?")
    assert "10.0.0.7" not in json.dumps(said)


def test_a_picture_holds_title_units_and_identity(store: Store) -> None:
    frame = frame_of(store)
    figure = figures.bars(["a"], [(style.ROLES[0], "m", [1.0])], Axis(""), Axis("gap, %"))
    lines = plain_strip(strip_lines(frame, {frame.measured.run_id: 662}))
    assert lines[0] == f"━ {frame.measured.run_id} measured · n 662"
    assert not any(re.search(r"\*\*|:\w+\[|\\", line) for line in lines)
    picture = captioned(figure, "Gap <b>, %", lines, 690)
    title = picture["layout"]["title"]
    assert title["text"] == "Gap &lt;b&gt;, %"
    shown_lines = title["subtitle"]["text"].split("<br>")
    assert " ".join(shown_lines).startswith(lines[0])
    assert max(map(len, shown_lines)) <= 112
    more = picture["layout"]["height"] - figure["layout"]["height"]
    assert more == 30 + 15 * len(shown_lines) + 18 == picture["layout"]["margin"]["t"] - figure["layout"]["margin"]["t"]
    assert "title" not in figure["layout"]
    options = image_options("gaps", "svg", frame.sides)
    assert options["format"] == "svg"
    assert frame.measured.run_id in options["filename"]


def test_a_comment_of_a_page_without_charts_is_its_link(store: Store) -> None:
    assert Shown(store, "Runs", lambda: "/runs?v=2").page_comment() == "**gapscope: Runs**\n\n[this view](/runs?v=2)\n"
    assert comment("", frame_of(store), [], "", []).startswith("| run | is |")


def test_a_table_that_a_verdict_rests_on_is_whole() -> None:
    answer = Answer(pa.table({"n": list(range(40))}), columns=[Column("n", "n", "%d")])
    assert table_of(answer, None).splitlines()[-1] == "| 39 |"


def test_a_strip_of_the_whole_capture_names_no_population(store: Store) -> None:
    frame = frame_of(store)
    (line,) = [one for one in strip_lines(frame, {}, whole=is_whole("Pool, whole capture")) if "population" in one]
    assert line.startswith("population: whole capture, every phase · ")
    (line,) = [one for one in strip_lines(frame, {}, whole=is_whole("Pool")) if "population" in one]
    assert frame.population.words in line
