"""A tool's summary beside the rows: statistics by hand, rounding, undefined figures."""

from __future__ import annotations

import numpy as np
import pytest

from engine.importers.clients.reproduce import compare, reported_rows, reproduced, statistic

VALUES = np.array([4.0, 1.0, 3.0, 2.0])


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("count", 4.0),
        ("sum", 10.0),
        ("avg", 2.5),
        ("median", 2.5),
        ("std", 1.25**0.5),
        ("min", 1.0),
        ("max", 4.0),
        ("p90", 3.7),  # 1 + 0.9 * 3 in steps of one
        ("p99.9", 3.997),
        ("p99p9", 3.997),
        ("p0p1", 1.003),
        ("mode", None),
    ],
)
def test_statistic(word: str, expected: float | None) -> None:
    assert statistic(VALUES, word) == pytest.approx(expected)


def test_no_values() -> None:
    assert statistic(np.array([]), "count") == 0
    assert statistic(np.array([]), "p50") is None
    assert statistic(np.array([2.0]), "std", ddof=1) is None


def test_rounding_is_the_tools() -> None:
    figures = list(compare({"a": [1.004, 1.004]}, {"a": {"avg": 1.0}}, decimals=2))
    assert [f.agrees for f in figures] == [True]
    assert not next(compare({"a": [1.004]}, {"a": {"avg": 1.0}})).agrees


def test_check_counts_and_names() -> None:
    stated = {"a": {"avg": 2.5, "p50": 9, "unit": "ms", "max": float("nan"), "mode": 1}, "unknown": {"avg": 1}}
    check = reproduced(compare({"a": VALUES}, stated), "the summary", "Sketches are left out.")
    assert check.verdict == "fail"
    assert check.detail == (
        "1 of 2 figures of the summary follow from the rows; not: a p50 9, from rows 2.5. Sketches are left out."
    )
    assert reproduced([], "x").verdict == "unknown"
    assert reproduced(compare({"a": VALUES}, {"a": {"count": 4}}), "x").verdict == "pass"


def test_reported_rows() -> None:
    rows = list(reported_rows("run", "ttft", {"avg": 1.5, "p50": None, "std": float("inf")}, "s.json", metric="ttft"))
    assert [(r["statistic"], r["value"]) for r in rows] == [("mean", 1.5)]
    assert [r["statistic"] for r in reported_rows("gpu", "power", {"avg": 1.5}, "s.json")] == ["avg"]
