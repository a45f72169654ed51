"""The smooth base of a fit: its coefficients come back whatever the level, and however many passes stalled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from engine.timing.rows import PassRows, concatenate
from engine.timing.surface import fit_surface
from tests.engine.timing_fakes import geometries, truth_ns


def passes(source: int, n: int, level: float, stalled: float, seed: int) -> PassRows:
    shapes = np.array(geometries(seed, n))
    rng = np.random.default_rng(seed)
    ns = np.array([truth_ns(*(int(axis) for axis in shape)) for shape in shapes]) * level
    ns = ns * (1.0 + 0.02 * rng.standard_normal(n))
    ns = np.where(rng.random(n) < stalled, 3.0 * ns, ns)
    unknown = np.full(n, np.nan)
    return PassRows(*shapes.T, ns, unknown, unknown, np.full(n, source))


def test_stalls_of_a_long_run_do_not_bend_the_shape() -> None:
    """A run at 1.3 times the sweep's level, a fifth of whose passes stall: ten passes of it for each of the sweep."""
    rows = concatenate([passes(0, 150, 1.0, 0.0, 1), passes(1, 1500, 1.3, 0.2, 2)])
    surface, factors = fit_surface(rows, rows.duration_ns, 0, "sum", 1.0)
    found = np.array([surface.prefill_token, surface.decode_fixed, surface.decode_request, surface.decode_kv_token])
    assert np.allclose(found, [150e3, 9e6, 800e3, 500.0], rtol=0.06)
    assert np.allclose(factors[1], 1.3, rtol=0.03)
    assert np.allclose(factors[0], 1.0)


def test_a_source_alone_is_its_own_level() -> None:
    rows = passes(0, 600, 0.8, 0.0, 3)
    surface, factors = fit_surface(replace(rows), rows.duration_ns, 0, "sum", 1.0)
    assert np.allclose(factors, 1.0)
    assert np.isclose(surface.decode_fixed, 0.8 * 9e6, rtol=0.03)
