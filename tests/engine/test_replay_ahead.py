"""Replays with batches formed ahead, or steps without prompts: laws of runs, identity, and recordings like them."""

from __future__ import annotations

from copy import copy
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from altered_runs import AlteredRun, sample

from engine.bundle import open_bundle
from engine.errors import GapscopeError
from engine.identity import Identity
from engine.knobs import resolve
from engine.parity import check_parity
from engine.replay import knobs_from_run, replay
from engine.timing.hidden import hides
from engine.timing.measured import measured_model
from tests.engine.run_laws import Run, broken
from tests.engine.test_client_properties import random_trace
from tests.engine.test_run_laws import played

LOAD: dict[str, Any] = {"lanes": 6, "response_latency_ms": 7, "max_num_seqs": 8}


def seats_freed_at_once(run: Run) -> Run:
    """The run as if nobody who was done had been there when the next batch was formed, for the laws of other runs.

    Of those who finished in the pass before, all that were not preempted still have their seats, or, where the batch
    was formed after that pass, none. Their blocks are let go right after the next has begun.
    """
    finished: dict[int, set[str]] = {}
    last = {member["request_id"]: row["pass_index"] for row in run.passes for member in row["members"]}
    for row in run.requests:
        finished.setdefault(last[row["request_id"]], set()).add(row["request_id"])
    preempted = {(event["pass_index"], event["request_id"]) for event in run.kv_events if event["kind"] == "preempt"}
    later: dict[int, float] = {}
    for before, row in pairwise(run.passes):
        at = row["pass_index"]
        done = {name for name in finished.get(before["pass_index"], ()) if (at, name) not in preempted}
        if row["num_running"] > len(row["members"]):
            assert row["num_running"] == len(row["members"]) + len(done)
            row["num_running"] -= len(done)
            later[before["end_ns"]] = row["start_ns"] + 0.5
    for row in run.requests:
        row["released_ns"] = later.get(row["released_ns"], row["released_ns"])
    for event in run.kv_events:
        if event["kind"] == "evict":
            released = event["time_ns"] - event["age_ns"]
            event["age_ns"] = event["time_ns"] - later.get(released, released)
    assert later
    return run


@pytest.mark.parametrize("between_ms", [0.0, 0.7, 30.0])
@pytest.mark.parametrize("seed", range(6))
def test_every_law_holds_with_batches_formed_ahead(tmp_path: Path, seed: int, between_ms: float) -> None:
    changes = LOAD | {"async_scheduling": True, "between_passes_ms": between_ms, "max_num_batched_tokens": 70}
    run, _ = played(tmp_path, random_trace(20 + seed, 6), changes, (0, 6, 60)[seed % 3])
    assert broken(seats_freed_at_once(run)) == {}
    # Who is given up on is computed once more after the engine was told, so the laws of the pool are for other runs.
    changes |= {"duration_s": 0.3, "grace_s": 0.01}
    run, _ = played(tmp_path, random_trace(20 + seed, 6), changes, (0, 6, 60)[seed % 3])
    assert broken(run).keys() <= {"sums_of_passes", "pool"}


def test_what_is_simulated_is_in_the_identity_and_is_replayed_again(tmp_path: Path) -> None:
    ranks = {"attention_dp": 2, "prefill_schedule_interval": 4}
    for changes in ({}, {"async_scheduling": True}, ranks):
        values = resolve({"lanes": 2, "timing": "fixed", **changes})
        bundle = open_bundle(tmp_path / replay(random_trace(3, 2), values, store=tmp_path))
        assert bundle.identity.value("scheduler", "async_scheduling") is ("async_scheduling" in changes)
        assert bundle.identity.value("scheduler", "prefill_interval") == (4 if changes == ranks else None)
        again = resolve(knobs_from_run(bundle))
        assert all(again[name] == values[name] for name in ("async_scheduling", "prefill_schedule_interval"))


class Recorded:
    """As much of a measured run as its knobs are read from."""

    kind, run_id, phases = "measured", "some-run", ()

    def __init__(self, **fields: tuple[str, Any]) -> None:
        self.identity = Identity()
        for name, (group, value) in fields.items():
            self.identity.set(group, name, value, "test")


@pytest.mark.parametrize(
    ("engine", "ranks", "expected"),
    [
        ("vLLM", 8, {"async_scheduling": True, "prefill_schedule_interval": 4, "attention_dp": 8}),
        ("vLLM", 1, {"async_scheduling": True, "attention_dp": 1}),
        ("SGLang", 8, {"engine": "sglang", "attention_dp": 8}),
    ],
)
def test_a_recording_that_says_so_is_replayed_so(engine: str, ranks: int, expected: dict[str, Any]) -> None:
    run = Recorded(
        engine=("source", engine),
        attention_dp=("topology", ranks),
        async_scheduling=("scheduler", True),
        prefill_interval=("scheduler", 4),
    )
    found = knobs_from_run(run)  # type: ignore[arg-type]
    assert found == expected
    resolve(found)


def test_parity_refuses_a_recording_of_batches_formed_ahead() -> None:
    recorded = AlteredRun(sample("ample8"), identity={("scheduler", "async_scheduling"): True})
    with pytest.raises(GapscopeError, match="asynchronous scheduling"):
        check_parity(recorded)


@pytest.mark.parametrize("recorded_ahead", [False, True])
def test_time_that_a_recording_had_left_is_not_hidden_again(recorded_ahead: bool) -> None:
    """The gaps of a run that was recorded so are what was left; of any other, and where given, they are host time."""
    run = copy(sample("ample8"))
    run.identity = AlteredRun(run, identity={("scheduler", "async_scheduling"): recorded_ahead}).identity
    model = measured_model(run)
    values = resolve({"async_scheduling": True, "timing": "measured"})
    assert hides(values, model) is not recorded_ahead
    assert hides(values | {"between_passes_ms": 1.0}, model)
    assert not hides(values | {"async_scheduling": False}, model)
