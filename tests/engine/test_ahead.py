"""Batches formed while the pass before runs: like an engine with two in flight, by hand, and both cores alike."""

import random
from dataclasses import replace

import numpy as np
import pytest
from ahead_oracle import Engine
from serving_cases import LinearTiming, MoodyTiming, differences, play, random_case
from serving_driver import FixedTiming, Load, batches, drive, request, small_config

from engine.errors import GapscopeError
from engine.serving import make_server
from engine.serving.cluster import Cluster, merge_records
from engine.serving.cluster.lockstep import LockstepServer
from engine.serving.cluster.routers import RoundRobin
from engine.timing.hidden import HiddenHost
from tests.engine.test_cluster import Watched, equal, random_load

CORES = ("plain", "skipping")


def ahead(config, timing, core="auto"):
    return make_server(replace(config, async_scheduling=True), HiddenHost(timing), core)


@pytest.mark.parametrize("core", CORES)
def test_what_comes_during_a_pass_is_in_the_one_after_the_next(core):
    # 10 ns per pass. Request 0 starts at once. 1 comes at 3, during pass 0; batch 1 was formed at 0: it is in pass 2,
    # from 20 on. 2 comes at 10, when batch 2 is formed: it is in it too.
    load = Load([(0, request(0, 4, 9)), (3, request(1, 4, 2)), (10, request(2, 4, 2))])
    record, finished = drive(ahead(small_config(), FixedTiming(10), core), load)
    assert record.requests["first_admit_ns"].tolist() == [0, 20, 20]
    assert [(done.index, done.end_ns) for done in finished] == [(1, 40), (2, 40), (0, 90)]


@pytest.mark.parametrize("core", CORES)
def test_an_idle_engine_takes_a_request_at_once(core):
    load = Load([(0, request(0, 4, 2)), (50, request(1, 4, 1))])
    record, _ = drive(ahead(small_config(), FixedTiming(10), core), load)
    assert record.requests["first_admit_ns"].tolist() == [0, 50]


@pytest.mark.parametrize("core", CORES)
def test_a_seat_is_free_one_batch_after_the_last_token(core):
    # Two seats. 0 samples its only token in pass 0, but batch 1 was formed then: 2 is in pass 2, and 1 alone in pass 1.
    load = Load([(0, request(0, 4, 1)), (0, request(1, 4, 4)), (0, request(2, 4, 1))])
    record, finished = drive(ahead(small_config(seats=2), FixedTiming(10), core), load)
    assert batches(record) == [[(0, 0, 4), (1, 0, 4)], [(1, 4, 1)], [(1, 5, 1), (2, 0, 4)], [(1, 6, 1)]]
    assert [(done.index, done.end_ns) for done in finished] == [(0, 10), (2, 30), (1, 40)]
    assert record.passes["num_running"].tolist() == [2, 2, 2, 2]
    assert record.passes["kv_blocks_used"].tolist() == [2, 3, 3, 3]


@pytest.mark.parametrize("core", CORES)
def test_host_time_is_hidden_as_far_as_the_pass_lasts(core):
    # 10 ns per pass. Of 4 ns between passes nothing is left, of 13 ns three. With one request after the other nobody is
    # in the next batch when the last token is sampled: the whole host time passes before the next.
    for between, starts in ((4, [0, 10, 24, 34]), (13, [0, 13, 36, 49])):
        load = Load([(0, request(0, 4, 2)), (0, request(1, 4, 2))])
        record, _ = drive(ahead(small_config(seats=1), FixedTiming(10, between), core), load)
        assert record.passes["start_ns"].tolist() == starts
        assert record.passes["period_ns"].tolist() == [-1, *np.diff(record.passes["end_ns"])]


@pytest.mark.parametrize("core", CORES)
def test_an_aborted_request_is_in_the_batch_that_was_formed_already(core):
    # It is given up at 15, in pass 1. Batch 2 was formed at 10 and has it; batch 3 has not.
    load = Load([(0, request(0, 4, 9)), (0, request(1, 4, 5))], aborts=[(15, 0)])
    record, finished = drive(ahead(small_config(), FixedTiming(10), core), load)
    assert [[index for index, _, _ in batch] for batch in batches(record)] == [[0, 1]] * 3 + [[1]] * 2
    assert record.requests["aborted"].tolist() == [True, False]
    assert [done.index for done in finished] == [1]


