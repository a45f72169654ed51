"""Draft acceptance: means by formula, draws that depend on nothing else, and what a user may ask for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import GapscopeError
from engine.serving.speculation import Speculation, acceptance_of


@pytest.mark.parametrize(
    ("acceptance", "mean"),
    [((0.85, 0.3, 0.0), 1 + 0.85 + 0.85 * 0.3), ((0.5,), 1.5), ((1.0, 1.0), 3.0), ((0.0, 1.0), 1.0)],
)
def test_the_mean_length_is_one_and_the_products_of_leading_probabilities(acceptance, mean):
    speculation = Speculation(len(acceptance), acceptance)
    assert speculation.mean_length == pytest.approx(mean, rel=1e-12)
    drawn = np.concatenate([speculation.lengths(index, 0, 500) for index in range(400)])
    assert drawn.min() >= 1
    assert drawn.max() <= speculation.width
    assert drawn.mean() == pytest.approx(mean, abs=5 * drawn.std() / 200_000**0.5 + 1e-12)


def test_the_share_of_each_length_follows_the_probabilities():
    # 0.6 accept the first, of these 0.5 the second: lengths 1, 2, 3 have shares 0.4, 0.3, 0.3.
    drawn = Speculation(2, (0.6, 0.5), seed=7).lengths(3, 0, 300_000)
    shares = np.bincount(drawn, minlength=4)[1:] / len(drawn)
    np.testing.assert_allclose(shares, [0.4, 0.3, 0.3], atol=0.005)


@given(index=st.integers(0, 1 << 40), first=st.integers(0, 500), count=st.integers(1, 50), tokens=st.integers(1, 200))
def test_a_draw_follows_from_the_request_and_the_ordinal(index, first, count, tokens):
    speculation = Speculation(3, (0.7, 0.6, 0.5), seed=11)
    whole = speculation.lengths(index, 0, first + count)
    np.testing.assert_array_equal(speculation.lengths(index, first, count), whole[first:])
    until = speculation.until(index, 0, tokens)
    assert until.sum() == tokens
    np.testing.assert_array_equal(until[:-1], speculation.lengths(index, 0, len(until))[:-1])
    assert 1 <= until[-1] <= speculation.lengths(index, len(until) - 1, 1)[0]


def test_another_seed_and_another_request_draw_otherwise():
    draws = [Speculation(3, (0.5,) * 3, seed).lengths(index, 0, 64).tolist() for seed in (1, 2) for index in (0, 1)]
    assert len({tuple(draw) for draw in draws}) == 4


def test_a_mean_length_becomes_one_probability():
    # (1 - a^4) / (1 - a) = 1 + a + a^2 + a^3 = 2.49.
    (a, *others) = acceptance_of("", 2.49, 3)
    assert others == [a, a]
    assert 1 + a + a**2 + a**3 == pytest.approx(2.49, abs=1e-12)
    assert acceptance_of("", 4, 3) == (1.0, 1.0, 1.0)
    assert acceptance_of("0.85, 0.3, 0", 0, 3) == (0.85, 0.3, 0.0)
    assert acceptance_of("0.8", 0, 2) == (0.8, 0.8)


@pytest.mark.parametrize(
    ("text", "mean", "named"),
    [
        ("", 0, "exactly one of them"),
        ("0.5", 2, "exactly one of them"),
        ("", 4.5, "expected 1 to 4 tokens"),
        ("0.5, 0.4", 0, "or 3 of them"),
        ("0.5, x, 0", 0, "spec_acceptance"),
        ("1.5", 0, "from 0 to 1"),
        ("nan", 0, "from 0 to 1"),
    ],
)
def test_what_cannot_be_is_said(text, mean, named):
    with pytest.raises(GapscopeError, match=named):
        acceptance_of(text, mean, 3)
