"""The golden test: on recordings of a real engine, every batch and every cache event is the recorded one."""

from functools import cache

import numpy as np
import pyarrow.compute as pc
import pytest
from altered_runs import AlteredRun, begun_at, every, idle_starts, one_after_the_other, sample, without

from engine.parity import check_parity
from engine.parity.openloop import replay_recorded
from engine.parity.recorded import read_recorded

CORES = ("plain", "skipping")
RECORDINGS = {  # passes, blocks stored, blocks removed
    "ample8": (4789, 5286, 1195),
    "ample8_repeat": (5126, 5563, 1474),
    "tight8": (3766, 8703, 8487),
    "tight8_repeat": (3659, 8547, 8327),
}

opened = cache(sample)


def assert_exact(result):
    assert result.first_divergence is None, result.first_divergence.describe()
    assert result.equal_passes == result.passes
    assert (result.stored_equal, result.replay_stored) == (result.stored, result.stored)
    assert (result.removed_equal, result.replay_removed) == (result.removed, result.removed)
    if result.stored is not None:
        assert result.ordered_equal == result.stored + result.removed
    assert result.exact


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("name", RECORDINGS)
def test_every_pass_and_every_block_is_the_recorded_one(name, core):
    result = check_parity(opened(name), core)
    assert (result.passes, result.stored, result.removed) == RECORDINGS[name]
    assert result.unnamed_requests == 0
    assert_exact(result)


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("name", RECORDINGS)
def test_what_the_server_counts_per_pass_is_what_the_engine_reported(name, core):
    bundle = opened(name)
    (segment,) = replay_recorded(read_recorded(bundle), core)
    passes = bundle.table("passes")
    passes = passes.filter(pc.greater(pc.list_value_length(passes["members"]), 0))
    exact = [
        "num_prefill_requests",
        "sum_prefill_tokens",
        "sum_prefill_kv_tokens",
        "num_decode_requests",
        "sum_decode_kv_tokens",
        "queued_num_prefill_requests",
        "queued_sum_prefill_tokens",
        "queued_num_decode_requests",
        "queued_sum_decode_kv_tokens",
        "num_output_tokens",
        "kv_blocks_used",
        "kv_blocks_cached",
        "num_running",
        "num_waiting",
        "num_preempted",
    ]
    ours = segment.record.passes
    for column in exact:
        np.testing.assert_array_equal(ours[column], passes[column].to_numpy(), err_msg=column)
    for column in ("var_prefill_length", "var_decode_kv_tokens"):  # recorded to three decimals
        np.testing.assert_allclose(ours[column], passes[column].to_numpy(), rtol=0, atol=0.00051, err_msg=column)


@pytest.mark.parametrize("core", CORES)
def test_requests_unknown_to_the_client_are_found_in_the_passes(core):
    bundle = opened("ample8")
    seen = every(bundle.table("requests"), 10, keep=False)
    assert_exact(check_parity(AlteredRun(bundle, requests=seen), core))
    nameless = without(bundle.table("kv_events"), "content_hashes", "request_id")
    assert_exact(check_parity(AlteredRun(bundle, requests=seen, kv_events=nameless), core))


@pytest.mark.parametrize("core", CORES)
def test_arrivals_and_releases_that_nobody_recorded_are_inferred(core):
    bundle = opened("tight8")
    requests = without(bundle.table("requests"), "received_ns", "released_ns")
    result = check_parity(AlteredRun(bundle, requests=requests), core)
    # Who is admitted late is known to have waited; what the head of the queue lacked follows from the pool.
    assert_exact(result)


def test_hits_of_unknown_content_are_counted():
    bundle = opened("ample8")
    requests = without(bundle.table("requests"), "prompt_block_hashes", "output_block_hashes")
    result = check_parity(AlteredRun(bundle, requests=requests), "plain")
    # A request that hit blocks and stored none after them leaves no trace of what they were.
    # Two did; the passes that differ are those that computed what they should have hit, and the next each.
    assert result.unnamed_requests == 2
    assert result.first_divergence is not None
    assert result.passes - result.equal_passes == 4


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("name", RECORDINGS)
def test_pool_that_was_not_empty_when_the_recording_began(name, core):
    for start in idle_starts(opened(name)):
        run = begun_at(opened(name), start)
        assert run.table("passes")["kv_blocks_cached"][0].as_py() > 200
        result = check_parity(run, core)
        assert result.removed > 0
        assert_exact(result)


@pytest.mark.parametrize("name", RECORDINGS)
def test_empty_pool_is_known_without_the_clear_that_emptied_it(name):
    events = opened(name).table("kv_events")
    run = AlteredRun(opened(name), kv_events=events.filter(pc.not_equal(events["kind"], "clear")))
    assert read_recorded(run).held.chains == []
    uncounted = AlteredRun(run, passes=without(opened(name).table("passes"), "kv_blocks_cached"))
    assert read_recorded(uncounted).held.chains == []
    assert_exact(check_parity(run, "auto"))


def test_full_pool_whose_contents_nobody_counted():
    # 855 begins with every block of the pool filled, and all of them are evicted later.
    run = begun_at(opened("tight8"), 855)
    assert run.table("passes")["kv_blocks_cached"][0].as_py() == 222
    assert_exact(check_parity(AlteredRun(run, passes=without(run.table("passes"), "kv_blocks_cached")), "auto"))


@pytest.mark.parametrize("core", CORES)
def test_cache_that_is_cleared_within_the_recording(core):
    result = check_parity(one_after_the_other(opened("tight8"), opened("tight8_repeat")), core)
    assert (result.passes, result.stored, result.removed) == (3766 + 3659, 8703 + 8547, 8487 + 8327)
    assert_exact(result)


def test_recording_without_cache_events():
    result = check_parity(AlteredRun(opened("tight8"), kv_events=None), "plain")
    assert (result.passes, result.stored, result.removed, result.ordered_equal) == (3766, None, None, None)
    assert_exact(result)
