"""Replicas behind a router: each is a server like any other, fed with what the router gives it when it arrives."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from engine.serving import make_server
from engine.serving.cluster import Cluster, make_router, merge_records, pass_ranges, within
from engine.serving.contract import ServedRequest, Server, ServerRecord
from engine.serving.members import members
from engine.serving.speculation import Speculation
from tests.engine.serving_cases import LinearTiming, differences, play, random_case
from tests.engine.serving_driver import FixedTiming, Load, drive, small_config

ROUTERS = ("round_robin", "least_loaded", "session", "sibling", "kv_aware")


@dataclass
class Watched:
    """A server that writes down what it is told, and when."""

    server: Server
    told: list[tuple[int, str, int]] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)

    @property
    def has_work(self) -> bool:
        return self.server.has_work

    def receive(self, request: ServedRequest, now_ns: int) -> None:
        self.told.append((now_ns, "receive", request.index))
        self.server.receive(request, now_ns)

    def abort(self, index: int, now_ns: int) -> None:
        self.told.append((now_ns, "abort", index))
        self.server.abort(index, now_ns)

    def advance(self, now_ns: int, until_ns: int | None):
        self.calls.append(now_ns)
        return self.server.advance(now_ns, until_ns)

    def finish(self) -> ServerRecord:
        return self.server.finish()


def equal(left: ServerRecord, right: ServerRecord) -> None:
    """Two records hold the same, table by table."""
    for name in ("passes", "requests", "stretches", "prefill_chunks", "admissions", "preemptions", "events"):
        ours, theirs = getattr(left, name), getattr(right, name)
        assert ours.keys() == theirs.keys(), name
        for column in ours:
            np.testing.assert_array_equal(ours[column], theirs[column], err_msg=f"{name}.{column}")
    np.testing.assert_array_equal(left.event_keys, right.event_keys)
    np.testing.assert_array_equal(left.bursts, right.bursts)


def random_load(seed: int, requests: int, spread: int) -> Load:
    """Requests of some sessions at random times; a few are given up."""
    draw = random.Random(seed)
    arrivals, aborts, at = [], [], 0
    for index in range(requests):
        at += draw.choice((0, 0, draw.randrange(spread)))
        family = 1000 * draw.randrange(3)
        keys = [family + position for position in range(draw.randrange(6))]
        made = ServedRequest(index, draw.randrange(1, 40), draw.randrange(1, 12), keys)
        made.session, made.spawned_by = draw.randrange(5), draw.randrange(-1, 2)
        arrivals.append((at, made))
        if draw.random() < 0.1:
            aborts.append((at + draw.randrange(1, 2000), index))
    return Load(arrivals, aborts)


@pytest.mark.parametrize("drafts", [0, 2])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "atom", "trtllm"])
@pytest.mark.parametrize("seed", range(4))
def test_each_replica_is_a_single_server_of_any_engine(seed: int, engine: str, drafts: int) -> None:
    speculation = Speculation(drafts, (0.8, 0.5), seed) if drafts else None
    config = replace(small_config(blocks=60, seats=4, budget=32), engine=engine, speculation=speculation)
    load = random_load(seed, 60, 700)

    def make() -> Server:
        return make_server(config, LinearTiming())

    merged, _ = drive(
        Cluster([make() for _ in range(3)], make_router("round_robin", 3, 4, 40), LinearTiming()), Load(load.arrivals)
    )
    own = [Load(load.arrivals[number::3]) for number in range(3)]
    equal(merged, merge_records([(number, 0, drive(make(), part)[0]) for number, part in enumerate(own)]))


def cluster(seed: int, replicas: int, router: str, core: str) -> tuple[Cluster, list[Watched]]:
    case = random_case(seed)
    config = small_config(blocks=40, seats=4, budget=32)
    timing = LinearTiming(case.between_ns)
    servers = [Watched(make_server(config, timing, core)) for _ in range(replicas)]
    return Cluster(servers, make_router(router, replicas, 4, 40), timing), servers


@pytest.mark.parametrize("core", ["plain", "skipping"])
@pytest.mark.parametrize("seed", range(12))
def test_each_replica_is_a_single_server_fed_with_its_own_arrivals(seed: int, core: str) -> None:
    replicas = 1 + seed % 4
    load = random_load(seed, 60, 700)
    together, _ = cluster(seed, replicas, "round_robin", core)
    merged, finished = drive(together, load)
    assert [done.end_ns for done in finished] == sorted(done.end_ns for done in finished)
    passes = merged.passes
    turn = {made.index: order % replicas for order, (_, made) in enumerate(load.arrivals)}
    _, alone = cluster(seed, replicas, "round_robin", core)
    parts = []
    for number, watched in enumerate(alone):
        own = Load(
            [(at, made) for at, made in load.arrivals if turn[made.index] == number],
            [(at, index) for at, index in load.aborts if turn[index] == number],
        )
        record, _ = drive(watched.server, own)
        parts.append((number, 0, record))
    expected = merge_records(parts)
    equal(merged, expected)
    assert together.dropped_ns.keys() >= set(np.flatnonzero(merged.requests["aborted"]).tolist())
    assert passes["worker"].tolist() == sorted(passes["worker"].tolist())


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("seed", range(6))
def test_how_often_advance_is_called_changes_nothing(seed: int, router: str) -> None:
    load = random_load(100 + seed, 50, 500)
    whole, _ = drive(cluster(seed, 3, router, "skipping")[0], load)
    for step in (1, 97, 1500):
        stepped, _ = drive(cluster(seed, 3, router, "skipping")[0], load, step_ns=step)
        equal(stepped, whole)


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("seed", range(6))
def test_what_comes_later_changes_nothing_before(seed: int, router: str) -> None:
    """Of two loads that are the same up to a time, every pass that starts before it is the same."""
    load = random_load(200 + seed, 60, 400)
    split = load.arrivals[40][0]
    cut = Load([a for a in load.arrivals if a[0] < split], [a for a in load.aborts if a[0] < split])
    whole, part = (drive(cluster(seed, 3, router, "skipping")[0], some)[0] for some in (load, cut))
    batches = []
    for record in (whole, part):
        early = set(np.flatnonzero(record.passes["start_ns"] < split).tolist())
        named = zip(*(record.passes[n].tolist() for n in ("worker", "step", "start_ns", "end_ns")), strict=True)
        names = list(named)
        found = members(record)
        rows = zip(found.pass_index.tolist(), found.index.tolist(), found.scheduled_tokens.tolist(), strict=True)
        batches.append(sorted((names[at], index, tokens) for at, index, tokens in rows if at in early))
    assert batches[0] == batches[1]
    assert batches[0]


@pytest.mark.parametrize("seed", range(60))
def test_looking_ahead_changes_nothing_in_a_closed_loop(seed: int) -> None:
    """A replica whose passes are planned does what one does that is led from outside, which has no plan."""
    case, replicas, router = random_case(seed), 2 + seed % 3, ROUTERS[seed % 4]
    timing = LinearTiming(case.between_ns)

    def clustered(wrap: Callable[[Server], Server]) -> Cluster:
        servers = [wrap(make_server(case.config, timing)) for _ in range(replicas)]
        return Cluster(servers, make_router(router, replicas, case.config.block_size, 40), timing)

    planned, led = clustered(lambda server: server), clustered(Watched)
    ours, theirs = play(case, planned), play(case, led)
    assert differences(ours[0], theirs[0]) == []
    assert ours[1] == theirs[1]
    assert planned.dropped_ns == led.dropped_ns


def test_a_replica_is_told_between_its_passes_and_never_of_what_is_to_come() -> None:
    together, servers = cluster(3, 3, "least_loaded", "skipping")
    load = random_load(7, 80, 300)
    record, _ = drive(together, load)
    arrived = {made.index: at for at, made in load.arrivals}
    for number, watched in enumerate(servers):
        own = record.passes["worker"] == number
        starts, ends = record.passes["start_ns"][own], record.passes["end_ns"][own]
        for at, what, index in watched.told:
            assert not ((starts < at) & (at < ends)).any(), "told within a pass"
            if what == "receive":
                assert at >= arrived[index]
                waited = (starts >= arrived[index]) & (starts < at)
                assert not waited.any(), "a pass went by that could have taken it"


def arrivals(*lists: tuple[int, int, int]) -> Load:
    """Requests of one long prompt each: time, session, spawned by."""
    made = [ServedRequest(index, 8, 20, [], None, session, by) for index, (_, session, by) in enumerate(lists)]
    return Load([(at, one) for (at, _, _), one in zip(lists, made, strict=True)])


def homes(router: str, load: Load, replicas: int = 2) -> list[int]:
    config = small_config()
    servers = [make_server(config, FixedTiming(100)) for _ in range(replicas)]
    record, _ = drive(Cluster(servers, make_router(router, replicas, 4, 1000), FixedTiming(100)), load)
    return record.requests["worker"].tolist()


def test_round_robin_and_least_loaded_differ_where_requests_last_differently() -> None:
    # Three at once; the first replica gets two. Later, when all are done, counting starts anew for one of the two.
    load = arrivals((0, 0, -1), (0, 1, -1), (0, 2, -1), (50_000, 3, -1), (50_000, 4, -1))
    assert homes("round_robin", load) == [0, 1, 0, 1, 0]
    assert homes("least_loaded", load) == [0, 1, 0, 0, 1]


def test_sessions_and_siblings_stay_together() -> None:
    # Session 0 begins at replica 0, session 1 at 1; both go on there, however busy it is.
    load = arrivals((0, 0, -1), (10, 1, -1), (20, 0, 0), (30, 0, 0), (40, 0, 2), (50, 0, -1))
    assert homes("session", load) == [0, 1, 0, 0, 0, 0]
    # By siblings the children of request 0 are a group, which starts where the fewest are in flight: 1 and 1, so the
    # first; its second child follows it (2 and 1 in flight). The child of request 2 is another group: 3 and 1.
    assert homes("sibling", load) == [0, 1, 0, 0, 1, 0]


def test_a_kv_aware_router_weighs_missing_blocks_against_what_it_sent_before() -> None:
    # Blocks of 4. Costs as in the definition: weight 1, load decays by 0.97 with every pick.
    a, b, short = [1, 2, 3], [11, 12], []
    prompts = [(12, a), (12, a), (8, b), (12, a), (3, short)]
    router = make_router("kv_aware", 2, 4, 100)
    chosen = [router.choose(ServedRequest(n, tokens, 1, keys), [0, 0]) for n, (tokens, keys) in enumerate(prompts)]
    # 1: 3 and 3, the first; it missed 3, so its load is 3.  2: 0 + 3 against 3 + 0, the first; it misses none: 2.91.
    # 3: 2 + 2.91 against 2, the second: loads 2.8227 and 2.  4: 0 + 2.8227 against 3 + 2, the first: 2.738, 1.94.
    # 5: no full block, 2.738 against 1.94, the second.
    assert chosen == [0, 0, 1, 0, 1]
    heavy = make_router("kv_aware", 2, 4, 100, overlap_weight=0.0)  # the load alone
    assert [heavy.choose(ServedRequest(n, 12, 1, a), [0, 0]) for n in range(3)] == [0, 1, 0]


def test_a_kv_aware_router_forgets_what_a_replica_can_no_longer_hold() -> None:
    router = make_router("kv_aware", 2, 4, 3)
    first, second = [1, 2, 3], [11, 12, 13]
    assert router.choose(ServedRequest(0, 12, 1, first), [0, 0]) == 0
    assert router.choose(ServedRequest(1, 12, 1, second), [0, 0]) == 1
    # Loads 2.91 and 3. A third prompt of one block goes to 0 (3.91 against 4) and drives out the end of the first.
    assert router.choose(ServedRequest(2, 4, 1, [21]), [0, 0]) == 0
    # Loads 3.8227 and 2.91: the first prompt hits two blocks at 0, so 1 + 3.8227 against 3 + 2.91.
    assert router.choose(ServedRequest(3, 12, 1, first), [0, 0]) == 0
    # Its three blocks drove out the block of the third prompt: 1 + 4.708 there, 1 + 2.8227 at the other.
    assert router.choose(ServedRequest(4, 4, 1, [21]), [0, 0]) == 1


@pytest.mark.parametrize("router", ROUTERS)
def test_no_request_is_lost_or_served_twice(router: str) -> None:
    load = random_load(11, 120, 150)
    record, finished = drive(cluster(5, 4, router, "skipping")[0], load)
    ended = sorted(done.index for done in finished)
    aborted = np.flatnonzero(record.requests["aborted"]).tolist()
    assert len(set(ended)) == len(ended)
    # One whose last pass is under way when it is given up is not reported, though it was served to its end.
    wanted = {made.index: made.output_tokens for _, made in load.arrivals}
    gone = set(wanted) - set(ended) - set(aborted)
    assert gone <= {index for _, index in load.aborts}
    served = record.requests["output_tokens"]
    assert all(served[index] == wanted[index] for index in (*ended, *gone))
    assert int(served.sum()) == int(record.passes["num_output_tokens"].sum())


def test_ranges_and_parts_of_a_merged_record_are_those_of_its_workers() -> None:
    load = random_load(21, 60, 300)
    parts = []
    for number in range(3):
        case = cluster(number, 1, "round_robin", "skipping")[0]
        own = Load([a for a in load.arrivals if a[1].index % 3 == number])
        parts.append((number, 0, drive(case._replicas[0].server, own)[0]))
    merged = merge_records(parts)
    ranges = pass_ranges(merged)
    assert [end - begin for begin, end in ranges] == [len(record.passes["start_ns"]) for _, _, record in parts]
    for (begin, end), (_, _, record) in zip(ranges, parts, strict=True):
        ours, theirs = members(within(merged, begin, end), begin, end - 1), members(record)
        assert (ours.pass_index - begin).tolist() == theirs.pass_index.tolist()
        assert ours.index.tolist() == theirs.index.tolist()
        assert ours.computed_before.tolist() == theirs.computed_before.tolist()
    assert merged.admissions["seq"].tolist() == list(range(len(merged.admissions["seq"])))
    keys = np.concatenate([record.event_keys for _, _, record in parts])
    assert merged.event_keys.tolist() == keys.tolist()
    again = merge_records([(5, 2, merged)])  # of ranks before, say
    assert again.passes["dp_rank"].tolist() == (merged.passes["dp_rank"] + 2).tolist()
    assert set(again.passes["worker"].tolist()) == {5}
    assert again.passes["step"].tolist() == merged.passes["step"].tolist()


def test_of_a_request_that_two_workers_served_the_first_began_and_the_last_ended() -> None:
    config = small_config()
    first, second = (make_server(config, FixedTiming(10)) for _ in range(2))
    one, _ = drive(first, Load([(0, ServedRequest(0, 8, 1, []))]))
    two, _ = drive(second, Load([(100, ServedRequest(0, 9, 3, []))]))
    row = {name: column[0] for name, column in merge_records([(0, 0, one), (1, 0, two)]).requests.items()}
    assert (row["received_ns"], row["first_admit_pass"], row["first_token_pass"]) == (0, 0, 0)
    assert (row["last_token_pass"], row["output_tokens"], row["worker"]) == (3, 4, 1)
