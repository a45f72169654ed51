"""Arrivals by time: planted differences are named, and counting goes on from the recorded state."""

import json
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from altered_runs import AlteredRun, sample
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_run import TICKS, MadeUpRun
from serving_driver import Load, request, small_config
from test_plain_properties import configs, loads

from engine.bundle.schema import DIVERGENCE_CAUSES, TABLES
from engine.parity import check_by_dispatch, check_closed_loop, divergences_table
from engine.parity.way import Sightings, estimate_way
from engine.serving.block_pool import BlockPool
from engine.traces import stored_trace

opened = cache(sample)


def steady(seats=4, aborts=(), **others):
    """A request that runs for all of 60 passes, and every tenth pass one of 12 tokens that samples 3."""
    load = [(0, request(0, 8, 60)), *((10 * n, request(n, 12, 3, [100 * n])) for n in range(1, 6))]
    return MadeUpRun(small_config(seats=seats, **others), Load(load, aborts))


def changed(run, **columns):
    """The run with other values in columns of its requests: ``{request_id: value}`` each."""
    rows = run.table("requests").to_pylist()
    for row in rows:
        for column, values in columns.items():
            row[column] = values.get(row["request_id"], row[column])
    return AlteredRun(run, requests=pa.Table.from_pylist(rows, TABLES["requests"].schema))


def causes(result):
    assert sum(result.causes.values()) == result.passes - result.equal_passes == len(result.divergences)
    return [(d.pass_index, d.cause) for d in result.divergences]


@settings(deadline=None, max_examples=60)
@given(configs().flatmap(lambda config: st.tuples(st.just(config), loads(config))))
def test_a_way_that_is_always_the_same_makes_every_pass_equal(case):
    run = MadeUpRun(*case)
    if not len(run.tables["passes"]):
        return
    result = check_by_dispatch(run)
    assert result.divergences == [], result.describe()
    assert (result.equal_passes, result.on_time) == (result.passes, result.requests)
    assert (result.stored_equal, result.removed_equal) == (result.stored, result.removed)


def test_steady_load_by_hand():
    run = steady()
    result = check_by_dispatch(run)
    assert (result.passes, result.equal_passes, result.requests) == (60, 60, 5)  # the first opened the recording
    # Dispatched half a tick (of 1 ms) before the look that found them and after the look before: any way up to 0.5 ms.
    assert result.way["constant_ms"] == 0.25
    assert result.way["look"] == "end of the pass before"
    assert result.summary()["share"] == 1.0
    assert result.summary()["first"] is None


