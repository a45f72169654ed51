"""The question whether uneven KV lengths cost time, put to passes whose answer is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from engine import knobs
from engine.errors import GapscopeError
from engine.timing import FitSource, build_timing
from engine.timing.skew import skew_test
from tests.engine.timing_fakes import FakeBundle

TIMING = {"timing": "fixed", "fixed_pass_us": 2000.0, "fixed_decode_request_us": 100.0, "fixed_kv_token_ns": 1000.0}


def run(alpha: float, *, level: float = 1.0, noise: float = 0.01, even: bool = False, n: int = 4000) -> FitSource:
    """Passes that take as long as if each request were alpha standard deviations longer, at a drifting level."""
    rng = np.random.default_rng(5)
    batch = rng.integers(2, 9, n)
    mean = rng.integers(200, 2000, n)
    deviation = np.zeros(n) if even else mean * rng.uniform(0.0, 0.8, n)
    kv = batch * mean
    ns = 2e6 + 1e5 * batch + 1000.0 * (kv + alpha * batch * deviation)
    drift = level * (1.0 + 0.2 * np.sin(np.arange(n) / n * 9))
    ns = ns * drift * (1.0 + noise * rng.standard_normal(n))
    ns[::100] *= 8.0  # stalls
    columns: dict[str, Any] = {
        "phase": ["profile"] * n,
        "num_prefill_requests": [0] * n,
        "num_decode_requests": batch,
        "sum_decode_kv_tokens": kv,
        "var_decode_kv_tokens": deviation**2,
        "duration_ns": ns.astype(np.int64),
    }
    return FitSource(FakeBundle("run", "measured", {"passes": pa.table(columns)}))  # type: ignore[arg-type]


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("level", [0.7, 1.3])
def test_what_was_put_in_is_found(alpha: float, level: float) -> None:
    found = skew_test(run(alpha, level=level), build_timing(knobs.resolve(TIMING)))
    assert found.low < alpha * level < found.high  # of the model's price, hence at the level of the machine
    assert found.high - found.low < 0.2
    assert found.passes == 4000
    assert sum(b.passes for b in found.bins) == 4000
    assert ("no effect" in found.verdict) == (alpha == 0.0)


def test_even_batches_say_nothing() -> None:
    with pytest.raises(GapscopeError, match="all alike"):
        skew_test(run(0.0, even=True), build_timing(knobs.resolve(TIMING)))


def test_few_passes_say_nothing() -> None:
    with pytest.raises(GapscopeError, match="has 150 passes of several decodes"):
        skew_test(run(0.0, n=150), build_timing(knobs.resolve(TIMING)))
