"""Prices of a hand-made model against sums done by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.bundle.schema import RESOLUTIONS
from engine.errors import GapscopeError
from engine.knobs import resolve
from engine.timing import build_timing
from engine.timing.contract import PassQueries, decode_run
from engine.timing.fpm import FpmTiming

# base: prefill = 1000 + 10 T + 0.01 T (2K + T) / (2P) + 100 P; decode = 2000 + 50 D + 0.5 KV
BASE = {
    "prefill_fixed": 1000.0,
    "prefill_token": 10.0,
    "prefill_pair": 0.01,
    "prefill_request": 100.0,
    "decode_fixed": 2000.0,
    "decode_request": 50.0,
    "decode_kv_token": 0.5,
}


def variant(composition: str = "sum", **changes: Any) -> dict[str, Any]:
    levels = {name: {"factor": 1.0} for name in ("prefill_only", "decode_only", "mixed")}
    return {
        "composition": composition,
        "base_ns": BASE,
        "decode_floor_kv_per_request": 100.0,
        "decode_sites": [
            {"batch": 2, "range": [100.0, 1000.0], "knots": [[100.0, 1.0, 5], [1000.0, 2.0, 5]]},
            {"batch": 4, "range": [100.0, 500.0], "knots": [[100.0, 1.5, 5], [500.0, 1.5, 5]]},
        ],
        "prefill_sites": [
            {"batch": 1, "context": 0.0, "range": [10.0, 100.0], "knots": [[10.0, 1.0, 5], [100.0, 2.0, 5]]},
            {"batch": 1, "context": 800.0, "range": [10.0, 100.0], "knots": [[10.0, 3.0, 5], [100.0, 3.0, 5]]},
            {"batch": 3, "context": 0.0, "range": [10.0, 100.0], "knots": [[10.0, 1.0, 5], [100.0, 1.0, 5]]},
        ],
        "exact_prefill": [[1, 64, 400, 7777.0, 3]],
        "exact_decode": [[2, 500, 4321.0, 4]],
        "levels": levels,
        **changes,
    }


def price(query: tuple[int, int, int, int, int], **options: Any) -> tuple[int, str]:
    composition = options.pop("composition", "sum")
    timing = FpmTiming(variant(composition, **options.pop("changes", {})), **options)
    told = timing.explain(PassQueries(*(np.array([v]) for v in query)))
    assert timing.pass_ns(*query) == told.total_ns[0]
    return int(told.total_ns[0]), RESOLUTIONS[int(told.resolution[0])]


def test_a_measured_geometry_returns_its_median():
    assert price((1, 64, 400, 0, 0)) == (7777, "exact")
    assert price((0, 0, 0, 2, 500)) == (4321, "exact")


def test_within_a_decode_curve():
    # KV per request 550 is half way from 100 to 1000: ratio 1.5; base 2000 + 100 + 550 = 2650
    assert price((0, 0, 0, 2, 1100)) == (3975, "interpolated")


def test_between_decode_sites():
    # batch 3, 100 tokens each: half way between ratios 1.0 and 1.5; base 2000 + 150 + 150 = 2300
    assert price((0, 0, 0, 3, 300)) == (2875, "interpolated")


def test_within_a_prefill_curve():
    # T = 55 is half way: ratio 1.5; base 1000 + 550 + 0.01 * 55 * 55 / 2 + 100 = 1665.125
    assert price((1, 55, 0, 0, 0)) == (2498, "interpolated")


def test_between_prefill_contexts():
    # context 200 of 0..800: ratio 0.75 * 1 + 0.25 * 3 = 1.5 at T = 10; base 1000 + 100 + 0.01 * 10 * 410 / 2 + 100
    assert price((1, 10, 200, 0, 0)) == (round(1.5 * 1220.5), "interpolated")


def test_between_prefill_batches():
    # two prompts, T = 100: half way between ratios 2 and 1; base 1000 + 1000 + 0.01 * 100 * 100 / 4 + 200 = 2225
    assert price((2, 100, 0, 0, 0)) == (round(1.5 * 2225), "interpolated")


def test_sum_composition():
    # prefill 1.0 * (1000 + 100 + 0.5 + 100) = 1200.5, decode (batch 2, 100 each) 1.0 * (2000 + 100 + 100) = 2200
    assert price((1, 10, 0, 2, 200)) == (1201 + 2200, "interpolated")


def test_marginal_composition_adds_decode_above_its_floor():
    # decode at 1000 each: 2 * (2000 + 100 + 1000) = 6200; at the floor of 100 each: 2200
    assert price((1, 10, 0, 2, 2000), composition="marginal") == (1201 + 4000, "interpolated")
    # alone, a decode is priced whole under either composition
    assert price((0, 0, 0, 2, 2000), composition="marginal") == (6200, "interpolated")


def test_levels_and_scale_multiply():
    levels = {"prefill_only": {"factor": 1.0}, "decode_only": {"factor": 1.1}, "mixed": {"factor": 1.2}}
    assert price((0, 0, 0, 2, 2000), changes={"levels": levels})[0] == 6820
    assert price((0, 0, 0, 2, 2000), changes={"levels": levels}, scale=0.5)[0] == 3410
    assert price((1, 10, 0, 2, 200), changes={"levels": levels})[0] == 1441 + 2640  # 1200.5 and 2200, each times 1.2


def test_clamp_prices_the_nearest_measured_point():
    # 3000 per request is past batch 2's curve: its end, 1000 each, ratio 2 -> 2 * (2000 + 100 + 1000)
    assert price((0, 0, 0, 2, 6000)) == (6200, "clamped")
    # batch 8 with 300 each: batch 4 at 300 each, ratio 1.5 -> 1.5 * (2000 + 200 + 600)
    assert price((0, 0, 0, 8, 2400)) == (4200, "clamped")
    # 200 new tokens: the curve ends at 100, ratio 2 -> 2 * (1000 + 1000 + 50 + 100)
    assert price((1, 200, 0, 0, 0)) == (4300, "clamped")


def test_extrapolate_prices_the_base_at_the_query():
    assert price((0, 0, 0, 2, 6000), on_refused="extrapolate") == (2 * 5100, "extrapolated")
    assert price((0, 0, 0, 8, 2400), on_refused="extrapolate") == (round(1.5 * 3600), "extrapolated")
    assert price((1, 200, 0, 0, 0), on_refused="extrapolate") == (2 * 3300, "extrapolated")


def test_the_worst_part_resolves_a_mixed_pass():
    assert price((1, 64, 400, 2, 500))[1] == "exact"
    assert price((1, 64, 400, 2, 200))[1] == "interpolated"
    assert price((1, 64, 400, 2, 6000))[1] == "clamped"


@pytest.mark.parametrize("query", [(0, 0, 0, 8, 2400), (1, 200, 0, 0, 0), (1, 200, 0, 2, 200), (1, 10, 0, 8, 2400)])
def test_abort_names_the_query(query):
    timing = FpmTiming(variant(), on_refused="abort")
    with pytest.raises(GapscopeError, match=rf"{query[1]} new tokens.*decode batches 2 to 4"):
        timing.pass_ns(*query)
    with pytest.raises(GapscopeError, match="outside the measured domain"):
        timing.explain(PassQueries(*(np.array([v]) for v in query)))


def test_a_pass_takes_at_least_a_nanosecond():
    assert price((0, 0, 0, 2, 2000), scale=1e-9)[0] == 1
    assert price((1, 10, 0, 2, 200), scale=1e-9)[0] == 1


def test_sites_are_named():
    told = FpmTiming(variant()).explain(
        PassQueries(*(np.array(c) for c in ([0, 1, 2], [0, 64, 100], [0, 400, 0], [3, 0, 2], [300, 0, 500])))
    )
    assert [told.site_names[i] for i in told.sites] == [
        "decode b2|b4",
        "prefill measured here",
        "prefill b1 kv0|b3 kv0 + decode b2 measured here",
    ]
    assert [told.sources[i] for i in told.source] == ["fpm"] * 3


prefills = st.tuples(st.integers(1, 6), st.integers(1, 600), st.integers(0, 9000))
decodes = st.tuples(st.integers(1, 12), st.integers(1, 9000))
query = st.one_of(
    prefills.map(lambda p: (*p, 0, 0)),
    decodes.map(lambda d: (0, 0, 0, *d)),
    st.tuples(prefills, decodes).map(lambda t: (*t[0], *t[1])),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(query, min_size=1, max_size=40),
    st.sampled_from(["sum", "marginal"]),
    st.sampled_from(["clamp", "extrapolate"]),
    st.floats(0.001, 50),
)
def test_scalar_and_array_answers_agree(queries, composition, on_refused, scale):
    """In whatever order they are asked."""
    one, many = (FpmTiming(variant(composition), on_refused=on_refused, scale=scale) for _ in range(2))
    told = many.explain(PassQueries(*(np.array(c) for c in zip(*queries, strict=True))))
    assert [one.pass_ns(*q) for q in queries] == told.total_ns.tolist()
    assert (told.total_ns >= 1).all()


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 4), st.integers(1, 4000))
def test_decode_lines_follow_the_sites(batch, kv):
    """The compiled pieces give what the sites say at each KV sum."""
    timing = FpmTiming(variant(exact_decode=[]))
    place = timing._decode.place(batch, kv / batch)
    at = (place.batch, place.x * place.batch) if not place.inside else (batch, kv)
    expected = (2000 + 50 * at[0] + 0.5 * at[1]) * place.ratio
    assert timing.pass_ns(0, 0, 0, batch, kv) == pytest.approx(expected, abs=0.51)


@settings(max_examples=100, deadline=None)
@given(
    batch=st.integers(1, 5),
    contexts=st.lists(st.integers(1, 4000), min_size=1, max_size=30),
    between=st.sampled_from([0, 17]),
    until=st.integers(1, 100_000),
    on_refused=st.sampled_from(["clamp", "extrapolate"]),
    source=st.sampled_from(["fpm", "fixed"]),
)
def test_a_run_of_decodes_is_priced_like_its_passes(batch, contexts, between, until, on_refused, source):
    def make():
        if source == "fpm":
            return FpmTiming(variant(), between_ns=between, on_refused=on_refused)
        return build_timing(resolve({"timing": "fixed", "fixed_pass_us": 2, "between_passes_ms": between / 1e6}))

    expected, now = [], 0
    one = make()
    for context in contexts:
        expected.append((now, one.pass_ns(0, 0, 0, batch, context)))
        now += expected[-1][1] + between
        if now >= until:
            break
    starts, durations, after = decode_run(make(), batch, contexts, 0, until)
    assert list(zip(starts, durations, strict=True)) == expected
    assert after == now


def test_a_run_is_refused_at_the_pass_that_would_be():
    timing = FpmTiming(variant(), on_refused="abort")
    with pytest.raises(GapscopeError, match="outside"):
        timing.decode_run(2, [500, 5000], 0, 1 << 62)
    assert timing.decode_run(2, [500, 5000], 0, 1) == ([0], [4321], 4321)  # the second is never reached