def test_request_whose_way_was_long_is_early_in_every_pass_that_it_missed():
    # Sent two ticks sooner than the others: by their way it comes for passes 28 and 29, the engine took it for 30.
    result = check_by_dispatch(changed(steady(), dispatched_ns={"r3": 28 * TICKS - TICKS // 2}))
    assert causes(result) == [(28, "arrival_early"), (29, "arrival_early")]
    assert (result.passes, result.equal_passes, result.requests, result.on_time) == (60, 58, 5, 4)
    first = result.first
    assert first.measured == [("r0", 35, 1)]
    assert first.replay == [("r0", 35, 1), ("r3", 0, 12)]
    assert (first.measured_waiting, first.replay_waiting) == ([], [])
    # r0 has 36 of its tokens in nine blocks of four, r3 twelve in three; the pool has 1000.
    assert (first.measured_free_blocks, first.replay_free_blocks) == (991, 988)
    assert first.explanation == (
        "r3 was dispatched at 0.0275 s, was estimated to need 0.2 ms and so reached the engine 0.2 ms before it looked "
        "for pass 28; it took it for pass 30, so the way took more than 1.5 ms"
    )
    # What was stored too early is not what was stored then; afterwards it is stored for pass 30 as recorded.
    assert result.stored_equal == result.stored


def test_request_whose_way_was_short_is_late():
    # The others need half a tick to one and a half, so by their way it comes 0.7 ticks after the look that found it.
    sent = {f"r{n}": (10 * n - 1) * TICKS - TICKS // 2 for n in range(1, 6)}
    result = check_by_dispatch(changed(steady(), dispatched_ns=sent | {"r3": 30 * TICKS - 3 * TICKS // 10}))
    assert causes(result) == [(30, "arrival_late")]
    assert result.way["constant_ms"] == 1.0
    assert result.first.replay == [("r0", 37, 1)]
    assert result.first.explanation.endswith("it took it for pass 30, so the way took at most 0.3 ms")


def test_difference_that_changes_no_batch_is_none():
    # Two seats are taken from pass 0 to 29, so when r2 comes within that time does not matter.
    load = Load([(0, request(0, 8, 30)), (0, request(1, 8, 30)), (20, request(2, 8, 3)), (40, request(3, 8, 3))])
    run = changed(MadeUpRun(small_config(seats=2), load), dispatched_ns={"r2": 12 * TICKS})
    result = check_by_dispatch(run)
    assert (result.equal_passes, result.passes, result.on_time, result.requests) == (36, 36, 1, 2)


def test_cancel_that_took_another_way_is_named():
    aborts = [(25, 0)]
    assert check_by_dispatch(steady(aborts=aborts)).divergences == []
    late = check_by_dispatch(changed(steady(aborts=aborts), end_ns={"r0": 23 * TICKS - TICKS // 2}))
    # The engine works on r0 alone in passes 23 and 24; by the estimate it has been told to stop, and waits for r3.
    assert [cause for _, cause in causes(late)] == ["cancel_time", "cancel_time"]
    assert "the cancel of r0 was estimated to reach the engine 0.2 ms before it looked for pass 23" in (
        late.first.explanation
    )
    assert late.first.explanation.endswith("it dropped the request before pass 25")
    busy = steady(aborts=[(31, 0)])
    early = check_by_dispatch(changed(busy, end_ns={"r0": 33 * TICKS}))
    assert causes(early) == [(31, "cancel_time")]  # from there on it is dropped on both sides


def test_other_scheduler_settings_are_named_and_counting_goes_on():
    load = Load([(10 * n, request(3 * n + k, 6, 3, [])) for n in range(5) for k in range(3)])
    run = MadeUpRun(small_config(seats=3), load)
    result = check_by_dispatch(AlteredRun(run, identity={("scheduler", "max_num_seqs"): 2}))
    # Each burst of three is admitted at once in the recording; its two further passes decode whoever runs.
    assert causes(result) == [(3 * n, "scheduler") for n in range(5)]
    assert (result.passes, result.equal_passes) == (15, 10)
    assert result.first.measured == [("r0", 0, 6), ("r1", 0, 6), ("r2", 0, 6)]
    assert result.first.replay == [("r0", 0, 6), ("r1", 0, 6)]
    assert (result.first.measured_waiting, result.first.replay_waiting) == ([], ["r2"])
    assert result.first.explanation.endswith("it differs in r2")


def test_request_that_the_client_does_not_know_comes_with_the_pass_that_took_it():
    run = steady()
    seen = run.table("requests").filter(pc.not_equal(run.table("requests")["request_id"], "r3"))
    result = check_by_dispatch(AlteredRun(run, requests=seen))
    assert (result.equal_passes, result.requests) == (60, 4)


def test_unknown_request_is_named_where_what_is_inferred_of_it_is_wrong():
    # A decode of two tokens, as no engine without speculation does it.
    run = steady()
    seen = run.table("requests").filter(pc.not_equal(run.table("requests")["request_id"], "r3"))
    passes = run.table("passes").to_pylist()
    for member in passes[31]["members"]:
        member["scheduled_tokens"] += member["request_id"] == "r3"
    altered = AlteredRun(run, requests=seen, passes=pa.Table.from_pylist(passes, TABLES["passes"].schema))
    found = causes(check_by_dispatch(altered))
    assert found
    assert {cause for _, cause in found} == {"unknown_request"}


def test_content_that_nothing_tells_is_named():
    bundle = opened("ample8")
    requests = bundle.table("requests")
    for name in ("prompt_block_hashes", "output_block_hashes"):
        place, field = requests.schema.get_field_index(name), requests.schema.field(name)
        requests = requests.set_column(place, field, pa.nulls(len(requests), field.type))
    result = check_by_dispatch(AlteredRun(bundle, requests=requests))
    assert result.causes["unknown_content"] == 2  # as many as are counted when fed by arrival
    assert result.causes.keys() <= {"unknown_content", "arrival_early", "arrival_late"}


def test_table_and_summary_say_the_same():
    results = [check_by_dispatch(changed(steady(), dispatched_ns={"r3": 28 * TICKS - TICKS // 2}))]
    table = divergences_table(results)
    assert table.schema == TABLES["divergences"].schema
    assert table["pass_index"].to_pylist() == [28, 29]
    assert table["replay_members"].to_pylist()[0][1] == {
        "request_id": "r3",
        "computed_before": 0,
        "scheduled_tokens": 12,
    }
    summary = results[0].summary()
    assert json.loads(json.dumps(summary)) == summary
    assert (summary["passes"], summary["equal"], summary["first"]) == (60, 58, 28)
    assert summary["causes"] == {"arrival_early": 2}
    assert divergences_table([]).num_rows == 0


# -- the way -------------------------------------------------------------------------------------------------------


def sightings(count, way, seed=3, spread=30.0):
    """Requests over looks every 20 ms; ``way`` says how long each needs (ms), from (tokens, requests beside)."""
    rng = np.random.default_rng(seed)
    dispatched = np.sort(rng.uniform(0, count * spread, count))
    tokens = rng.integers(10, 5000, count).astype(float)
    near = np.abs(dispatched[:, None] - dispatched[None, :])
    arrived = dispatched + way(tokens, (near < 6).sum(axis=1) - 1)
    high = np.ceil(arrived / 20) * 20
    return Sightings(dispatched, tokens, *(np.stack([bound, bound + 1]) - dispatched for bound in (high - 20, high)))


def test_constant_way_is_found_with_one_term():
    way = estimate_way(sightings(400, lambda tokens, beside: np.full(len(tokens), 7.0)))
    assert len(way.terms) == 1
    assert way.terms[0] == pytest.approx(7.0, abs=0.3)  # 400 looks of 20 ms leave gaps of about 0.05 ms around it
    assert (way.explained, way.requests, way.in_order) == (400, 400, True)


def test_way_that_grows_with_the_prompt_is_found():
    seen = sightings(400, lambda tokens, beside: 2 + 0.003 * tokens, spread=60.0)
    way = estimate_way(seen)
    assert way.terms[0] == pytest.approx(2.0, abs=0.6)
    assert way.terms[1] == pytest.approx(3.0, abs=0.3)
    assert way.held_out[("end of the pass before")][1] > 0.97
    np.testing.assert_allclose(way.arrivals(np.array([0.0]), np.array([1000.0])), 5.0, atol=0.7)


def test_rule_is_chosen_by_requests_that_it_was_not_fitted_on():
    way = estimate_way(sightings(300, lambda tokens, beside: np.random.default_rng(1).uniform(0, 60, len(tokens))))
    # Nothing explains the ways, so no term does better on other requests by more than chance.
    assert max(way.held_out["end of the pass before"]) < 0.5


def test_no_sighting_is_no_way():
    nothing = np.empty(0)
    way = estimate_way(Sightings(nothing, nothing, np.empty((2, 0)), np.empty((2, 0))))
    assert way.arrivals(np.array([5.0]), np.array([100.0])).tolist() == [5.0]


def test_copied_pool_goes_its_own_way():
    pool = BlockPool(3)
    (block, _), _ = pool.take(2)
    pool.register(block, 7)
    twin = pool.copy()
    twin.release([block], 5)
    assert (pool.num_free, twin.num_free) == (1, 2)
    twin.check_integrity([[1]])
    pool.check_integrity([[0, 1]])
    assert pool.find(7) == twin.find(7) == block


# -- recordings of a real engine -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ample8", "ample8_repeat", "tight8", "tight8_repeat"])
def test_passes_of_a_real_engine_by_dispatch_times(name):
    result = check_by_dispatch(opened(name))
    assert result.share >= 0.99
    assert result.causes.keys() <= set(DIVERGENCE_CAUSES) - {"scheduler", "carried_over", "parted"}
    assert result.stored_equal / result.stored > 0.98
    assert result.removed_equal / result.removed > 0.97
    for divergence in result.divergences:
        assert "it took it for pass" in divergence.explanation


def test_closed_loop_of_a_real_engine_parts_at_a_pass_and_says_why():
    bundle = opened("tight8")
    trace = stored_trace([bundle.path.parent], bundle.identity.value("trace", "digest"))
    result = check_closed_loop(bundle, trace)
    first = result.first
    assert 0 < result.equal_passes < result.passes
    assert first.pass_index >= 1
    assert first.measured != first.replay
    assert result.causes == {"parted": result.passes - result.equal_passes}
    assert len(result.divergences) == 1
    assert result.anywhere >= result.equal_passes
    assert result.matched > 0.98 * result.requests
    assert " in the recording and " in first.explanation
