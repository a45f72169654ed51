"""Parity with recordings made up from runs of the plain core, and with recordings that were tampered with."""

import numpy as np
import pyarrow as pa
import pytest
from altered_runs import AlteredRun, sample
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_run import TICKS, MadeUpRun, engine_hash
from serving_driver import Load, request, small_config
from test_plain_properties import configs, loads

from engine.bundle.schema import TABLES
from engine.errors import GapscopeError
from engine.parity import BlockDivergence, BlockEvent, check_parity
from engine.serving.plain import PlainServer


@settings(deadline=None, max_examples=80)
@given(configs().flatmap(lambda config: st.tuples(st.just(config), loads(config))), st.sampled_from(["plain", "auto"]))
def test_a_core_agrees_with_what_the_plain_core_did(case, core):
    config, load = case
    run = MadeUpRun(config, load)
    if len(run.tables["passes"]):
        result = check_parity(run, core)
        assert result.first_divergence is None, result.first_divergence.describe()
        assert result.exact or result.stored is None


def crowded(seats=2):
    """Three requests on two seats."""
    return MadeUpRun(small_config(seats=seats), Load([(0, request(i, 6, 3, [10 * i])) for i in range(3)]))


def test_first_divergence_names_batches_queues_and_free_blocks():
    run = AlteredRun(crowded(), identity={("scheduler", "max_num_seqs"): 1})
    result = check_parity(run, "plain")
    assert (result.passes, result.equal_passes) == (6, 0)
    assert not result.exact
    first = result.first_divergence
    assert first.pass_index == 0
    assert first.measured == [("r0", 0, 6), ("r1", 0, 6)]
    assert first.replay == [("r0", 0, 6)]
    assert (first.missing, first.extra) == ([("r1", 0, 6)], [])
    assert (first.measured_waiting, first.replay_waiting) == (["r2"], ["r1", "r2"])
    assert (first.measured_free_blocks, first.replay_free_blocks) == (996, 998)
    text = first.describe()
    assert "only measured: r1 (6 tokens after 0)" in text
    assert "waiting: measured r2; replayed r1, r2" in text
    assert "free blocks: measured 996; replayed 998" in text


def test_pass_that_the_core_does_not_run_differs():
    run = crowded()
    last = run.table("passes").slice(5)
    late = last.set_column(last.schema.get_field_index("start_ns"), "start_ns", pa.array([10**9]))
    late = late.set_column(late.schema.get_field_index("pass_index"), "pass_index", pa.array([77]))
    result = check_parity(
        AlteredRun(run, passes=pa.concat_tables([run.table("passes"), late.cast(last.schema)])), "plain"
    )
    assert (result.passes, result.equal_passes) == (7, 6)
    assert (result.first_divergence.pass_index, result.first_divergence.replay) == (77, [])
    assert result.first_divergence.replay_free_blocks is None


@pytest.mark.parametrize("core", ["plain", "skipping"])
def test_one_altered_member_is_one_unequal_pass(core):
    bundle = sample("tight8")
    passes = bundle.table("passes").to_pylist()
    passes[2500]["members"][0]["scheduled_tokens"] += 1
    result = check_parity(AlteredRun(bundle, passes=pa.Table.from_pylist(passes, TABLES["passes"].schema)), core)
    assert result.passes - result.equal_passes == 1
    assert result.first_divergence.pass_index == passes[2500]["pass_index"]


def test_two_evictions_that_changed_places_are_two_unequal_ones():
    bundle = sample("tight8")
    rows = bundle.table("kv_events").to_pylist()
    first, second = [n for n, row in enumerate(rows) if row["kind"] == "evict"][1000:1002]
    for column in ("block_hashes", "content_hashes"):
        rows[first][column], rows[second][column] = rows[second][column], rows[first][column]
    events_ = pa.Table.from_pylist(rows, TABLES["kv_events"].schema)
    result = check_parity(AlteredRun(bundle, kv_events=events_), "plain")
    assert result.equal_passes == result.passes
    differs = result.first_block_divergence
    event, at = rows[first]["event_index"], rows[first]["pass_index"]
    before = sum(len(row["block_hashes"]) for row in rows[:first] if row["kind"] in ("store", "evict"))
    # Of the event's blocks the first is the first that was exchanged.
    assert differs.place == before
    assert differs.measured == BlockEvent(False, rows[first]["block_hashes"][0], at, event)
    assert differs.replay == BlockEvent(False, rows[second]["block_hashes"][0], at)
    assert result.removed - result.removed_equal == 2
    assert result.ordered_equal == result.stored + result.removed - 2
    assert not result.exact


