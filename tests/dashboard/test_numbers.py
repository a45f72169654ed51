"""Numbers counted by hand on small runs: NULL rules, windows, populations, estimators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_runs import MS, S, a_pass, identity, request, write

from dashboard.compare.numbers import Key, Number, number
from dashboard.metrics import HEADLINE, METRICS, PERCENTILES, Estimator, Population
from dashboard.samples import Sample, percentile, quantile_pairs, sample, tail_attribution
from dashboard.store import Store
from engine.errors import GapscopeError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def value(store: Store, run_id: str, text: str, population: Population = HEADLINE) -> float | None:
    return number(store, run_id, Key.parse(text), population).value


def whole(store: Store, run_id: str, text: str) -> Number:
    return number(store, run_id, Key.parse(text), HEADLINE)


def test_latencies_of_one_request(root: Path) -> None:
    run_id = write(root, "run", [request("a", at=S)])
    store = Store([root])
    assert value(store, run_id, "ttft.mean") == pytest.approx(100)
    assert value(store, run_id, "ttft_admit.mean") == pytest.approx(90)
    assert value(store, run_id, "tpot.mean") == pytest.approx(20)
    assert value(store, run_id, "e2e.mean") == pytest.approx(180)
    assert value(store, run_id, "latency_end.mean") == pytest.approx(181)
    assert value(store, run_id, "queue_time.mean") == pytest.approx(5)
    assert value(store, run_id, "request_path.mean") == pytest.approx(5)
    assert value(store, run_id, "dispatch_lag.mean") == pytest.approx(2)
    assert value(store, run_id, "input_tokens.mean") == 65


def test_a_one_token_request_keeps_its_ttft_and_has_no_tpot(root: Path) -> None:
    rows = [request("a"), request("b", output_tokens=1, last_visible_ns=100 * MS)]
    run_id = write(root, "run", rows)
    store = Store([root])
    assert whole(store, run_id, "ttft.mean").n == 2
    tpot = whole(store, run_id, "tpot.mean")
    assert (tpot.value, tpot.n, tpot.undefined) == (pytest.approx(20), 1, 1)
    assert value(store, run_id, "e2e.min") == pytest.approx(100)


def test_a_success_without_output_counts_and_has_no_latency(root: Path) -> None:
    silent = request("b", output_tokens=0, first_visible_ns=None, last_visible_ns=None)
    run_id = write(root, "run", [request("a"), silent])
    store = Store([root])
    assert value(store, run_id, "request_rate.fixed") == pytest.approx(2 / 10)
    ttft = whole(store, run_id, "ttft.mean")
    assert (ttft.n, ttft.undefined, ttft.value) == (1, 1, pytest.approx(100))


def test_an_empty_sample_is_null_with_n_0(root: Path) -> None:
    run_id = write(root, "run", [request("a", status="error")])
    store = Store([root])
    for text in ("ttft.mean", "ttft.p99", "ttft.std", "e2e.max", "hit_ratio.tokens"):
        found = whole(store, run_id, text)
        assert (found.value, found.n) == (None, 0), text
        assert found.why
    assert value(store, run_id, "request_rate.observed_span") is None
    assert value(store, run_id, "request_rate.fixed") == 0


def test_what_is_not_recorded_is_null_with_a_reason(root: Path) -> None:
    run_id = write(root, "run", [request("a")])
    store = Store([root])
    assert "no table chunks" in str(whole(store, run_id, "itl.mean").why)
    assert "no table passes" in str(whole(store, run_id, "pass_count.mixed").why)
    assert "only a replay" in str(whole(store, run_id, "coverage.time").why)
    assert "GPU" in str(whole(store, run_id, "output_rate_per_gpu.fixed").why)


def test_a_burst_adds_zero_gaps(root: Path) -> None:
    def chunk(ordinal: int, ms: int, tokens: int, visible: bool = True) -> dict[str, Any]:
        return {"request_id": "a", "ordinal": ordinal, "time_ns": ms * MS, "tokens": tokens, "visible": visible}

    # Role chunk, three tokens at once, an invisible token, one token: visible gaps 0, 0, 50.
    chunks = [chunk(0, 90, 0, False), chunk(1, 100, 3), chunk(2, 120, 1, False), chunk(3, 150, 1)]
    lone = {"request_id": "b", "ordinal": 0, "time_ns": 7 * MS, "tokens": 1, "visible": True}
    run_id = write(root, "run", [request("a"), request("b")], chunks=[*chunks, lone])
    store = Store([root])
    assert sample(store, run_id, METRICS["itl"], HEADLINE).values.tolist() == pytest.approx([0, 0, 50])
    assert sample(store, run_id, METRICS["chunk_gap"], HEADLINE).values.tolist() == pytest.approx([10, 20, 30])
    assert value(store, run_id, "tpot_chunk.max") == pytest.approx((150 - 90) / 4)


def test_the_three_windows_count_different_requests(root: Path) -> None:
    rows = [
        request("warm", phase="warmup", at=-S, end_ns=S, last_visible_ns=S),  # ends in profile, dispatched before
        request("in", at=2 * S, last_visible_ns=4 * S, end_ns=4 * S),
        request("grace", at=9 * S, last_visible_ns=int(10.5 * S), end_ns=int(10.5 * S)),  # ends in grace
        request("cut", at=9 * S, status="canceled", end_ns=11 * S),
    ]
    run_id = write(root, "run", rows, record=identity(hardware__part="NVIDIA H100", hardware__count=2))
    store = Store([root])
    assert value(store, run_id, "request_rate.fixed") == pytest.approx(2 / 10)
    assert value(store, run_id, "request_rate.completions") == pytest.approx(2 / 10)  # warm and in
    assert value(store, run_id, "request_rate.observed_span") == pytest.approx(2 / 8.5)
    assert value(store, run_id, "output_rate.fixed") == pytest.approx(10 / 10)
    assert value(store, run_id, "total_rate.fixed") == pytest.approx(140 / 10)
    assert value(store, run_id, "output_rate_per_gpu.fixed") == pytest.approx(10 / 10 / 2)
    assert value(store, run_id, "request_rate.fixed", Population("warmup")) == pytest.approx(1 / 2)


def test_a_window_without_length_is_null(root: Path) -> None:
    run_id = write(root, "run", [request("a", last_visible_ns=0)], profile_s=0)
    store = Store([root])
    assert value(store, run_id, "request_rate.fixed") is None
    assert value(store, run_id, "request_rate.observed_span") is None


def test_hit_ratio_with_and_without_the_last_block(root: Path) -> None:
    # 65 tokens: blocks of 32 can serve 64. 64 tokens: the last token is computed, so one block. NULL stays out.
    rows = [
        request("a", input_tokens=65, cached_tokens=32),
        request("b", input_tokens=64, cached_tokens=32),
        request("c", input_tokens=1000, cached_tokens=None),
        request("d", input_tokens=1000, cached_tokens=992, status="canceled"),
    ]
    run_id = write(root, "run", rows)
    store = Store([root])
    assert value(store, run_id, "hit_ratio.tokens") == pytest.approx(64 / 129)
    assert value(store, run_id, "hit_ratio.reusable") == pytest.approx(64 / (64 + 32))
    assert whole(store, run_id, "hit_ratio.tokens").n == 2


def test_preemptions_passes_and_time_by_class(root: Path) -> None:
    rows = [request("a", preemptions=2), request("b", phase="warmup", at=-S, preemptions=1)]
    passes = [
        a_pass(0, num_prefill_requests=1, num_decode_requests=0, duration_ns=10 * MS),
        a_pass(1, num_prefill_requests=1, duration_ns=20 * MS),
        a_pass(2, duration_ns=5 * MS),
        a_pass(3, duration_ns=5 * MS),
        a_pass(4, num_decode_requests=0, duration_ns=100 * MS),  # idle: a scheduler call without work
        a_pass(5, phase="grace", start_ns=11 * S, end_ns=11 * S + 10 * MS),
    ]
    run_id = write(root, "run", rows, passes=passes)
    store = Store([root])
    assert value(store, run_id, "preemptions.requests") == 2
    assert value(store, run_id, "preemptions.capture") == 3
    assert value(store, run_id, "pass_count.decode_only") == 2
    assert value(store, run_id, "pass_count.decode_only", Population("all")) == 3
    assert value(store, run_id, "pass_time.prefill_only") == pytest.approx(0.25)
    assert value(store, run_id, "pass_time.mixed") == pytest.approx(0.5)
    assert whole(store, run_id, "pass_duration.mean").n == 4


def test_littles_law(root: Path) -> None:
    rows = [request(f"r{k}", at=k * S, last_visible_ns=(k + 2) * S, end_ns=(k + 2) * S) for k in range(10)]
    run_id = write(root, "run", rows)
    store = Store([root])
    assert value(store, run_id, "in_flight.little") == pytest.approx(1.0 * 2.0)
    # From 1 s on two requests are in flight; in the first second one is; the last leaves after the window.
    assert value(store, run_id, "in_flight.observed") == pytest.approx((1 + 9 * 2) / 10)


def test_an_unknown_token_count_is_no_zero_in_a_rate(root: Path) -> None:
    """Two of three successes are counted, 5 tokens out and 65 in each, over 10 s."""
    rows = [request("a"), request("b", at=S), request("c", at=2 * S, output_tokens=None)]
    store = Store([root])
    run_id = write(root, "run", rows)
    words = "1 of 3 successes have no token count; the rate is a lower bound"
    for window in ("fixed", "completions"):
        found = whole(store, run_id, f"output_rate.{window}")
        assert (found.value, found.n, found.note) == (pytest.approx(1.0), 3, words)
    assert whole(store, run_id, "total_rate.fixed").note == words
    assert whole(store, run_id, "request_rate.fixed").note == ""
    none = write(root, "none", [row | {"output_tokens": None} for row in rows])
    found = whole(store, none, "output_rate.fixed")
    assert (found.value, found.why) == (None, "no token counts recorded")


def test_a_request_that_ended_at_an_unknown_time_is_not_in_flight_to_the_close(root: Path) -> None:
    """One of 4 s and one that is in flight for the last 2 s of 10 s: 0.6; the failed one is counted beside it."""
    rows = [
        request("a", end_ns=4 * S),
        request("b", at=2 * S, end_ns=None, status="error"),
        request("c", at=8 * S, end_ns=None, status="in_flight"),
    ]
    store = Store([root])
    found = whole(store, write(root, "run", rows), "in_flight.observed")
    assert (found.value, found.n) == (pytest.approx(0.6), 2)
    assert found.note == "1 request without a recorded end left out; the mean is a lower bound"
    few = [rows[0], rows[1], request("d", at=3 * S, end_ns=None, status="canceled")]
    found = whole(store, write(root, "few", few), "in_flight.observed")
    assert (found.value, found.why) == (None, "Not recorded: 2 of 3 requests have no recorded end.")


def test_roles_and_matched_subsets(root: Path) -> None:
    left = [
        request("a", turn_index=0),
        request("b", agent_depth=1),
        request("c"),
        request("d", conversation_id="twice"),
        request("e", conversation_id="twice"),
    ]
    right = [
        request("a", turn_index=0, output_tokens=7),
        request("b", agent_depth=1, input_tokens=66),
        request("c", status="error"),
        request("d", conversation_id="twice"),
    ]
    one, two = write(root, "one", left), write(root, "two", right, kind="replay")
    store = Store([root])

    def n(subset: str, tolerance: int = 16) -> int:
        return number(store, one, Key("ttft", "mean"), Population("profile", subset, tolerance).for_side(two)).n

    assert n("complete") == 5
    assert (n("root"), n("child")) == (4, 1)
    assert n("matched") == 2  # c failed on one side, the turn that occurs twice is not unique
    assert n("matched_near", 1) == 1
    assert n("matched_near", 2) == 2
    assert n("matched_exact") == 0


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=300),
    st.sampled_from(PERCENTILES),
)
def test_linear_percentiles_are_numpys(values: list[float], p: float) -> None:
    ordered = np.sort(np.array(values))
    assert percentile(ordered, p, Estimator.LINEAR) == pytest.approx(np.percentile(ordered, p), rel=1e-12, abs=1e-9)


def test_nearest_rank_rounds_halves_away_from_zero() -> None:
    values = np.arange(6.0)  # (n-1)p = 2.5 at the median: rank 3, where rounding to even would say 2
    assert percentile(values, 50, Estimator.NEAREST_RANK) == 3
    assert percentile(np.arange(2.0), 50, Estimator.NEAREST_RANK) == 1
    assert percentile(np.arange(11.0), 95, Estimator.NEAREST_RANK) == 10  # 9.5, not exact in binary floating point
    assert percentile(np.arange(6.0), 90, Estimator.NEAREST_RANK) == 5  # 4.5
    assert percentile(np.arange(6.0), 50, Estimator.LINEAR) == 2.5


def made(values: list[float]) -> Sample:
    return Sample(np.sort(np.array(values, dtype=float)), np.zeros(len(values), np.int64), 0, "")


def test_support_of_percentiles() -> None:
    assert not made([1.0] * 99).supports("p99")
    assert made([1.0] * 100).supports("p99")
    assert not made([1.0] * 999).supports("p99.9")
    assert made([1.0] * 20).supports("p95")
    assert not made([1.0] * 99).supports("p1")
    assert made([1.0]).supports("mean")
    assert not made([]).supports("mean")


def test_ecdf_is_small_and_right() -> None:
    random = np.random.default_rng(1)
    found = made(list(random.lognormal(size=20_000)))
    x, p = found.ecdf()
    assert len(x) <= 300
    assert p[-1] == 1
    assert x[-1] == found.values[-1]
    assert np.all(np.diff(p) > 0)
    np.testing.assert_allclose(np.searchsorted(found.values, x, side="right") / found.n, p)
    assert np.sum(p > 0.999) > 10  # the far tail is drawn, not interpolated
    few_x, few_p = made([3, 1, 2]).ecdf()
    assert few_x.tolist() == [1, 2, 3]
    assert few_p.tolist() == pytest.approx([1 / 3, 2 / 3, 1])
    assert len(made([]).ecdf()[0]) == 0


def test_tail_attribution_by_hand() -> None:
    # Means 2.5 and 5: gap 2.5, of which the largest of four adds (14 - 4) / 4.
    rows = tail_attribution(made([1, 2, 3, 4]), made([1, 2, 3, 14]), tops=(1, 4))
    assert (rows[0].gap, rows[0].share_of_gap) == (pytest.approx(2.5), pytest.approx(1.0))
    assert rows[1].share_of_gap == pytest.approx(1.0)
    # Twice as many replayed: the top quarter of eight is two of them.
    rows = tail_attribution(made([1, 2, 3, 4]), made([1, 1, 2, 2, 3, 3, 4, 8]), tops=(1,))
    assert rows[0].replay == pytest.approx((4 + 8) / 8)
    assert tail_attribution(made([]), made([1.0])) == []


def test_quantile_pairs_of_equal_samples_lie_on_the_diagonal() -> None:
    values = list(np.random.default_rng(2).random(500))
    _, left, right = quantile_pairs(made(values), made(values))
    np.testing.assert_array_equal(left, right)


def test_unknown_names_are_refused() -> None:
    for text in ("ttfb.mean", "ttft.p42", "request_rate.hourly", "ttft"):
        with pytest.raises(GapscopeError, match="expected one of"):
            Key.parse(text)
    with pytest.raises(GapscopeError, match="expected one of"):
        Population.parse("lunch")
    with pytest.raises(GapscopeError, match="expected one of"):
        Population.parse("profile.some")
    assert Population.parse("headline") == HEADLINE
    assert Population.parse("warmup.root") == Population("warmup", "root")
