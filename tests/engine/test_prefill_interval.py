"""Steps in which ranks that decode take no prompts: by hand, as a law, and what it does to a closed loop."""

import heapq
import random
from dataclasses import replace
from statistics import mean

import numpy as np
import pytest
from serving_cases import LinearTiming, differences, play, random_case
from serving_driver import FixedTiming, Load, batches, drive, request, small_config

from engine.errors import GapscopeError
from engine.knobs import resolve
from engine.serving import make_server
from engine.serving.cluster.lockstep import LockstepServer
from engine.serving.cluster.routers import LeastLoaded, RoundRobin
from engine.serving.speculation import Speculation
from engine.timing.hidden import HiddenHost

CORES = ("plain", "skipping")


def ranks(config, timing, interval, count=2, core="auto", router=None):
    config = replace(config, prefill_schedule_interval=interval)
    if config.async_scheduling:
        timing = HiddenHost(timing)
    servers = [make_server(config, timing, core) for _ in range(count)]
    return LockstepServer(servers, timing, "slowest", router or RoundRobin(), interval)


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize(("interval", "admitted"), [(1, [0, 0, 10, 20]), (3, [0, 0, 30, 30])])
def test_prompts_of_all_ranks_wait_for_the_same_step(core, interval, admitted):
    # Steps of 10 ns. 2 comes to rank 0 in step 0, 3 to rank 1 in step 1; steps 0 and 3 take prompts.
    load = Load([(0, request(0, 4, 9)), (0, request(1, 4, 9)), (5, request(2, 4, 3)), (15, request(3, 4, 3))])
    record, _ = drive(ranks(small_config(), FixedTiming(10), interval, core=core), load)
    assert record.requests["first_admit_ns"].tolist() == admitted


@pytest.mark.parametrize("core", CORES)
def test_a_rank_that_left_some_waiting_takes_prompts_in_any_step(core):
    # Two seats a rank. Rank 0 gets 0, 2 and 4, and leaves 4 waiting in step 0: it takes it in step 1, when 2 is done.
    # Rank 1 gets 1 and 3, leaves nobody, and has 5 wait for step 3.
    arrivals = [(0, request(0, 4, 9)), (0, request(1, 4, 9)), (0, request(2, 4, 1)), (0, request(3, 4, 1))]
    load = Load([*arrivals, (0, request(4, 4, 2)), (5, request(5, 4, 2))])
    record, _ = drive(ranks(small_config(seats=2), FixedTiming(10), 3, core=core), load)
    assert record.requests["first_admit_ns"].tolist() == [0, 0, 0, 0, 10, 30]


@pytest.mark.parametrize("core", CORES)
def test_a_rank_on_which_nobody_decodes_takes_prompts_in_any_step(core):
    load = Load([(0, request(0, 4, 9)), (5, request(1, 4, 9))])
    record, _ = drive(ranks(small_config(), FixedTiming(10), 3, core=core), load)
    assert record.requests["first_admit_ns"].tolist() == [0, 10]


@pytest.mark.parametrize("core", CORES)
def test_a_prompt_in_pieces_goes_on_in_the_next_step_that_takes_prompts(core):
    # A budget of 16: beside one decode, 15 of 30 tokens in step 3, and the others in step 6.
    load = Load([(0, request(0, 4, 9)), (0, request(1, 4, 1)), (5, request(2, 30, 1))])
    record, _ = drive(ranks(small_config(seats=8, budget=16), FixedTiming(10), 3, core=core), load)
    on_rank = [batch for batch, rank in zip(batches(record), record.passes["dp_rank"], strict=True) if rank == 0]
    assert [batch[1:] for batch in on_rank[:7]] == [[], [], [], [(2, 0, 15)], [], [], [(2, 15, 15)]]


@pytest.mark.parametrize("core", CORES)
def test_steps_count_from_the_first_after_the_engine_was_idle(core):
    # Idle from 20 to 100. 3 comes in the second step after that, and waits for the fourth, which starts at 130.
    arrivals = [(0, request(0, 4, 2)), (0, request(1, 4, 2)), (100, request(2, 4, 9)), (100, request(3, 4, 1))]
    record, _ = drive(ranks(small_config(), FixedTiming(10), 3, core=core), Load([*arrivals, (105, request(4, 4, 1))]))
    assert record.requests["first_admit_ns"].tolist() == [0, 0, 100, 100, 130]


@pytest.mark.parametrize("how", ["as it is", "ahead", "speculating"])
def test_both_cores_take_the_same_steps(how):
    for seed in range(80):
        case, draw = random_case(seed), random.Random(seed)
        interval, count = draw.choice((2, 3, 5)), draw.choice((2, 3))
        config = replace(case.config, long_prefill_token_threshold=0, async_scheduling=how == "ahead")
        if how == "speculating":
            config = replace(
                config,
                speculation=Speculation(2, (0.8, 0.5), seed),
                max_num_batched_tokens=3 * config.max_num_batched_tokens,
                usable_kv_blocks=config.usable_kv_blocks + 2,
            )
        case = replace(case, config=config)
        made = [play(case, ranks(config, LinearTiming(case.between_ns), interval, count, core)) for core in CORES]
        assert made[0][1] == made[1][1]
        assert differences(made[0][0], made[1][0]) == []