def test_eviction_and_store_that_changed_places_differ_only_in_their_common_order():
    run = MadeUpRun(small_config(blocks=4), Load([(0, request(0, 12, 1, [1, 2, 3])), (5, request(1, 8, 1, [7, 8]))]))
    assert check_parity(run, "plain").exact
    table = run.table("kv_events")
    place = table.schema.get_field_index("event_index")
    swapped = table.set_column(place, "event_index", pa.array([0, 2, 1])).cast(table.schema)
    result = check_parity(AlteredRun(run, kv_events=swapped), "plain")
    assert (result.stored_equal, result.removed_equal, result.ordered_equal) == (5, 1, 3)  # all behind it moved
    assert not result.exact
    # Of the second request's first block the pool had no room: 3 was removed, then 7 and 8 stored.
    assert result.first_block_divergence == BlockDivergence(
        3, BlockEvent(True, engine_hash(7), 1, 1), BlockEvent(False, engine_hash(3), 1)
    )
    assert result.describe().splitlines()[1:] == [
        "block 3 of those stored and removed (counted from 0) is the first that differs",
        f"  measured: stored block {engine_hash(7):016x} in pass 1 (event 1)",
        f"  replayed: removed block {engine_hash(3):016x} in pass 1",
    ]


def test_two_contents_cannot_stand_for_one_hash():
    run = MadeUpRun(small_config(), Load([(0, request(0, 5, 1, [1])), (5, request(1, 5, 1, [2]))]))
    rows = run.table("kv_events").to_pylist()
    rows[1]["block_hashes"] = rows[0]["block_hashes"]
    result = check_parity(AlteredRun(run, kv_events=pa.Table.from_pylist(rows, TABLES["kv_events"].schema)), "plain")
    assert (result.stored, result.stored_equal) == (2, 1)
    assert result.first_block_divergence == BlockDivergence(
        1, BlockEvent(True, engine_hash(1), 1, 1), BlockEvent(True, None, 1)
    )


def test_calls_that_computed_nothing_are_no_passes():
    run = crowded()
    rows = run.table("passes").to_pylist()
    idle = {**rows[-1], "pass_index": 6, "start_ns": 10**9, "members": []}
    unknown = {**idle, "pass_index": 7, "members": None}
    passes = pa.Table.from_pylist([*rows, idle, unknown], TABLES["passes"].schema)
    assert check_parity(AlteredRun(run, passes=passes), "plain").passes == 6


def test_run_without_requests_is_refused():
    run = crowded()
    for requests in (None, run.table("requests").slice(0, 0)):
        with pytest.raises(GapscopeError, match="made-up-0123456789ab has no requests"):
            check_parity(AlteredRun(run, requests=requests), "plain")
    with pytest.raises(GapscopeError, match=r"fpm_sweep-\w+ has no requests \(a sweep never has\)"):
        check_parity(sample("fpm_sweep"), "plain")


def test_requests_unknown_to_the_client_are_counted():
    run = crowded()
    result = check_parity(AlteredRun(run, requests=run.table("requests").slice(0, 1)), "plain")
    assert (result.unknown_requests, result.unnamed_requests) == (2, 0)
    assert "  requests that the client's record does not have: 2; " in result.describe()
    assert "does not have" not in check_parity(run, "plain").describe()


def test_run_without_batches_is_refused():
    run = crowded()
    members_schema = TABLES["passes"].schema
    without_members = (
        run.table("passes")
        .drop_columns(["members"])
        .append_column(
            TABLES["passes"].schema.field("members"), pa.nulls(6, TABLES["passes"].schema.field("members").type)
        )
    )
    nobody = pa.Table.from_pylist([row | {"members": []} for row in run.table("passes").to_pylist()], members_schema)
    for passes in (None, without_members, nobody):
        with pytest.raises(GapscopeError, match="made-up-0123456789ab does not record who was in its batches"):
            check_parity(AlteredRun(run, passes=passes), "plain")


