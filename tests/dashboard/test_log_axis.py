"""What a logarithmic axis cannot show is counted by name."""

from __future__ import annotations

import numpy as np

from dashboard.charts import figures, style
from dashboard.charts.figures import Axis, Series
from dashboard.charts.panel.log_axis import points_left_out

X = np.arange(5.0)


def lines(values: list[float], x: Axis, y: Axis) -> figures.Figure:
    return figures.lines([Series(style.ROLES[0], "measured: a&amp;b", X, np.array(values))], x, y)


def test_values_of_zero_and_less_are_counted_and_unknown_ones_are_not() -> None:
    figure = lines([0.0, 1.0, np.nan, -2.0, 3.0], Axis("s"), Axis("ms", log=True))
    assert points_left_out(figure) == "Not on the log axis, as they are zero or less: 2 points of measured: a&b."
    figure = lines([1.0, 1.0, 2.0, 2.0, 3.0], Axis("s", log=True), Axis("ms", log=True))  # x begins at zero
    assert points_left_out(figure) == "Not on the log axis, as they are zero or less: 1 point of measured: a&b."


def test_linear_axes_and_positive_values_leave_nothing_out() -> None:
    assert points_left_out(lines([0.0, -1.0, 1.0, 1.0, 1.0], Axis("s"), Axis("ms"))) == ""
    assert points_left_out(lines([0.1, 1.0, 1.0, 1.0, 1.0], Axis("s"), Axis("ms", log=True))) == ""


def test_each_panel_has_its_own_axes() -> None:
    zeros = [0.0, 0.0, 0.0, 1.0, 1.0]
    panels = [("a", lines(zeros, Axis("s"), Axis("ms"))), ("b", lines(zeros, Axis("s"), Axis("ms", log=True)))]
    assert ": 3 points of " in points_left_out(figures.small_multiples(panels))


def test_text_along_the_other_axis_is_no_matter() -> None:
    named = Series(style.ROLES[1], "replay: b", np.array(["a", "b"]), np.array([0.0, 2.0]))
    figure = figures.lines([named], Axis("bucket", categories=("a", "b")), Axis("ms", log=True))
    assert ": 1 point of replay: b." in points_left_out(figure)
