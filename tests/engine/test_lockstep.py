"""Ranks in lockstep: both cores alike, one rank like no ranks, and steps that end with the slowest, by hand."""

import random
from dataclasses import replace

import numpy as np
import pytest
from serving_cases import LinearTiming, differences, play, random_case, speculating
from serving_driver import FixedTiming, Load, drive, request, small_config
from sglang_cases import sglang_case

from engine.serving.cluster.lockstep import LockstepServer
from engine.serving.cluster.routers import LeastLoaded, RoundRobin
from engine.serving.plain import PlainServer
from engine.serving.reserving import ReservingServer
from engine.serving.sglang import SglangServer
from engine.serving.skipping import SkippingServer
from engine.serving.speculation import Speculation
from engine.serving.variants import VariantServer


def lockstep(core, config, timing, ranks, price="slowest", router=None):
    return LockstepServer([core(config, timing) for _ in range(ranks)], timing, price, router or RoundRobin())


@pytest.mark.parametrize("price", ["slowest", "combined"])
def test_both_cores_take_the_same_steps(price):
    preempted = idle_ranks = 0
    for seed in range(80):
        case, draw = random_case(seed), random.Random(seed)
        config = replace(case.config, long_prefill_token_threshold=0)
        if draw.random() < 0.4:
            config = replace(
                config,
                speculation=Speculation(2, (0.8, 0.5), seed),
                max_num_batched_tokens=3 * config.max_num_batched_tokens,
                usable_kv_blocks=config.usable_kv_blocks + 2,
            )
        case, ranks = replace(case, config=config), draw.choice((2, 3, 4))
        made = [
            play(case, lockstep(core, config, LinearTiming(case.between_ns), ranks, price))
            for core in (PlainServer, SkippingServer)
        ]
        assert made[0][1] == made[1][1]
        record = made[0][0]
        assert differences(record, made[1][0]) == []
        preempted += len(record.preemptions["index"])
        for step in np.unique(record.passes["step"]):
            at = record.passes["step"] == step
            assert len(np.unique(record.passes["start_ns"][at])) == len(np.unique(record.passes["end_ns"][at])) == 1
            assert len(np.unique(record.passes["dp_rank"][at])) == np.count_nonzero(at)
            idle_ranks += ranks - np.count_nonzero(at)
    assert min(preempted, idle_ranks) > 10, (preempted, idle_ranks)


@pytest.mark.parametrize("price", ["slowest", "combined"])
def test_both_cores_that_reserve_whole_sequences_take_the_same_steps(price):
    for seed in range(40):
        case = speculating(random_case(seed), seed)
        config, ranks = replace(case.config, engine="trtllm"), random.Random(seed).choice((2, 3))
        made = [
            play(case, lockstep(core, config, LinearTiming(case.between_ns), ranks, price))
            for core in (VariantServer, ReservingServer)
        ]
        assert made[0][1] == made[1][1]
        assert differences(made[0][0], made[1][0]) == []


@pytest.mark.parametrize("core", [SkippingServer, ReservingServer, SglangServer, VariantServer])
@pytest.mark.parametrize("drafts", [False, True])
def test_one_rank_is_no_ranks(core, drafts):
    engine = {SglangServer: "sglang", ReservingServer: "trtllm", VariantServer: "atom"}.get(core, "vllm")
    for seed in range(20):
        case = sglang_case(seed) if engine == "sglang" else random_case(seed)
        case = speculating(case, seed) if drafts else case
        case = replace(case, config=replace(case.config, engine=engine))
        alone, calls = play(case, core(case.config, LinearTiming(case.between_ns)))
        record, same = play(case, lockstep(core, case.config, LinearTiming(case.between_ns), 1))
        assert same == calls
        for name in ("worker", "dp_rank", "step"):
            column = record.passes.pop(name)
            np.testing.assert_array_equal(column, np.arange(len(column)) if name == "step" else 0)
        for name in ("worker", "dp_rank"):
            assert not record.requests.pop(name).any()
        assert differences(alone, record) == []


@pytest.mark.parametrize("core", [PlainServer, SkippingServer])
def test_a_step_ends_with_its_slowest_rank(core):
    # 10 ns per pass, 1 per new token. Ranks 0 and 1 get prompts of 8 and 20 tokens, 3 and 1 outputs: the first step
    # takes 10 + 20, then rank 0 goes on alone: 10, 10. Rank 1 is idle, and so has one pass only, of step 0.
    timing = FixedTiming(duration_ns=10, per_token_ns=1)
    load = Load([(0, request(0, 8, 3)), (0, request(1, 20, 1))])
    record, finished = drive(lockstep(core, small_config(), timing, 2), load)
    assert record.passes["dp_rank"].tolist() == [0, 0, 0, 1]
    assert record.passes["step"].tolist() == [0, 1, 2, 0]
    assert record.passes["start_ns"].tolist() == [0, 30, 40, 0]
    assert record.passes["end_ns"].tolist() == [30, 40, 50, 30]
    assert [(done.index, done.end_ns) for done in finished] == [(1, 30), (0, 50)]
    assert record.requests["dp_rank"].tolist() == [0, 1]


@pytest.mark.parametrize("core", [PlainServer, SkippingServer])
def test_a_combined_step_is_priced_at_the_tokens_of_all(core):
    # The same, priced together: 10 + 28 new tokens in the first step.
    timing = FixedTiming(duration_ns=10, per_token_ns=1, per_decode_ns=2)
    load = Load([(0, request(0, 8, 3)), (0, request(1, 20, 2))])
    record, _ = drive(lockstep(core, small_config(), timing, 2, "combined"), load)
    # Two ranks decode one request each in step 1 (10 + 2 * 2), one in step 2 (10 + 2).
    ends = dict(zip(record.passes["step"].tolist(), record.passes["end_ns"].tolist(), strict=True))
    assert ends == {0: 38, 1: 52, 2: 64}


def test_a_request_goes_to_the_rank_with_fewest():
    # Three at once: ranks 0, 1, 0. The one on rank 1 is done after its first pass, so the fourth goes there.
    timing = FixedTiming(duration_ns=10)
    load = Load([(0, request(0, 4, 9)), (0, request(1, 4, 1)), (0, request(2, 4, 9)), (15, request(3, 4, 2))])
    record, _ = drive(lockstep(SkippingServer, small_config(), timing, 2, router=LeastLoaded()), load)
    assert record.requests["dp_rank"].tolist() == [0, 1, 0, 1]
    # It was taken between steps 1 and 2.
    at = record.passes["dp_rank"] == 1
    assert record.passes["step"][at].tolist() == [0, 2, 3]
    assert record.passes["period_ns"][at].tolist() == [-1, -1, 10]
