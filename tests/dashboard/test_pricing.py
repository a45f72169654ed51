"""A replay's timing, rebuilt from its lineage, prices any geometry."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dashboard.pricing import price, timing_of
from dashboard.queries.passes import AXES
from dashboard.store import Store

SAMPLES = Path(__file__).parents[2] / "sample_runs"
COLUMNS = (
    "num_prefill_requests",
    "sum_prefill_tokens",
    "sum_prefill_kv_tokens",
    "num_decode_requests",
    "sum_decode_kv_tokens",
)


def test_a_replay_is_priced_as_it_was_played() -> None:
    store = Store([SAMPLES])
    run = store.find("ample8-predicted")
    timing = timing_of(store, run.run_id)
    assert timing is not None
    passes = store.bundle(run.run_id).table("passes", [*COLUMNS, "duration_ns"])
    assert passes is not None
    geometry = {
        axis: np.array(passes[column].to_pylist(), dtype=np.float64) for axis, column in zip(AXES, COLUMNS, strict=True)
    }
    assert price(timing, geometry).tolist() == passes["duration_ns"].to_pylist()


def test_a_recording_has_no_timing_of_its_own() -> None:
    store = Store([SAMPLES])
    assert timing_of(store, store.find("ample8").run_id) is None