@pytest.mark.parametrize("is_ahead", [False, True])
def test_prompts_are_taken_in_other_steps_only_by_who_left_some_waiting_or_decodes_nothing(is_ahead):
    held = released = 0
    for seed in range(60):
        draw, at = random.Random(seed), 0
        arrivals = [(0, request(0, 4, 2000))]  # so that steps count from 0
        for index in range(1, 60):
            at += draw.choice((0, 100, 900))
            arrivals.append((at, request(index, draw.randrange(1, 40), draw.randrange(1, 30))))
        interval = draw.choice((2, 3, 7))
        config = replace(small_config(blocks=5000, seats=3, budget=20), async_scheduling=is_ahead)
        passes = drive(ranks(config, LinearTiming(), interval), Load(arrivals))[0].passes
        for rank in range(2):
            short = False
            for row in np.flatnonzero(passes["dp_rank"] == rank):
                decodes, prompts, waiting = (
                    int(passes[name][row]) for name in ("num_decode_requests", "num_prefill_requests", "num_waiting")
                )
                off = passes["step"][row] % interval > 0
                if off and decodes and not short:
                    assert not prompts
                    held += waiting > 0
                else:
                    released += off and decodes > 0 and prompts > 0
                    short = waiting > 0
    assert min(held, released) > 50, (held, released)


def closed_loop(server, lanes, requests, prompt, output):
    """Mean TTFT and TPOT in ns of ``lanes`` clients that send the next request when they have the last token."""
    draw, now, sent, first, per_token = random.Random(1), 0, {}, [], []
    agenda = [(draw.randrange(output * 10_000), lane) for lane in range(lanes)]
    heapq.heapify(agenda)
    while agenda or server.has_work:
        while agenda and agenda[0][0] <= now:
            heapq.heappop(agenda)
            if len(sent) < requests:
                tokens = output // 2 + draw.randrange(output)
                server.receive(request(len(sent), prompt // 2 + draw.randrange(prompt), tokens), now)
                sent[len(sent)] = now, tokens
        if server.has_work:
            now, finished = server.advance(now, agenda[0][0] if agenda else None)
            for done in finished:
                at, tokens = sent[done.index]
                first.append(done.first_token_ns - at)
                per_token.append((done.end_ns - done.first_token_ns) / (tokens - 1))
                heapq.heappush(agenda, (done.end_ns, done.index))
        elif agenda:
            now = max(now, agenda[0][0])
    return mean(first), mean(per_token)


def test_with_eight_ranks_the_interval_trades_first_tokens_for_the_others():
    # A decode of 64 requests takes 10 + 64 * 0.02 = 11.28 us; a prompt adds 10.24 us on average to the step of all. Per
    # rank and token 64 / 256 prompts are due, so nearly every step of eight ranks has one, and often a rank has two.
    # In one step of four they share their time: TPOT comes closer to 11.28 us, TTFT waits for up to three steps more.
    config = small_config(blocks=100_000, block_size=16, seats=256, budget=8192, prefix_caching=False)
    timing = FixedTiming(10_000, per_token_ns=10, per_decode_ns=20)
    found = [
        closed_loop(ranks(config, timing, interval, 8, router=LeastLoaded()), 512, 2500, 1024, 256)
        for interval in (1, 4)
    ]
    (first, tokens), (later, faster) = found
    assert 11_280 < faster < 0.85 * tokens
    assert first < later < first + 3 * 30_000


def test_ahead_hides_host_time_and_shows_arrivals_a_pass_later():
    # 32 lanes: passes of 10 + 32 * 0.02 us and a bit for prompts, and 3 us of host time that is hidden. Nobody
    # has idle seats to fill later, so TPOT falls by the host time. TTFT grows by no more than the pass under way.
    config = small_config(blocks=100_000, block_size=16, seats=256, budget=8192, prefix_caching=False)
    timing = FixedTiming(10_000, 3_000, per_token_ns=1, per_decode_ns=20)
    first, tokens = closed_loop(make_server(config, timing), 32, 1000, 256, 128)
    ahead = make_server(replace(config, async_scheduling=True), HiddenHost(timing))
    later, faster = closed_loop(ahead, 32, 1000, 256, 128)
    assert tokens - faster == pytest.approx(3_000, rel=0.03)
    assert 0 < later - first < 12_000


@pytest.mark.parametrize(
    ("knobs", "names"),
    [
        ({"prefill_schedule_interval": 4}, "attention_dp=1"),
        ({"prefill_schedule_interval": 4, "attention_dp": 8, "engine": "sglang"}, "engine=sglang"),
        ({"async_scheduling": True, "engine": "atom"}, "engine=atom"),
        (
            {"async_scheduling": True, "spec_method": "mtp", "spec_tokens": 1, "spec_acceptance": "0.5"},
            "spec_tokens=1",
        ),
        ({"async_scheduling": True, "prefill_replicas": 2}, "prefill_replicas=2"),
    ],
)
def test_what_does_not_go_together_is_refused(knobs, names):
    with pytest.raises(GapscopeError, match=names):
        resolve({"timing": "fixed", **knobs})
    assert resolve({"attention_dp": 8, "prefill_schedule_interval": 4})["prefill_schedule_interval"] == 4
