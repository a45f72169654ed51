"""The tool's figures beside ours: units, windows, counts, and what has nothing beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_runs import MS, S, identity, request, table

from dashboard.compare.beside import Figure, factor_to, figures, key_of
from dashboard.compare.numbers import Key
from dashboard.metrics import Population, Window
from dashboard.store import Store
from engine.bundle import BundleWriter, Phase


def told(metric: str | None, statistic: str, value: float, unit: str = "ms", **more: Any) -> dict[str, Any]:
    return {"scope": "run", "name": f"{metric}_{statistic}", "unit": unit, "statistic": statistic, "value": value} | (
        {"metric": metric} | more if metric else more
    )


def run(store: Path, reported: list[dict[str, Any]], rows: list[dict[str, Any]] | None = None) -> str:
    kind = "measured" if rows else "imported_summary"
    with BundleWriter(store, kind, "tool", "Tool", identity()) as writer:
        if rows:
            writer.write_table("requests", table("requests", rows))
        writer.write_table("reported", table("reported", reported))
        return writer.seal(phases=[Phase("profile", 0, 10 * S)] if rows else [])


def beside(
    path: Path, reported: list[dict[str, Any]], rows: list[dict[str, Any]] | None, **options: Any
) -> list[Figure]:
    return figures(Store([path]), run(path, reported, rows), Population(), **options)[0]


ROWS = [request("a"), request("b", at=S), request("c", at=2 * S)]
"""TTFT 100 ms each, 5 tokens each; dispatched at 0, 1 and 2 s, the last visible end at 2.18 s."""


def test_units_are_ours_and_differences_signed(tmp_path: Path) -> None:
    reported = [
        told("ttft", "mean", 0.099, "s", n=3),
        told("ttft", "p90", 100.0),
        told("output_tokens", "mean", 6.0, ""),
    ]
    mean, tail, tokens = sorted(beside(tmp_path, reported, ROWS), key=lambda one: (one.unit, one.statistic))
    assert (mean.key, mean.value, mean.unit) == (Key("ttft", "mean"), pytest.approx(99.0), "ms")
    assert mean.difference == pytest.approx(-1.0)
    assert mean.relative == pytest.approx(-0.01)
    assert not mean.agrees
    assert tail.agrees
    assert tail.explanation.startswith("agrees")
    assert (tokens.unit, tokens.difference) == ("tokens", pytest.approx(1.0))


def test_a_rate_stands_beside_ours_in_the_window_that_is_asked_for(tmp_path: Path) -> None:
    reported = [told("request_rate", "avg", 1.4, "requests/sec", definition="completed over the phase window")]
    store = Store([tmp_path])
    run_id = run(tmp_path, reported, ROWS)
    ours = {window: figures(store, run_id, Population(), window=window)[0][0].ours for window in Window}
    assert ours[Window.FIXED] is not None
    assert ours[Window.FIXED].value == pytest.approx(3 / 10)  # the profile of 10 s
    assert ours[Window.OBSERVED_SPAN] is not None
    assert ours[Window.OBSERVED_SPAN].value == pytest.approx(3 / 2.18)  # first dispatch to last visible
    (figure,) = figures(store, run_id, Population())[0]
    assert figure.explanation == (
        "the tool's rule: completed over the phase window; "
        "ours: successes dispatched in the phase, over phase start to admission deadline"
    )


def test_other_counts_are_said(tmp_path: Path) -> None:
    rows = [*ROWS, request("d", status="error", first_visible_ns=None, last_visible_ns=None, output_tokens=None)]
    (figure,) = beside(tmp_path, [told("ttft", "mean", 75.0, n=4, definition="errors count as 0")], rows)
    assert figure.explanation == "over 4 values, ours over 3; the tool's rule: errors count as 0"


def test_a_summary_without_rows_is_never_differenced(tmp_path: Path) -> None:
    (figure,) = beside(tmp_path, [told("ttft", "mean", 0.1, "s", definition="role chunk")], None)
    assert (figure.value, figure.unit) == (pytest.approx(100.0), "ms")
    assert (figure.difference, figure.relative, figure.agrees) == (None, None, False)
    assert figure.explanation == "the run has no rows to take ours from; role chunk"


@pytest.mark.parametrize(
    "row",
    [
        told("ttft", "mean", 1.0, "tokens"),
        told("ttft", "harmonic", 1.0),
        told("somebody_elses", "mean", 1.0),
        told("request_rate", "mean", 1.0, "requests"),
    ],
)
def test_what_is_no_number_of_ours_says_so(tmp_path: Path, row: dict[str, Any]) -> None:
    (figure,) = beside(tmp_path, [row], ROWS)
    assert (figure.ours, figure.difference) == (None, None)
    assert figure.explanation.startswith(f"we have no {row['metric']}")


def test_figures_of_a_part_stand_alone(tmp_path: Path) -> None:
    """Those of time slices are no figures of the run: they are a chart."""
    slices = told("ttft", "mean", 1.0, scope="slice", slice_start_ns=0, slice_end_ns=S)
    server = told("output_rate", "mean", 3.0, "tok/s", scope="server")
    unnamed = told(None, "max", 17.0, "requests")
    found = beside(tmp_path, [slices, server, unnamed], ROWS)
    assert [(one.scope, one.ours) for one in found] == [("run", None), ("server", None)]


def test_the_warm_up_stands_beside_ours_over_the_warm_up(tmp_path: Path) -> None:
    warm = request("w", at=-S, phase="warmup", first_visible_ns=-S + 300 * MS)
    reported = [told("ttft", "mean", 300.0, scope="warmup"), told("ttft", "mean", 100.0)]
    run, warmup = beside(tmp_path, reported, [*ROWS, warm])
    assert run.ours is not None
    assert (run.scope, run.ours.value, run.ours.n, run.agrees) == ("run", pytest.approx(100.0), 3, True)
    assert warmup.ours is not None
    assert (warmup.scope, warmup.ours.value, warmup.ours.n, warmup.agrees) == ("warmup", pytest.approx(300.0), 1, True)


def test_a_run_without_figures_has_none(tmp_path: Path) -> None:
    with BundleWriter(tmp_path, "measured", "bare", "Bare", identity()) as writer:
        writer.write_table("requests", table("requests", ROWS))
        run_id = writer.seal(phases=[Phase("profile", 0, 10 * S)])
    assert figures(Store([tmp_path]), run_id, Population()) == ([], "")


@pytest.mark.parametrize(
    ("ours", "theirs", "factor"),
    [
        ("ms", "s", 1000.0),
        ("ms", "us", 0.001),
        ("ms", "tokens", None),
        ("1/s", "requests/sec", 1.0),
        ("1/s", "requests/min", 1 / 60),
        ("tok/s", "tokens/s", 1.0),
        ("tok/s", "tokens/sec/user", None),
        ("tokens", "tokens", 1.0),
    ],
)
def test_units_of_one_kind_are_converted(ours: str, theirs: str, factor: float | None) -> None:
    assert factor_to(ours, theirs) == factor


def test_keys_of_statistics() -> None:
    assert key_of("ttft", "p99", Window.FIXED) == Key("ttft", "p99")
    assert key_of("output_rate", "avg", Window.COMPLETIONS) == Key("output_rate", "completions")
    assert key_of("hit_ratio", "mean", Window.FIXED) is None