@pytest.mark.parametrize("core", CORES)
def test_who_is_given_up_in_the_pass_before_its_last_is_not_reported(core):
    load = Load([(0, request(0, 4, 3)), (0, request(1, 4, 6))], aborts=[(15, 0)])
    record, finished = drive(ahead(small_config(), FixedTiming(10), core), load)
    assert [done.index for done in finished] == [1]
    assert record.requests["aborted"].tolist() == [True, False]


def loads(seed):
    """Arrivals and limits that often run out of blocks, seats or budget."""
    draw = random.Random(seed)
    size, seats = draw.choice((1, 2, 4)), draw.choice((1, 2, 3, 6))
    longest = draw.choice((4, 9, 20))
    arrivals, at = [], 0
    for _ in range(draw.choice((6, 15, 30))):
        at += draw.choice((0, 0, 1, 120, 700, 3000))
        arrivals.append((at, draw.randrange(1, longest + 1), draw.randrange(1, longest + 1)))
    return arrivals, {
        "block_size": size,
        "seats": seats,
        "budget": seats + draw.choice((0, 2, 8, 100)),
        "threshold": draw.choice((0, 0, 3)),
        "reserve": draw.random() < 0.5,
        "blocks": -(-2 * longest // size) + draw.choice((0, 1, 4, 200)),
    }


def test_batches_and_times_are_those_of_an_engine_with_two_batches_in_flight():
    timing, preempted, in_vain, both_cores = LinearTiming(), 0, 0, 0
    for seed in range(400):
        arrivals, limits = loads(seed)
        roomy = limits["blocks"] > 200

        def duration(members, decodes):
            prompts = [member for member, decode in zip(members, decodes, strict=True) if not decode]
            rest = [member for member, decode in zip(members, decodes, strict=True) if decode]
            new, read, context = sum(m[2] for m in prompts), sum(m[1] for m in prompts), sum(m[1] for m in rest)
            return timing.pass_ns(len(prompts), new, read, len(rest), context)

        between = random.Random(seed).choice((0, 60, 150, 500)) if roomy else 0
        expected = Engine(arrivals, **limits, between_ns=between, duration=duration)
        expected.run()
        config = small_config(*(limits[name] for name in ("blocks", "block_size", "seats", "budget", "threshold")))
        config = replace(config, prefix_caching=False, reserve_full_prompt=limits["reserve"])
        load = Load([(at, request(i, prompt, output)) for i, (at, prompt, output) in enumerate(arrivals)])
        for core in ("plain", "auto"):
            record, finished = drive(ahead(config, LinearTiming(between), core), load)
            assert batches(record) == [members for _, _, members in expected.passes], (seed, core)
            assert record.passes["start_ns"].tolist() == [start for start, _, _ in expected.passes], (seed, core)
            assert {done.index: done.end_ns for done in finished} == {j.index: j.times[-1] for j in expected.jobs}
            assert len(record.preemptions["index"]) == expected.preemptions
        preempted += expected.preemptions
        in_vain += expected.done_in_vain
        both_cores += not limits["threshold"]
    assert min(preempted, in_vain, both_cores) > 10, (preempted, in_vain, both_cores)


@pytest.mark.parametrize("seeds", [range(150), range(5000, 5150)])
def test_both_cores_give_the_same_record(seeds):
    totals = dict.fromkeys(("preemptions", "evictions", "aborts", "hits", "waits"), 0)
    for seed in seeds:
        case, draw = random_case(seed), random.Random(seed)
        config = replace(case.config, reservation=draw.choice(("own", "own", "whole_sequence")))
        timing, between = draw.choice((LinearTiming, MoodyTiming)), draw.choice((0, 17, 150, 400))
        record, calls = play(case, ahead(config, timing(between), "plain"))
        same, same_calls = play(case, ahead(config, timing(between), "auto"))
        assert same_calls == calls
        assert differences(record, same) == []
        totals["preemptions"] += len(record.preemptions["index"])
        totals["evictions"] += np.count_nonzero(record.events["kind"] == 1)
        totals["aborts"] += np.count_nonzero(record.requests["aborted"])
        totals["hits"] += np.count_nonzero(record.admissions["hit_blocks"])
        totals["waits"] += np.count_nonzero(record.passes["num_waiting"])
    assert min(totals.values()) > 30, totals


@pytest.mark.parametrize("kind", ["ranks", "replicas", "replicas of ranks"])
def test_both_cores_give_the_same_record_with_ranks_and_replicas(kind):
    for seed in range(60):
        case, draw = random_case(seed), random.Random(seed)
        config = replace(case.config, async_scheduling=True, long_prefill_token_threshold=0)
        interval, count, between = draw.choice((1, 1, 3)), draw.choice((2, 3)), draw.choice((0, 17, 400))
        config = replace(config, prefill_schedule_interval=interval if kind != "replicas" else 1)

        def made(core, config=config, count=count, between=between, interval=interval):
            timing = HiddenHost(LinearTiming(between))
            if kind == "replicas":
                return Cluster([make_server(config, timing, core) for _ in range(count)], RoundRobin(), timing)
            engines = [
                LockstepServer(
                    [make_server(config, timing, core) for _ in range(count)], timing, "slowest", RoundRobin(), interval
                )
                for _ in range(1 if kind == "ranks" else 2)
            ]
            return engines[0] if kind == "ranks" else Cluster(engines, RoundRobin(), timing)

        case = replace(case, config=config)
        record, calls = play(case, made("plain"))
        same, same_calls = play(case, made("skipping"))
        assert same_calls == calls
        assert differences(record, same) == []


def test_one_rank_is_none():
    for seed in range(40):
        case = random_case(seed)
        config = replace(case.config, async_scheduling=True)
        alone, calls = play(case, ahead(config, LinearTiming(150)))
        timing = HiddenHost(LinearTiming(150))
        ranks = LockstepServer([make_server(config, timing)], timing, "slowest", RoundRobin())
        record, same = play(case, ranks)
        assert same == calls
        for name in ("start_ns", "end_ns", "period_ns", "num_decode_requests"):
            np.testing.assert_array_equal(alone.passes[name], record.passes[name])


@pytest.mark.parametrize("seed", range(24))
def test_a_replica_is_a_single_server_however_often_it_is_asked(seed):
    load, replicas, core = random_load(seed, 60, 700), 1 + seed % 3, CORES[seed % 2]
    config = small_config(blocks=40, seats=4, budget=32)

    def cluster():
        timing = HiddenHost(LinearTiming(90))
        servers = [make_server(replace(config, async_scheduling=True), timing, core) for _ in range(replicas)]
        return Cluster(servers, RoundRobin(), timing)

    merged, _ = drive(cluster(), load)
    for step in (1, 97, 1500):
        equal(drive(cluster(), load, step_ns=step)[0], merged)
    turn = {made.index: order % replicas for order, (_, made) in enumerate(load.arrivals)}
    parts = []
    for number in range(replicas):
        own = Load(
            [(at, made) for at, made in load.arrivals if turn[made.index] == number],
            [(at, index) for at, index in load.aborts if turn[index] == number],
        )
        parts.append((number, 0, drive(ahead(config, LinearTiming(90), core), own)[0]))
    equal(merged, merge_records(parts))


@pytest.mark.parametrize("seed", range(30))
def test_planning_a_replica_changes_nothing_in_a_closed_loop(seed):
    case = random_case(seed)

    def cluster(wrap):
        timing = HiddenHost(LinearTiming(90))
        servers = [wrap(make_server(replace(case.config, async_scheduling=True), timing)) for _ in range(3)]
        return Cluster(servers, RoundRobin(), timing)

    planned, led = play(case, cluster(lambda server: server)), play(case, cluster(Watched))
    assert differences(planned[0], led[0]) == []
    assert planned[1] == led[1]


def test_runs_of_decodes_are_priced_like_single_passes():
    class AtOnce(LinearTiming):
        def decode_run(self, decodes, contexts, now, until):
            starts, durations = [], []
            for context in contexts:
                starts.append(now)
                durations.append(self.pass_ns(0, 0, 0, decodes, context))
                now += durations[-1] + self.between_ns
                if now >= until:
                    break
            return starts, durations, now

    for between in (0, 100, 140, 1000):
        for until in (1, 500, 1 << 60):
            single = HiddenHost(LinearTiming(between)).decode_run(3, range(50, 110, 3), 7, until)
            assert HiddenHost(AtOnce(between)).decode_run(3, range(50, 110, 3), 7, until) == single
            starts, durations, end = single
            for start, duration, following in zip(starts, durations, [*starts[1:], end], strict=True):
                assert following == start + max(duration, between)


def test_who_cannot_do_it_says_so():
    config = replace(small_config(), async_scheduling=True, engine="sglang")
    with pytest.raises(GapscopeError, match="Asynchronous"):
        make_server(config, LinearTiming())
