"""A replay's timing, rebuilt from its lineage, prices any geometry."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dashboard.pricing import price, timing_of
from dashboard.queries.passes import AXES
from dashboard.store import Store
from engine import knobs
from engine.bundle import find_bundle
from engine.replay import knobs_from_run, replay
from engine.timing import measured_model
from engine.traces import stored_trace

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


def test_a_replay_of_recorded_passes_is_priced_from_the_run_that_timed_it(tmp_path: Path) -> None:
    measured = find_bundle([SAMPLES], "tight8")
    values = knobs.resolve({"timing": "measured", "warmup_s": 1.0, "duration_s": 3.0}, knobs_from_run(measured))
    trace = stored_trace([SAMPLES], measured.identity.value("trace", "digest"))
    run_id = replay(trace, values, measured_model(measured), store=tmp_path, like=measured)
    store = Store([SAMPLES, tmp_path])
    timing = timing_of(store, run_id)
    assert timing is not None
    passes = store.bundle(run_id).table("passes", [*COLUMNS, "duration_ns"])
    assert passes is not None
    geometry = {
        axis: np.array(passes[column].to_pylist(), dtype=np.float64) for axis, column in zip(AXES, COLUMNS, strict=True)
    }
    assert price(timing, geometry).tolist() == passes["duration_ns"].to_pylist()
    assert timing_of(Store([tmp_path]), run_id) is None  # the measured run is not there
