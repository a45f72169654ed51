"""Servers that are told what happened: the reuse of a request, or its batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_driver import FixedTiming, Load, batches, drive, events, request, small_config
from test_plain_properties import CheckedServer, configs, loads

from engine.errors import GapscopeError
from engine.serving.composed import ComposedServer
from engine.serving.contract import ServerRecord
from engine.serving.members import Members, members
from engine.serving.plain import PlainServer
from engine.serving.skipping import SkippingServer

TABLES = ("passes", "requests", "stretches", "prefill_chunks", "admissions", "preemptions", "events")


class CheckedComposer(ComposedServer):
    """Checks its pool after every pass."""

    def complete(self, now_ns, duration_ns):
        super().complete(now_ns, duration_ns)
        self.pool.check_integrity([request.blocks for request in self._running])
        assert all(len(r.blocks) == -(-r.computed // self.config.block_size) for r in self._running)


def equal(left: ServerRecord, right: ServerRecord, *tables: str) -> None:
    for table in tables:
        for name, column in getattr(left, table).items():
            np.testing.assert_array_equal(column, getattr(right, table)[name], f"{table}.{name}")


def told(load: Load, cached: dict[int, int]) -> Load:
    return Load([(at, replace(r, cached_tokens=cached.get(r.index))) for at, r in load.arrivals], load.aborts)


def members_of(*passes: list[tuple[int, int, int]]) -> Members:
    rows = [(number, *member) for number, batch in enumerate(passes) for member in batch]
    return Members(*(np.array(column, np.int64) for column in zip(*rows, strict=True)))


@st.composite
def cases(draw):
    config = draw(configs())
    timing = FixedTiming(*(draw(st.integers(low, low + 3)) for low in (1, 0, 0, 0)))
    return config, draw(loads(config)), timing


# -- forced reuse ----------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(cases())
def test_to_be_told_what_the_pool_holds_changes_nothing(case) -> None:
    config, load, timing = case
    free, _ = drive(PlainServer(config, timing), load)
    cached = {n: int(c) for n, c in enumerate(free.requests["cached_tokens"]) if c >= 0}
    forced, _ = drive(CheckedServer(config, timing), told(load, cached))
    equal(free, forced, *TABLES)
    np.testing.assert_array_equal(free.event_keys, forced.event_keys)


@settings(max_examples=60)
@given(cases(), st.data())
def test_any_reuse_can_be_told_and_the_pool_stays_whole(case, data) -> None:
    config, load, timing = case
    cached = {r.index: data.draw(st.integers(0, r.prompt_tokens - 1)) for _, r in load.arrivals}
    record, _ = drive(CheckedServer(config, timing), told(load, cached))
    admitted = record.requests["first_admit_pass"] >= 0
    for n in np.flatnonzero(admitted).tolist():
        assert record.requests["cached_tokens"][n] == cached[n]
    first = {}
    for batch in batches(record):
        for index, before, _ in batch:
            first.setdefault(index, before)
    assert first == {n: cached[n] for n in first}
    held = record.admissions
    assert (held["hit_blocks"] * config.block_size <= held["cached_tokens"]).all()
    done = ~record.requests["aborted"]
    for _, r in load.arrivals:
        assert not done[r.index] or record.requests["output_tokens"][r.index] == r.output_tokens


def test_reuse_beyond_the_pool_takes_fresh_blocks_and_reuse_below_it_computes_again() -> None:
    """Blocks of 4: the first request leaves 10, 11, 12; the second is told 4 of them, the third 8 of its own two."""
    config = small_config(blocks=20)
    load = Load(
        [
            (0, request(0, 13, 1, [10, 11, 12])),
            (10, replace(request(1, 13, 1, [10, 11, 12]), cached_tokens=4)),
            (20, replace(request(2, 10, 1, [20, 21]), cached_tokens=8)),
        ]
    )
    record, _ = drive(CheckedServer(config, FixedTiming()), load)
    assert batches(record) == [[(0, 0, 13)], [(1, 4, 9)], [(2, 8, 2)]]
    assert record.admissions["hit_blocks"].tolist() == [0, 1, 0]
    stores = [(kind, index, keys) for kind, _, index, keys in events(record) if kind == "store"]
    assert stores == [("store", 0, [10, 11, 12]), ("store", 1, [11, 12]), ("store", 2, [20, 21])]


def test_reuse_in_the_middle_of_a_block() -> None:
    load = Load([(0, replace(request(0, 11, 2, [1, 2]), cached_tokens=6))])
    record, _ = drive(CheckedServer(small_config(), FixedTiming()), load)
    assert batches(record) == [[(0, 6, 5)], [(0, 11, 1)]]
    assert [keys for _, _, _, keys in events(record)][:2] == [[1], [2]]


def test_told_reuse_counts_only_at_the_first_admission() -> None:
    """Four blocks of 4: request 1 is told 7 tokens, gives way to request 0, and comes back with what the pool holds."""
    load = Load(
        [(0, request(0, 7, 9, [1, 2, 3])), (0, replace(request(1, 8, 2, [7, 8]), cached_tokens=7))],
    )
    config = small_config(blocks=4)
    record, _ = drive(CheckedServer(config, FixedTiming()), load)
    mine = record.admissions["index"] == 1
    assert record.admissions["is_readmission"][mine].tolist() == [False, True]
    assert record.admissions["cached_tokens"][mine][0] == 7
    assert record.admissions["cached_tokens"][mine][1] % 4 == 0
    assert record.requests["output_tokens"].tolist() == [9, 2]


@pytest.mark.parametrize("cached", [-1, 5, 9])
def test_no_request_reuses_all_its_prompt(cached: int) -> None:
    with pytest.raises(GapscopeError, match="fewer than all"):
        PlainServer(small_config(), FixedTiming()).receive(replace(request(0, 5, 1), cached_tokens=cached), 0)


def test_the_skipping_core_refuses_to_be_told() -> None:
    with pytest.raises(GapscopeError, match="set core to plain"):
        SkippingServer(small_config(), FixedTiming()).receive(replace(request(0, 5, 1), cached_tokens=0), 0)


# -- given batches ---------------------------------------------------------------------------------------------


@settings(max_examples=100)
@given(cases())
def test_the_batches_of_a_scheduler_make_its_record_again(case) -> None:
    config, load, timing = case
    record, finished = drive(PlainServer(config, timing), load)
    composer = CheckedComposer(config, timing, members(record))
    again, finished_again = drive(composer, load)
    assert batches(again) == batches(record)
    assert finished_again == finished
    assert not composer.departures
    equal(record, again, "requests", "stretches", "prefill_chunks", "admissions", "preemptions")
    times = ("start_ns", "end_ns", "num_running", "num_waiting", "num_preempted", "kv_blocks_used")
    for name in times:
        np.testing.assert_array_equal(record.passes[name], again.passes[name], name)


def compose(load: Load, *passes: list[tuple[int, int, int]], blocks: int = 100):
    server = CheckedComposer(small_config(blocks=blocks), FixedTiming(duration_ns=10), members_of(*passes))
    record, finished = drive(server, load)
    return record, [(f.index, f.end_ns) for f in finished], dict(server.departures)


def test_a_batch_waits_for_all_its_members() -> None:
    load = Load([(0, request(0, 4, 2)), (17, request(1, 4, 1))])
    record, finished, left = compose(load, [(0, 0, 4)], [(0, 4, 1), (1, 0, 4)])
    assert record.passes["start_ns"].tolist() == [0, 17]  # the second was ready at 10
    assert record.passes["period_ns"].tolist() == [-1, -1]
    assert (finished, left) == ([(0, 27), (1, 27)], {})


def test_a_member_that_was_given_up_is_left_out() -> None:
    load = Load([(0, request(0, 4, 3)), (0, request(1, 4, 3))], aborts=[(10, 1)])
    both = [(0, 0, 4), (1, 0, 4)], [(0, 4, 1), (1, 4, 1)], [(1, 5, 1)], [(0, 5, 1)]
    record, finished, left = compose(load, *both)
    assert batches(record) == [[(0, 0, 4), (1, 0, 4)], [(0, 4, 1)], [(0, 5, 1)]]
    assert finished == [(0, 30)]
    assert left == {"members that had finished or gone": 1, "recorded batches whose requests were all gone": 1}


def test_who_is_left_out_and_comes_back_with_less_was_preempted() -> None:
    load = Load([(0, request(0, 4, 4)), (0, request(1, 4, 2, [1]))])
    record, _, left = compose(
        load, [(0, 0, 4), (1, 0, 4)], [(0, 4, 1)], [(0, 5, 1)], [(0, 6, 1), (1, 0, 4)], [(1, 4, 1)]
    )
    assert record.preemptions["index"].tolist() == [1]
    assert record.preemptions["pass_index"].tolist() == [1]
    assert record.passes["num_running"].tolist() == [2, 1, 1, 2, 1]
    assert record.requests["recomputed_tokens"].tolist() == [0, 4]
    assert record.requests["output_tokens"].tolist() == [4, 2]
    assert left == {}


def test_who_is_left_out_and_goes_on_where_it_stopped_keeps_its_blocks() -> None:
    load = Load([(0, request(0, 8, 1)), (0, request(1, 4, 1))])
    record, _, left = compose(load, [(0, 0, 4)], [(1, 0, 4)], [(0, 4, 4)])
    assert len(record.preemptions["index"]) == 0
    assert record.passes["kv_blocks_used"].tolist() == [1, 2, 2]
    assert left == {}


def test_tokens_that_no_batch_computed_are_counted_and_their_samples_taken_as_there() -> None:
    """The passes with 5 and 6 computed tokens were lost."""
    load = Load([(0, request(0, 4, 5))])
    record, finished, left = compose(load, [(0, 0, 4)], [(0, 4, 1)], [(0, 7, 1)])
    assert batches(record) == [[(0, 0, 4)], [(0, 4, 1)], [(0, 7, 1)]]
    assert finished == [(0, 30)]
    assert left == {"tokens that no recorded batch computes": 2}


def test_what_the_recording_leaves_unfinished_is_scheduled() -> None:
    load = Load([(0, request(0, 4, 3)), (0, request(1, 4, 1))])
    record, finished, left = compose(load, [(0, 0, 4)])
    assert batches(record) == [[(0, 0, 4)], [(0, 4, 1), (1, 0, 4)], [(0, 5, 1)]]
    assert finished == [(1, 20), (0, 30)]
    assert left == {"passes after the last recorded batch": 2}


def test_the_pool_grows_where_it_held_less_than_the_recorded_one() -> None:
    """Two running requests with 2 blocks each in a pool of 3: the recorded one shared a block that has no name here."""
    load = Load([(0, request(0, 8, 1)), (0, request(1, 8, 2)), (0, request(2, 4, 1))])
    record, finished, left = compose(load, [(1, 0, 8), (0, 0, 8)], [(1, 8, 1)], [(2, 0, 4)], blocks=3)
    assert left == {"blocks beyond the pool": 1}
    assert [index for index, _ in finished] == [0, 1, 2]
    assert record.passes["kv_blocks_used"].tolist() == [4, 3, 1]