def test_run_of_several_schedulers_is_refused():
    rows = crowded().table("passes").to_pylist()
    for n, row in enumerate(rows):
        row["dp_rank"] = n % 2
    passes = pa.Table.from_pylist(rows, TABLES["passes"].schema)
    with pytest.raises(GapscopeError, match="batches of 2 schedulers"):
        check_parity(AlteredRun(crowded(), passes=passes), "plain")


def test_run_whose_identity_lacks_the_capacity_is_refused():
    run = AlteredRun(crowded(), identity={("capacity", "block_size"): None})
    with pytest.raises(GapscopeError, match=r"does not say capacity\.block_size"):
        check_parity(run, "plain")


def test_running_request_that_is_aborted_leaves_before_the_next_pass():
    load = Load([(0, request(0, 6, 9)), (0, request(1, 6, 9)), (0, request(2, 6, 2))], aborts=[(3, 0)])
    run = MadeUpRun(small_config(seats=2), load)
    members = [[m["request_id"] for m in row] for row in run.table("passes")["members"].to_pylist()]
    assert members[2:4] == [["r0", "r1"], ["r1", "r2"]]
    assert check_parity(run, "plain").exact
    # Where the release is not recorded, the last pass of a request that did not end well tells it.
    requests = run.table("requests")
    place = requests.schema.get_field_index("released_ns")
    requests = requests.set_column(place, requests.schema.field(place), pa.nulls(3, pa.int64()))
    assert check_parity(AlteredRun(run, requests=requests), "plain").exact


class DropsFirst(PlainServer):
    """Drops request 0 while pass 2 runs, as engines do: before that pass lets go of who finished in it."""

    def _update(self, batch, end_ns):
        if len(self._passes) != 3:
            return super()._update(batch, end_ns)
        done = []
        self._release = lambda request, now_ns: done.append(request)
        finished = super()._update(batch, end_ns)
        del self._release
        self.abort(0, end_ns)
        for gone in done:
            self._release(gone, end_ns)
        return finished


def test_request_dropped_within_a_pass_lets_go_before_those_that_finish_in_it():
    # Requests 0 and 1 hold two full blocks each; 1 ends in pass 2, and 0 is dropped while it runs. Then 2 needs six.
    load = [(0, request(0, 8, 9, [1, 2])), (0, request(1, 8, 3, [11, 12])), (5, request(2, 26, 1, [21, 22, 23, 24]))]
    run = MadeUpRun(small_config(blocks=8), Load(load), DropsFirst)
    evicted = [row["block_hashes"] for row in run.table("kv_events").to_pylist() if row["kind"] == "evict"]
    assert evicted == [[engine_hash(key) for key in (2, 1, 12)]]
    rows = run.table("requests").to_pylist()
    rows[0] |= {"status": "canceled", "released_ns": 2 * TICKS + 500}
    rows[1] |= {"released_ns": 2 * TICKS + 900}
    requests = pa.Table.from_pylist(rows, TABLES["requests"].schema)
    assert check_parity(AlteredRun(run, requests=requests), "plain").exact
    assert check_parity(AlteredRun(run, requests=requests), "skipping").exact
    rows[0]["released_ns"] = 3 * TICKS  # between the passes: then it lets go after them
    requests = pa.Table.from_pylist(rows, TABLES["requests"].schema)
    assert not check_parity(AlteredRun(run, requests=requests), "plain").exact


def test_events_of_unequal_length_are_not_exact():
    run = crowded()
    fewer = run.table("kv_events").slice(0, 2)
    result = check_parity(AlteredRun(run, kv_events=fewer), "plain")
    assert (result.stored, result.stored_equal) == (2, 2)
    assert result.replay_stored == 6
    assert not result.exact
    # Each request of 6 tokens fills a block in its first pass and the next in its third, with its eighth token.
    assert result.first_block_divergence == BlockDivergence(2, None, BlockEvent(True, None, 2))
    assert result.describe().splitlines() == [
        "plain     6 of 6 passes equal; stored 2 of 2, removed 0 of 0 blocks equal in order",
        "  measured: 2 blocks stored, 0 removed; replayed: 6 stored, 0 removed",
        "block 2 of those stored and removed (counted from 0) is the first that differs",
        "  measured: no further block",
        "  replayed: stored a block of no recorded hash in pass 2",
    ]
    assert np.isclose(result.equal_passes / result.passes, 1)
