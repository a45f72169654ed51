"""docs/metrics.md names everything that the metric table holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from dashboard.compare.compensation import DEFAULT_TOLERANCE
from dashboard.compare.decomposition import PARTS
from dashboard.compare.gates import Gate
from dashboard.compare.noise import MAX_POINTS, RESAMPLES, SUM_RESAMPLES
from dashboard.metrics import MEASURES, METRICS, PHASES, STATISTICS, SUBSETS, Estimator, Window
from dashboard.queries.identity import VARYING_FIELDS

TEXT = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [*METRICS, *MEASURES, *PHASES, *SUBSETS, *Estimator, *Window])
def test_every_name_is_documented(name: str) -> None:
    assert f"`{name}`" in TEXT


@pytest.mark.parametrize("name", METRICS)
def test_every_unit_is_that_of_the_code(name: str) -> None:
    row = next(line for line in TEXT.splitlines() if line.startswith("|") and f"`{name}`" in line.split("|")[1])
    assert row.split("|")[2].strip() == METRICS[name].unit


def test_every_variant_and_statistic_is_documented() -> None:
    for measure in MEASURES.values():
        for variant in measure.statistics:
            assert f"`{variant}`" in TEXT
    for statistic in STATISTICS:
        assert statistic in TEXT


def test_figures_in_the_text_are_those_of_the_code() -> None:
    assert f"{RESAMPLES} resamples" in TEXT
    assert f"{SUM_RESAMPLES:,} where they are sums" in TEXT
    assert f"{MAX_POINTS:,} bins" in TEXT
    for group, field in VARYING_FIELDS:
        assert f"`{group}.{field}`" in TEXT


def test_parts_and_their_tolerance_are_those_of_the_code() -> None:
    told = TEXT.partition("## Parts of a gap")[2]
    for name in ("client", "queueing", "recompute", "host", "transfer", "output", "cohort", "not split"):
        assert f"| {name}" in told
    assert set(PARTS) == {
        "client",
        "queueing",
        "recompute",
        "prefill",
        "mixed",
        "decode",
        "host",
        "transfer",
        "output",
    } | {
        "cohort",
        "unsplit",
    }
    assert f"{100 * DEFAULT_TOLERANCE:g} % of it" in told.replace("\n", " ")


def test_gates_in_the_text_parse() -> None:
    for text in ("ttft.mean<=10%", "ttft.p99<=5ms", "hit_ratio.tokens<=2pp", "preemptions.capture=2..8"):
        assert f"`{text}`" in TEXT
        assert Gate.parse(text).text == text
