"""The skipping core against the plain one, whole record by whole record, and by hand where that is possible."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_cases import LinearTiming, MoodyTiming, differences, play, random_case
from serving_driver import Load, drive, request, small_config

from engine.errors import GapscopeError
from engine.serving import make_server
from engine.serving.contract import ServerConfig
from engine.serving.plain import PlainServer
from engine.serving.skipping import SkippingServer


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
    config = small_config(seats=8, budget=16, threshold=4)
    assert not SkippingServer.supports(config)
    with pytest.raises(GapscopeError, match="long_prefill_token_threshold=4"):
        SkippingServer(config, LinearTiming())
    assert isinstance(make_server(config, LinearTiming()), PlainServer)
    assert isinstance(make_server(replace(config, long_prefill_token_threshold=16), LinearTiming()), SkippingServer)
    assert not SkippingServer.supports(small_config(seats=17, budget=16))
