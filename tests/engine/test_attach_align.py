"""The offset between two clocks, from what requests say about it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.importers.attach.align import NOTHING, Bounds, align, offset_of
from engine.importers.attach.ids import match

S = 10**9


def bounds(lower, upper):
    return Bounds(*(np.array([NOTHING if v is None else v for v in side], np.int64) for side in (lower, upper)))


@given(
    st.integers(-(2**61), 2**61),
    st.lists(st.tuples(st.integers(0, 10 * S), st.integers(0, 10 * S)), min_size=1, max_size=30),
)
def test_any_offset_is_found_within_what_the_requests_leave_open(offset, ways):
    # A request leaves as much open as its ways in and out take together.
    found = offset_of(bounds([offset - way_in for way_in, _ in ways], [offset + way_out for _, way_out in ways]))
    assert offset - min(way_in for way_in, _ in ways) <= found <= offset + min(way_out for _, way_out in ways)
    made = align("ids", found, bounds([offset - i for i, _ in ways], [offset + o for _, o in ways]))
    assert made.violations == 0
    assert made.check().verdict == "pass"


@given(
    st.lists(st.integers(-1000, 1000), min_size=1, max_size=12),
    st.lists(st.integers(-1000, 1000), min_size=1, max_size=12),
)
def test_the_sum_of_violations_is_least(lower, upper):
    size = max(len(lower), len(upper))
    both = bounds(lower + [None] * (size - len(lower)), upper + [None] * (size - len(upper)))

    def violated(o):
        return sum(max(0, low - o) for low in lower) + sum(max(0, o - high) for high in upper)

    assert violated(offset_of(both)) == min(violated(o) for o in (*lower, *upper))


def test_a_few_wrong_requests_hardly_matter():
    right = [(100 - k, 120 + k) for k in range(50)]
    wrong = [(5000, 5010), (-9000, -8990)]
    assert 100 <= offset_of(bounds(*zip(*right, *wrong, strict=True))) <= 120


def test_one_sided_bounds():
    assert offset_of(bounds([3, 7, None], [None, None, None])) == 7
    assert offset_of(bounds([None, None], [3, 7])) == 3
    assert offset_of(bounds([], [])) is None
    assert align("wall", 5, bounds([], [])).check().verdict == "unknown"


def test_a_shift_larger_than_the_spread_fails():
    # Ways in of 1 to 3 ms, ways out of 2 ms: residuals (out - in) / 2 from -0.5 to 0.5 ms at the true offset 0.
    lower, upper = [-1_000_000, -2_000_000, -3_000_000], [2_000_000] * 3
    at_home = align("wall", 0, bounds(lower, upper))
    assert (at_home.violations, at_home.residual_ns["max"], at_home.check().verdict) == (0, 500_000, "pass")
    # The middle of what all allow, -1 to 2 ms.
    assert at_home.by_ids_ns == (-1_000_000, 2_000_000)
    assert "the requests leave -1.000 ms to +2.000 ms open" in at_home.check().detail
    off = align("wall", 40_000_000, bounds(lower, upper))
    assert (off.violations, off.worst_ns) == (3, 38_000_000)
    assert off.spread_ns == pytest.approx(900_000)  # residuals 0.5, 0, -0.5 ms, 5th to 95th percentile, linear
    assert off.check().verdict == "fail"
    assert "the requests ask for -38.000 ms more" in off.check().detail


def test_ids():
    mine = {"a-1", "b", "cmpl-c", "d", "e"}
    joined = match(
        ["chatcmpl-a-1", "cmpl-b-0", "cmpl-c", "chatcmpl-d-0123abcd", "cmpl-e-0", "cmpl-e-1", "chatcmpl-nobody"], mine
    )
    assert joined == {"chatcmpl-a-1": "a-1", "cmpl-b-0": "b", "cmpl-c": "cmpl-c", "chatcmpl-d-0123abcd": "d"}
