"""The nearest recorded passes of many batches at once are those of each of them alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.timing.nearest import Search
from engine.timing.neighbours import EXACT_PASSES, Neighbours


def holds(geometry, asked):
    known = Neighbours(geometry)
    found = Search(known).nearest(asked)
    recorded = list(map(tuple, geometry.tolist()))
    for i, shape in enumerate(map(tuple, asked.tolist())):
        equal = recorded.count(shape)
        if equal >= EXACT_PASSES:
            assert found.equal[i] == equal
            assert recorded[known.order[found.first_equal[i]]] == shape
            continue
        assert found.equal[i] < EXACT_PASSES
        places, inside = known.few(shape)
        assert known.order[found.rows[i, : found.count[i]]].tolist() == places
        assert found.inside[i] == inside


def passes(rng, n, batches, values):
    rows = np.stack([rng.integers(0, most, n) for most in (batches, values, values, batches, 4 * values)], axis=1)
    rows[(rows[:, 0] == 0) & (rows[:, 3] == 0), 3] = 1
    alone = (rows[:, 0] == 0) & (rng.random(n) < 0.9)  # not of each batch: tokens without prompts are told apart too
    rows[alone, 1:3] = 0
    return rows


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 400), st.integers(1, 4), st.sampled_from([2, 4, 30, 5000]))
def test_many_at_once_are_each_alone(seed, n, batches, values):
    rng = np.random.default_rng(seed)
    geometry = passes(rng, n, batches, values)
    asked = np.concatenate([passes(rng, 40, batches + 1, values + 2), geometry[rng.integers(0, n, 20)]])
    holds(geometry, asked)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 32, 33, 64, 65, 200])
def test_batches_of_every_size_beside_small_ones(n):
    rng = np.random.default_rng(n)
    large = passes(rng, n, 1, 6)
    others = np.array([[1, 3, 0, 0, 0], [1, 3, 0, 2, 7], [1, 3, 0, 3, 7], [0, 0, 0, 9, 50]])
    holds(np.concatenate([large, others]), passes(rng, 300, 5, 9))


def test_a_query_among_equals_finds_those_that_the_search_for_one_finds():
    rows = np.array([(0, 0, 0, 2, kv) for kv in (10, 20, 20, 20, 20, 20, 20, 20, 30, 30)])
    holds(rows, np.array([(0, 0, 0, 2, kv) for kv in range(5, 40)]))
