"""Figures are dictionaries: colours by role, units on axes, few points, small arrays."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import plotly.graph_objects as go
import pyarrow as pa
import pytest

from dashboard.charts import figures, style
from dashboard.charts.answer import Column, in_units
from dashboard.charts.figures import Axis, Series
from dashboard.charts.passes.passes import cell_name, cell_of
from dashboard.compare.contract import parse_gates
from dashboard.frame import escape
from dashboard.metrics import Estimator
from dashboard.samples import Sample
from engine.errors import GapscopeError


def sample(values: np.ndarray) -> Sample:
    return Sample(np.sort(values.astype(float)), np.zeros(len(values), np.int64), 0, "")


RANDOM = np.random.default_rng(7)
LARGE = [
    (style.ROLES[0], "measured", sample(RANDOM.lognormal(5, 1, 100_000))),
    (style.ROLES[1], "replay", sample(RANDOM.lognormal(5.1, 1, 80_000))),
]
X = Axis("TTFT, ms", log=True)


@pytest.mark.parametrize("dark", [False, True])
def test_the_two_sides_differ_by_colour_and_by_dash(dark: bool) -> None:
    left, right = figures.ecdf(LARGE, X, dark=dark)["data"]
    assert left["line"]["color"] == ("#56B4E9" if dark else "#0072B2")
    assert right["line"]["color"] == ("#E69F00" if dark else "#D55E00")
    assert (left["line"]["dash"], right["line"]["dash"]) == ("solid", "dash")


def test_every_role_has_its_own_colours_dash_and_marker() -> None:
    for facet in ("light", "dark", "dash", "symbol", "word"):
        assert len({getattr(role, facet) for role in style.ROLES}) == 5, facet


@pytest.mark.parametrize("build", [figures.ecdf, figures.tail])
def test_a_curve_over_many_values_stays_small(build) -> None:
    figure = build(LARGE, X)
    for trace in figure["data"]:
        assert len(trace["x"]) <= 500
        assert trace["x"].dtype == trace["y"].dtype == np.float32
    assert len(go.Figure(figure).to_json()) < 60_000
    assert figure["layout"]["xaxis"]["title"]["text"] == "TTFT, ms"


def test_the_ecdf_of_four_values_has_their_steps() -> None:
    (trace,) = figures.ecdf([(style.ROLES[0], "m", sample(np.array([4.0, 1.0, 2.0, 2.0])))], X)["data"]
    assert list(trace["x"]) == [1, 2, 2, 4]
    assert list(trace["y"]) == [0.25, 0.5, 0.75, 1.0]
    assert trace["line"]["shape"] == "hv"


def test_the_tail_leaves_the_last_value_out_as_nothing_lies_above_it() -> None:
    (trace,) = figures.tail([(style.ROLES[0], "m", sample(np.array([1.0, 2.0, 3.0, 4.0])))], X)["data"]
    assert list(trace["y"]) == [0.75, 0.5, 0.25]


def test_an_empty_side_draws_no_line() -> None:
    empty = (style.ROLES[1], "replay", sample(np.empty(0)))
    assert len(figures.ecdf([LARGE[0], empty], X)["data"]) == 1
    assert len(figures.percentile_curve([empty], X, Estimator.LINEAR)["data"]) == 0


def test_a_log_axis_has_plain_ticks_and_its_range_in_powers() -> None:
    layout = Axis("ms", log=True, range=(1, 1000)).layout(False)
    assert layout["range"] == [0.0, 3.0]
    assert "1,000" in layout["ticktext"]
    assert len(layout["tickvals"]) == len(layout["ticktext"])


def test_small_multiples_are_one_figure_with_one_legend() -> None:
    x = np.arange(5.0)
    panel = figures.lines([Series(style.ROLES[0], "m", x, x), Series(style.ROLES[1], "r", x, x)], Axis("s"), Axis("ms"))
    figure = figures.small_multiples([(name, panel) for name in "abcd"], columns=2)
    assert len(figure["data"]) == 8
    assert [trace["showlegend"] for trace in figure["data"]] == [True, True] + [False] * 6
    assert {trace["xaxis"] for trace in figure["data"]} == {"x", "x2", "x3", "x4"}
    go.Figure(figure)


def test_a_legend_of_any_height_stands_above_the_titles_of_its_panels() -> None:
    x = np.arange(5.0)
    panel = figures.lines([Series(role, role.name, x, x) for role in style.ROLES], Axis("s"), Axis("ms"))
    for count, columns in ((3, 3), (6, 3), (5, 1)):
        layout = figures.small_multiples([("title", panel)] * count, columns=columns, height=200)["layout"]
        plot = layout["height"] - layout["margin"]["t"] - layout["margin"]["b"]
        assert (layout["legend"]["y"], layout["legend"]["yanchor"]) == (1, "bottom")  # its lower edge: it grows upwards
        tops = [note["y"] + 18 / plot for note in layout["annotations"]]  # words of 13 pixels on the top of their panel
        assert max(tops) <= 1
        ends = sorted({tuple(axis["domain"]) for name, axis in layout.items() if name.startswith("yaxis")})
        assert ends[0][0] == pytest.approx(0.0, abs=1e-9)
        assert all(low < high for low, high in ends)
        assert all(left[1] < right[0] for left, right in pairwise(ends))


def test_a_gantt_is_one_trace_per_side_with_a_break_after_each_span() -> None:
    lane, start, end = np.array([0.0, 1.0]), np.array([0.0, 2.0]), np.array([1.0, 3.0])
    figure = figures.gantt([(style.ROLES[0], "m", lane, start, end)], Axis("s"), Axis("lane"))
    (trace,) = figure["data"]
    assert list(trace["x"][:2]) == [0, 1]
    assert np.isnan(trace["x"][2])
    assert np.isnan(trace["y"][5])


def test_a_heat_map_diverges_around_zero_and_can_be_clicked() -> None:
    figure = figures.heat(["a"], ["b"], np.array([[0.1]]), Axis("x"), Axis("y"), legend="error", limit=0.2)
    assert (figure["data"][0]["zmin"], figure["data"][0]["zmid"], figure["data"][0]["zmax"]) == (-0.2, 0, 0.2)
    handle = figures.handles(["a"], ["b"], ["3.4"], ["words"])
    assert handle["customdata"] == ["3.4"]
    go.Figure({"data": [*figure["data"], handle]})


def test_cells_are_named_by_the_counts_they_hold() -> None:
    assert [cell_name(cell) for cell in (-1, 0, 2, 4, 5)] == ["0", "1", "2", "4–5", "6–7"]
    assert cell_name(7, exact=True) == "7"


def test_a_cell_of_a_link_says_which_counts_it_fixes() -> None:
    cell = cell_of("decode_only", "12.3")
    assert cell is not None
    assert (cell.decode_kv_cell, cell.decode_requests, cell.new_cell) == (12, 3, None)
    assert cell_of("mixed", "nonsense") is None


def test_nanoseconds_become_seconds_for_moments_and_milliseconds_for_durations() -> None:
    table = in_units(pa.table({"dispatched_ns": [1_500_000_000], "ttft_ns": [2_500_000], "n": [3], "e2e_ns": [None]}))
    assert table.to_pylist() == [{"dispatched_s": 1.5, "ttft_ms": 2.5, "n": 3, "e2e_ms": None}]


def test_a_sum_of_times_that_a_table_shows_in_ms_is_a_duration() -> None:
    table = pa.table({"time_ns": [2_000_000]})
    assert in_units(table, [Column("time_ms", "Time (ms)")]).to_pylist() == [{"time_ms": 2.0}]
    assert in_units(table).to_pylist() == [{"time_s": 0.002}]


@pytest.mark.parametrize(
    ("said", "shown"),
    [("a [b](http://c.d)", "a \\[b\\]\\(http\\:\u2060//c\\.d\\)"), ("www.c.d", "www\u2060\\.c\\.d"),
     ("a@b", "a\u2060@b"),
     ("&lt;", "\\&lt;"), ("# a\n\n# b", "\\# a \\# b"), ("plain words", "plain words")],
)  # fmt: skip
def test_what_a_run_says_is_no_markup(said: str, shown: str) -> None:
    assert escape(said) == shown


def test_a_contract_is_read_gate_by_gate() -> None:
    assert [gate.text for gate in parse_gates("ttft.mean<=10%; e2e.p90<=15%")] == ["ttft.mean<=10%", "e2e.p90<=15%"]
    with pytest.raises(GapscopeError, match="expected"):
        parse_gates("be good")


def test_figures_hold_only_what_json_can() -> None:
    json.loads(go.Figure(figures.bars(["a"], [(style.ROLES[0], "m", [None])], Axis(""), Axis("ms"))).to_json())


def test_a_figure_without_a_value_is_blank() -> None:
    gap, one = np.array([np.nan, np.nan]), np.array([np.nan, 1.0])
    role = style.ROLES[0]
    for y, blank in ((gap, True), (one, False)):
        assert figures.blank(figures.lines([Series(role, "m", np.arange(2.0), y)], Axis("s"), Axis("ms"))) == blank
        assert figures.blank(figures.bars(["a", "b"], [(role, "m", y)], Axis(""), Axis("ms"))) == blank
        cells = figures.heat(["a", "b"], ["c"], y[None, :], Axis(""), Axis(""), legend="")
        assert figures.blank(cells) == blank
    assert figures.blank({"data": [], "layout": {}})
    apart = Series(role, "m", one[::-1], one)  # no point has both coordinates
    assert figures.blank(figures.lines([apart], Axis("s"), Axis("ms")))
