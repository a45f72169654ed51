"""The skipping core against the plain one, whole record by whole record, and by hand where that is possible."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_cases import LinearTiming, MoodyTiming, differences, play, random_case, speculating
from serving_driver import Load, batches, drive, events, request, small_config

from engine.errors import GapscopeError
from engine.serving import make_server
from engine.serving.contract import ServerConfig
from engine.serving.plain import PlainServer
from engine.serving.skipping import SkippingServer
from engine.serving.speculation import Speculation


def both(case, timing=LinearTiming):
    """The plain core's record of a case, after checking that the skipping core's is the same."""
    expected, calls = play(case, PlainServer(case.config, timing(case.between_ns)))
    actual, same_calls = play(case, SkippingServer(case.config, timing(case.between_ns)))
    assert same_calls == calls
    assert differences(expected, actual) == []
    return expected


def test_records_are_equal_on_random_cases():
    totals = dict.fromkeys(("preemptions", "evictions", "aborts", "hits", "waits", "resumed_hits"), 0)
    for seed in range(250):
        record = both(random_case(seed))
        totals["preemptions"] += len(record.preemptions["index"])
        totals["evictions"] += np.count_nonzero(record.events["kind"] == 1)
        totals["aborts"] += np.count_nonzero(record.requests["aborted"])
        totals["hits"] += np.count_nonzero(record.admissions["hit_blocks"])
        totals["waits"] += np.count_nonzero(record.passes["num_waiting"])
        again = record.admissions["is_readmission"]
        totals["resumed_hits"] += np.count_nonzero(record.admissions["hit_blocks"][again])
    assert min(totals.values()) > 50, totals  # the cases really go where it is hard


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_records_are_equal_when_answers_depend_on_their_order(seed):
    record = both(random_case(seed), MoodyTiming)
    start, end, period = (record.passes[name] for name in ("start_ns", "end_ns", "period_ns"))
    went_on = period[1:] >= 0
    between = np.arange(1, len(start)) ** 2 % 23  # after the n-th pass, counted from 1
    np.testing.assert_array_equal((start[1:] - end[:-1])[went_on], between[went_on])


@pytest.mark.parametrize("seed", [20323, 20706, 21426, 21452])
def test_blocks_that_two_requests_fill_at_once_are_registered_in_order(seed):
    both(random_case(seed))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    block_size=st.sampled_from((1, 2, 4, 16)),
    seats=st.integers(1, 9),
    extra_budget=st.integers(0, 40),
    extra_blocks=st.integers(0, 40),
    caching=st.booleans(),
    reserve=st.booleans(),
    repeat_share=st.sampled_from((0.0, 0.3, 0.9)),
    exact_share=st.sampled_from((0.0, 1.0)),
    abort_share=st.sampled_from((0.0, 0.4)),
)
def test_records_are_equal_in_any_configuration(
    seed, block_size, seats, extra_budget, extra_blocks, caching, reserve, repeat_share, exact_share, abort_share
):
    longest = 6 * block_size
    config = ServerConfig(
        usable_kv_blocks=4 * longest // block_size + 1 + extra_blocks,
        block_size=block_size,
        max_num_seqs=seats,
        max_num_batched_tokens=seats + extra_budget,
        prefix_caching=caching,
        reserve_full_prompt=reserve,
    )
    case = replace(random_case(seed), config=config, longest=longest, requests=25)
    both(replace(case, repeat_share=repeat_share, exact_share=exact_share, abort_share=abort_share))


def test_records_are_equal_under_speculation():
    preempted = evicted = more_than_one = 0
    for seed in range(150):
        record = both(speculating(random_case(seed), seed))
        preempted += len(record.preemptions["index"])
        evicted += np.count_nonzero(record.events["kind"] == 1)
        more_than_one += np.count_nonzero(record.bursts > 1)
        sampled = np.bincount(
            np.repeat(record.stretches["index"], record.stretches["last_pass"] - record.stretches["first_pass"] + 1),
            record.bursts,
            minlength=len(record.requests["output_tokens"]),
        )
        np.testing.assert_array_equal(sampled, record.requests["output_tokens"])
        assert record.passes["num_output_tokens"].sum() == record.bursts.sum()
    assert min(preempted, evicted, more_than_one) > 50, (preempted, evicted, more_than_one)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_records_are_equal_under_speculation_when_answers_depend_on_their_order(seed):
    both(speculating(random_case(seed), seed), MoodyTiming)


def test_records_are_equal_with_several_prompts_under_way():
    preempted = evicted = together = 0
    for seed in range(200):
        case, draw = random_case(seed), random.Random(seed)
        budget = case.config.max_num_batched_tokens
        config = replace(
            case.config,
            max_num_batched_tokens=budget + draw.choice((0, 0, 7, 40)),
            long_prefill_token_threshold=draw.choice((1, 2, 3, 5, 17, max(1, budget // 3), max(1, budget - 1))),
        )
        record = both(replace(case, config=config), draw.choice((LinearTiming, MoodyTiming)))
        preempted += len(record.preemptions["index"])
        evicted += np.count_nonzero(record.events["kind"] == 1)
        together = max(together, int(np.bincount(record.prefill_chunks["pass_index"]).max()))
        assert record.prefill_chunks["scheduled_tokens"].max() <= config.long_prefill_token_threshold
    assert min(preempted, evicted) > 500
    assert together > 8


def test_short_prompts_pass_a_long_one_by_hand():
    # Chunks of at most 4 tokens, 10 a pass. 0 has 12 prompt tokens: three passes. 1 (6) goes beside it in two, 2 (2)
    # fits into what is left of the first, and decodes behind both.
    load = Load([(0, request(0, 12, 2)), (0, request(1, 6, 2)), (0, request(2, 2, 4))])
    for core in (PlainServer, SkippingServer):
        record, _ = drive(core(small_config(seats=8, budget=10, threshold=4), LinearTiming()), load)
        assert batches(record) == [
            [(0, 0, 4), (1, 0, 4), (2, 0, 2)],
            [(0, 4, 4), (1, 4, 2), (2, 2, 1)],
            [(0, 8, 4), (1, 6, 1), (2, 3, 1)],
            [(0, 12, 1), (2, 4, 1)],
        ]


def test_drafts_by_hand():
    # Two drafts, the first always accepted, the second never: 2 tokens a pass. 8 prompt, 6 output tokens: the prefill
    # samples 1, then 2, 2 and the last 1 of 2. Blocks of 4: before the passes 8, 10 and 12 tokens are computed, and 3
    # more are wanted: 3, 4 and 4 blocks. What is fixed by then (9, 11, 13 tokens) fills block 2 in the last pass.
    config = replace(small_config(), speculation=Speculation(2, (1.0, 0.0)))
    for core in (PlainServer, SkippingServer):
        record, finished = drive(core(config, LinearTiming()), Load([(0, request(0, 8, 6, [1, 2, 3]))]))
        assert record.bursts.tolist() == [1, 2, 2, 1]
        assert record.verify_width == 3
        assert record.passes["num_output_tokens"].tolist() == [1, 2, 2, 1]
        assert record.passes["sum_decode_kv_tokens"].tolist() == [0, 8, 10, 12]
        assert record.passes["kv_blocks_used"].tolist() == [2, 3, 4, 4]
        assert batches(record) == [[(0, 0, 8)], [(0, 8, 3)], [(0, 10, 3)], [(0, 12, 3)]]
        assert events(record) == [("store", 0, 0, [1, 2]), ("store", 3, 0, [3])]
        assert [(done.index, done.pass_index) for done in finished] == [(0, 3)]


@pytest.mark.parametrize("core", [PlainServer, SkippingServer])
def test_who_waits_for_blocks_is_let_in_when_somebody_fills_one_that_it_shares(core):
    # Six blocks of four. The first has one; the second needs six, and five are free. In pass 1 the first computes the
    # fourth token of the block: the second hits it from then on, and needs the five.
    load = Load([(0, request(0, 3, 6, [1, 2])), (0, request(1, 21, 1, [1]))])
    record, _ = drive(core(small_config(blocks=6), LinearTiming()), load)
    assert record.admissions["pass_index"].tolist() == [0, 1]
    assert record.admissions["hit_blocks"].tolist() == [0, 1]


def test_nothing_is_noted_for_events_that_nobody_wants():
    case = random_case(20323)
    case = replace(case, config=replace(case.config, prefix_caching=True, record_events=False))
    server = SkippingServer(case.config, LinearTiming())
    record, _ = play(case, server)
    assert len(server.pool.evictions) > 0
    assert (len(server.pool.eviction_keys), len(server.pool.eviction_sources)) == (0, 0)
    assert (len(record.events["kind"]), len(record.event_keys)) == (0, 0)


def test_many_passes_go_at_once():
    timing = CountingTiming()
    server = SkippingServer(small_config(), timing)
    record, _ = drive(server, Load([(0, request(0, 8, 1000)), (0, request(1, 8, 500))]))
    assert len(record.passes["start_ns"]) == 1000
    assert timing.asked == 1000
    assert len(server._log.segments) // 6 == 3  # the prefill of both, then up to each finish


class CountingTiming(LinearTiming):
    asked = 0

    def pass_ns(self, prefills, new, read, decodes, context):
        self.asked += 1
        return super().pass_ns(prefills, new, read, decodes, context)


def test_the_last_released_content_goes_last_and_a_tail_before_its_head():
    # Blocks of 4 tokens, 6 blocks. Request 0 leaves 10, 11, 12 behind; request 1 then needs five blocks:
    # three that are blank, then 12 (the tail) and 11; 10 survives and is hit by request 2.
    load = Load(
        [
            (0, request(0, 12, 1, [10, 11, 12])),
            (5, request(1, 20, 1, [20, 21, 22, 23, 24])),
            (9, request(2, 5, 1, [10])),
        ]
    )
    record, _ = drive(SkippingServer(small_config(blocks=6), LinearTiming()), load)
    events = [
        (int(kind), int(index), record.event_keys[first : first + count].tolist())
        for kind, index, first, count in zip(
            *(record.events[name] for name in ("kind", "index", "first_key", "num_keys")), strict=True
        )
    ]
    assert events == [
        (0, 0, [10, 11, 12]),
        (1, 1, [12, 11]),
        (0, 1, [20, 21, 22, 23, 24]),
        (1, 2, [24]),
    ]
    assert record.requests["cached_tokens"].tolist() == [0, 0, 4]


def test_a_configuration_it_cannot_serve_is_told_and_left_to_the_plain_core():
    config = replace(small_config(seats=4, budget=16, threshold=4), speculation=Speculation(1, (0.5,)))
    assert not SkippingServer.supports(config)
    with pytest.raises(GapscopeError, match="long_prefill_token_threshold=4"):
        SkippingServer(config, LinearTiming())
    assert isinstance(make_server(config, LinearTiming()), PlainServer)
    assert isinstance(make_server(replace(config, long_prefill_token_threshold=16), LinearTiming()), SkippingServer)
    assert isinstance(make_server(replace(config, speculation=None), LinearTiming()), SkippingServer)
    assert not SkippingServer.supports(small_config(seats=17, budget=16))
