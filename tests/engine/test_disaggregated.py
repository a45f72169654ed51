"""Prompts in one pool and decodes in another: times by hand, and what holds whatever is sent."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from engine.serving import make_server
from engine.serving.cluster import NO_TIME, Cluster, Disaggregated, make_router
from engine.serving.cluster.disaggregated import Link
from engine.serving.cluster.lockstep import LockstepServer
from engine.serving.contract import PoolWorker, ServerConfig
from engine.serving.members import members
from tests.engine.serving_cases import Case, LinearTiming, differences, play, random_case, speculating
from tests.engine.serving_driver import FixedTiming, Load, batches, drive, request, small_config
from tests.engine.test_cluster import random_load

ROUTERS = ("round_robin", "least_loaded", "session", "sibling", "kv_aware")
NO_WAY = Link(0, 0, 0)


def pools(
    link: Link = NO_WAY,
    hold: Literal["source", "destination"] = "source",
    prefill: ServerConfig | None = None,
    decode: ServerConfig | None = None,
    workers: tuple[int, int] = (1, 1),
    timing: Any = None,
    core: str = "auto",
    routers: tuple[str, str] = ("round_robin", "round_robin"),
    ranks: tuple[int, int] = (0, 0),
    price: Literal["slowest", "combined"] = "slowest",
    dp_router: str = "round_robin",
) -> Disaggregated:
    """Two pools; a pass takes 100 and 10 more for each prompt token. Workers have so many ranks (0: are none)."""
    timing = timing or FixedTiming(100, 0, 10)
    configs = [replace(config or small_config(), pooled=True) for config in (prefill, decode)]

    def worker(config: ServerConfig, count: int) -> PoolWorker:
        if not count:
            return make_server(config, timing, core)  # type: ignore[return-value]
        made: Any = [make_server(config, timing, core) for _ in range(count)]
        return LockstepServer(made, timing, price, make_router(dp_router, count, 4, 1000))

    made = [
        [worker(config, of_each) for _ in range(count)]
        for config, count, of_each in zip(configs, workers, ranks, strict=True)
    ]
    chosen = [make_router(name, count, 4, 1000) for name, count in zip(routers, workers, strict=True)]
    return Disaggregated(made[0], made[1], (chosen[0], chosen[1]), configs[1], timing, link, hold)


def times(server: Disaggregated, load: Load) -> tuple[list[dict[str, int]], Any, Any]:
    record, finished = drive(server, load)
    assert record.transfers is not None
    columns = {name: column.tolist() for name, column in record.transfers.items()}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return rows, record, finished


def test_one_request_goes_through_both_pools() -> None:
    # 8 prompt tokens: 100 + 80. The way: 5 and 8 x 100 bytes at 2 per nanosecond, so 405. Two more tokens: 100 each.
    rows, record, finished = times(pools(Link(100, 2.0, 5)), Load([(1000, request(0, 8, 3))]))
    assert rows == [
        {
            "index": 0,
            "prefill_worker": 0,
            "decode_worker": 1,
            "prefill_rank": 0,
            "decode_rank": 0,
            "held_ns": 1180,
            "reserved_ns": 1180,
            "start_ns": 1180,
            "end_ns": 1585,
            "released_ns": 1585,
            "admitted_ns": 1585,
            "tokens": 8,
        }
    ]
    assert batches(record) == [[(0, 0, 8)], [(0, 8, 1)], [(0, 9, 1)]]
    assert record.passes["worker"].tolist() == [0, 1, 1]
    assert record.passes["num_decode_requests"].tolist() == [0, 1, 1]
    assert record.passes["end_ns"].tolist() == [1180, 1685, 1785]
    assert record.passes["kv_blocks_used"].tolist() == [2, 3, 3]
    (done,) = finished
    assert (done.end_ns, done.first_token_ns, done.cached_tokens) == (1785, 1585, 0)
    row = {name: column.tolist() for name, column in record.requests.items()}
    assert (row["output_tokens"], row["first_token_pass"], row["last_token_pass"], row["worker"]) == (
        [3],
        [0],
        [2],
        [1],
    )


def test_a_destination_that_reserves_first_keeps_requests_from_prefill() -> None:
    # One seat at the decode worker. 0 reserves at 0, its prompt takes 0-180, the way 405, its two tokens 585-785.
    # 1 came at 10: it gets the seat at 785, and only then its prompt is computed: 785-965, there at 1370.
    rows, record, _ = times(
        pools(Link(100, 2.0, 5), "destination", decode=small_config(seats=1)),
        Load([(0, request(0, 8, 3)), (10, request(1, 8, 2))]),
    )
    names = ("reserved_ns", "held_ns", "start_ns", "end_ns", "released_ns", "admitted_ns")
    assert [[row[name] for name in names] for row in rows] == [
        [0, 180, 180, 585, 585, 585],
        [785, 965, 965, 1370, 1370, 1370],
    ]
    assert record.requests["received_ns"].tolist() == [0, 10]  # no pass is under way at the decode worker
    assert record.requests["first_admit_ns"].tolist() == [0, 785]


def test_a_source_that_holds_computes_on_and_waits_for_room() -> None:
    # The same, but the prompt of 1 is computed at once: 180-360. It waits for the seat until 785, and goes then.
    rows, record, _ = times(
        pools(Link(100, 2.0, 5), "source", decode=small_config(seats=1)),
        Load([(0, request(0, 8, 3)), (10, request(1, 8, 2))]),
    )
    names = ("held_ns", "reserved_ns", "start_ns", "end_ns", "released_ns", "admitted_ns")
    assert [[row[name] for name in names] for row in rows] == [
        [180, 180, 180, 585, 585, 585],
        [360, 785, 785, 1190, 1190, 1190],
    ]
    assert record.requests["first_admit_ns"].tolist() == [0, 180]


def test_prompts_that_are_held_leave_no_room_for_others() -> None:
    # A prefill pool of two blocks: the prompt of 1 is computed when that of 0 has gone, and no pass runs before. It is
    # ready at 765, and the decode worker takes note at the end of its pass, at 785.
    rows, record, _ = times(
        pools(Link(100, 2.0, 5), prefill=small_config(blocks=2)),
        Load([(0, request(0, 8, 3)), (10, request(1, 8, 2))]),
    )
    assert [row["released_ns"] for row in rows] == [585, 785 + 405]
    assert record.requests["first_admit_ns"].tolist() == [0, 585]
    assert record.passes["start_ns"][record.passes["worker"] == 0].tolist() == [0, 585]


@pytest.mark.parametrize(("whole", "sent"), [(False, [8, 3]), (True, [8, 11])])
def test_what_the_destination_holds_is_not_sent_again(whole: bool, sent: list[int]) -> None:
    # Blocks of 4. The prompt of 1 begins with the two blocks of 0, which both workers cache: 3 of 11 are missing.
    load = Load([(0, request(0, 8, 2, [1, 2])), (5000, request(1, 11, 2, [1, 2]))])
    rows, record, finished = times(pools(Link(100, 1.0, 0, whole)), load)
    assert [row["tokens"] for row in rows] == sent
    assert [row["end_ns"] - row["start_ns"] for row in rows] == [100 * tokens for tokens in sent]
    assert [done.cached_tokens for done in finished] == [0, 8]
    kinds, workers = record.events["kind"].tolist(), record.passes["worker"][record.events["pass_index"]].tolist()
    stored = list(zip(kinds, workers, record.events["num_keys"].tolist(), strict=True))
    # Each worker stores what it did not have; 12 tokens fill a third block when the first output has its KV.
    assert stored == [(0, 0, 2), (0, 1, 2), (0, 1, 1)]


def test_a_decode_worker_computes_again_what_a_preemption_took() -> None:
    # Three blocks of 4 at the decode worker; two prompts of 4 with 5 tokens each need 2 blocks each at once. Both run
    # with 2 + 1 blocks: at 4 computed tokens each opens its second, and there are 3.
    load = Load([(0, request(0, 3, 7)), (0, request(1, 3, 7))])
    rows, record, _ = times(pools(decode=small_config(blocks=3)), load)
    assert [row["tokens"] for row in rows] == [3, 3]
    assert record.requests["preemptions"].tolist() == [0, 1]
    assert record.requests["output_tokens"].tolist() == [7, 7]
    decode = record.passes["worker"] == 1
    again = int(record.requests["recomputed_tokens"][1])
    assert record.passes["sum_prefill_tokens"][decode].sum() == again + 1  # and the token sampled before it
    assert record.passes["num_preempted"][decode].sum() == 1


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("hold", ["source", "destination"])
def test_outputs_of_one_token_never_leave_the_prefill_pool(seed: int, hold: Literal["source", "destination"]) -> None:
    load = random_load(seed, 60, 700)
    load = Load([(at, replace(one, output_tokens=1)) for at, one in load.arrivals], load.aborts)
    config = small_config(blocks=40, seats=4, budget=32)
    ours, told = drive(pools(hold=hold, prefill=config, timing=LinearTiming()), load)
    alone = Cluster([make_server(config, LinearTiming())], make_router("round_robin", 1, 4, 40), LinearTiming())
    theirs, expected = drive(alone, load)
    for name in ("passes", "requests", "stretches", "prefill_chunks", "admissions", "preemptions", "events"):
        for column, values in getattr(theirs, name).items():
            np.testing.assert_array_equal(getattr(ours, name)[column], values, err_msg=f"{name}.{column}")
    assert told == expected
    assert ours.transfers is not None
    assert not len(ours.transfers["index"])


def test_a_decode_pool_that_prompts_reach_at_once_takes_them_between_its_passes() -> None:
    # Three prompts of 8 on three prefill workers, ready at 180, 200, 220; a pass of n decodes takes 100 + 50 n.
    timing = FixedTiming(100, 0, 10, 50)
    load = Load([(0, request(0, 8, 5)), (20, request(1, 8, 3)), (40, request(2, 8, 2))])
    rows, record, finished = times(pools(workers=(3, 1), timing=timing), load)
    # 0 decodes alone 180-330. Then all three until 2 (its second token) ends: 330-580; two until 1 ends: 580-780.
    # 0 has five tokens: one at prefill, one at 330, 580, 780 and, alone again, at 930.
    decode = record.passes["worker"] == 3
    assert record.passes["start_ns"][decode].tolist() == [180, 330, 580, 780]
    assert record.passes["num_decode_requests"][decode].tolist() == [1, 3, 2, 1]
    assert [(done.index, done.end_ns) for done in finished] == [(2, 580), (1, 780), (0, 930)]
    assert [row["admitted_ns"] for row in rows] == [180, 330, 330]
    assert [row["reserved_ns"] for row in rows] == [180, 330, 330]


def test_who_is_given_up_lets_go_wherever_it_is() -> None:
    # A request of 8 tokens, 405 on its way. Given up while it is computed (at the end of that pass), on its way, and
    # decoding; another that comes later is served as if nothing had been.
    for at, first_seen, released_ns in ((100, False, 180), (400, False, 400), (1000, True, 585)):
        server = pools(Link(100, 2.0, 5))
        record, finished = drive(server, Load([(0, request(0, 8, 30)), (5000, request(1, 8, 2))], [(at, 0)]))
        assert [done.index for done in finished] == [1]
        assert finished[0].end_ns == 5000 + 180 + 405 + 100
        assert server.dropped_ns.keys() == {0}
        assert all(worker.pool.free == worker.pool.size for worker in server._pools)  # type: ignore[attr-defined]
        assert record.transfers is not None
        assert (record.transfers["end_ns"][0] != NO_TIME) == first_seen
        assert record.transfers["released_ns"][0] == released_ns


# -- what holds whatever is sent -----------------------------------------------------------------------------------


def random_pools(
    seed: int, core: str = "auto", drafts: bool = False, ranks: bool = False
) -> tuple[Case, Disaggregated]:
    """A random case and two random pools that its requests fit, with ranks or without."""
    case, draw = random_case(seed), random.Random(1000 + seed)
    case = speculating(case, seed) if drafts else case
    config = replace(case.config, long_prefill_token_threshold=0)
    case = replace(case, config=config)
    prefill = replace(
        config,
        max_num_seqs=draw.choice((1, config.max_num_seqs)),
        usable_kv_blocks=config.usable_kv_blocks + draw.choice((0, 3, 50)),
    )
    link = Link(draw.choice((0, 3, 40)), draw.choice((0.0, 0.5, 7.0)), draw.choice((0, 0, 250)), draw.random() < 0.5)
    hold: Literal["source", "destination"] = draw.choice(("source", "destination"))
    workers = (draw.choice((1, 1, 2, 3)), draw.choice((1, 1, 2, 3)))
    routers = draw.choice(ROUTERS), draw.choice(ROUTERS)
    timing, of_ranks = LinearTiming(case.between_ns), {}
    if ranks:
        several = (draw.choice((1, 2, 3)), draw.choice((1, 2, 3)))
        of_ranks = {"ranks": several, "price": draw.choice(("slowest", "combined")), "dp_router": draw.choice(ROUTERS)}
    return case, pools(link, hold, prefill, config, workers, timing, core, routers, **of_ranks)


def ranks_of(worker: Any) -> list[Any]:
    return [rank.server for rank in worker._ranks] if isinstance(worker, LockstepServer) else [worker]


@pytest.mark.parametrize("ranks", [False, True])
@pytest.mark.parametrize("seed", range(80))
def test_nothing_is_lost_and_everything_let_go(seed: int, ranks: bool) -> None:
    case, server = random_pools(seed, "plain", ranks=ranks)
    held = [rank for worker in server._pools for rank in ranks_of(worker)]
    record, returned = play(case, server)
    for worker in server._pools:
        if isinstance(worker, LockstepServer):
            assert (sum(worker._in_flight), worker._rank_of, worker._kept) == (0, {}, set())
    for worker in held:
        worker.check_integrity()  # type: ignore[attr-defined]
        assert worker.pool.num_free == worker.pool.size  # type: ignore[attr-defined]
    ends = [done.end_ns for _, finished in returned for done in finished]
    assert ends == sorted(ends)
    ended = {done.index: done for _, finished in returned for done in finished}
    requests, passes, moved = record.requests, record.passes, record.transfers
    assert moved is not None
    count = len(requests["received_ns"])
    assert set(ended) | set(server.dropped_ns) == set(range(count))
    asked = {index: state.served.output_tokens for index, state in server._requests.items()}
    assert all(requests["output_tokens"][index] == asked[index] for index in ended)
    assert requests["output_tokens"].sum() == passes["num_output_tokens"].sum()
    assert (passes["num_prefill_requests"] + passes["num_decode_requests"] > 0).all()
    prefills = passes["worker"] < len(server._replicas) - server._decodes
    assert not passes["num_decode_requests"][prefills].any()
    # A decode worker computes prompts only again, after a preemption.
    assert requests["preemptions"].sum() or not passes["num_prefill_requests"][~prefills].any()
    for at, own in enumerate(zip(*(moved[name].tolist() for name in moved), strict=True)):
        row = dict(zip(moved, own, strict=True))
        index = row["index"]
        chain = ["held_ns", "reserved_ns"] if server._hold == "source" else ["reserved_ns", "held_ns"]
        told = [row[name] for name in (*chain, "start_ns", "end_ns", "admitted_ns") if row[name] != NO_TIME]
        assert told == sorted(told), at
        if index in ended and asked[index] > 1:
            assert row["start_ns"] == max(row["held_ns"], row["reserved_ns"])
            assert row["released_ns"] >= row["end_ns"]
            assert ended[index].first_token_ns == row["end_ns"]
            assert 0 <= row["tokens"] <= server._requests[index].served.prompt_tokens
            assert row["end_ns"] - row["start_ns"] == server._link.duration_ns(row["tokens"])


@pytest.mark.parametrize("ranks", [(0, 0), (2, 3)])
@pytest.mark.parametrize("seed", range(30))
def test_how_often_advance_is_called_changes_nothing(seed: int, ranks: tuple[int, int]) -> None:
    draw = random.Random(seed)
    load = random_load(seed, 50, 400)
    small = small_config(blocks=40, seats=4, budget=32)
    hold = draw.choice(("source", "destination"))
    link = Link(draw.choice((0, 20)), 1.0, draw.choice((0, 77)))
    made = [pools(link, hold, small, small, (2, 2), LinearTiming(), ranks=ranks) for _ in range(4)]
    whole, _ = drive(made[0], load)
    for server, step in zip(made[1:], (1, 97, 1500), strict=True):
        stepped, _ = drive(server, load, step_ns=step)
        assert differences(stepped, whole) == []
        for name, column in (whole.transfers or {}).items():
            assert (stepped.transfers or {})[name].tolist() == column.tolist()


@pytest.mark.parametrize("ranks", [(0, 0), (3, 2)])
@pytest.mark.parametrize("seed", range(30))
def test_what_comes_later_changes_nothing_before(seed: int, ranks: tuple[int, int]) -> None:
    load = random_load(200 + seed, 60, 400)
    split = load.arrivals[40][0]
    cut = Load([a for a in load.arrivals if a[0] < split], [a for a in load.aborts if a[0] < split])
    small = small_config(blocks=40, seats=4, budget=32)
    hold = ("source", "destination")[seed % 2]
    early = []
    for some in (load, cut):
        link = Link(seed % 3, 0.1, 0)
        record, _ = drive(pools(link, hold, small, small, (2, 2), LinearTiming(), ranks=ranks), some)  # type: ignore[arg-type]
        found = members(record)
        starts = record.passes["start_ns"][found.pass_index]
        worker = record.passes["worker"][found.pass_index]
        rows = np.stack([starts, worker, found.index, found.computed_before, found.scheduled_tokens])[:, starts < split]
        early.append(sorted(map(tuple, rows.T.tolist())))
    assert early[0] == early[1]
    assert early[0]


@pytest.mark.parametrize("ranks", [False, True])
@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("seed", range(100))
def test_both_cores_give_the_same_record(seed: int, drafts: bool, ranks: bool) -> None:
    case, plain = random_pools(seed, "plain", drafts, ranks)
    _, skipping = random_pools(seed, "skipping", drafts, ranks)
    ours, theirs = play(case, skipping), play(case, plain)
    assert ours[1] == theirs[1]
    assert differences(ours[0], theirs[0]) == []
    for name, column in (theirs[0].transfers or {}).items():
        assert (ours[0].transfers or {})[name].tolist() == column.tolist(), name
    assert skipping.dropped_ns == plain.dropped_ns


@pytest.mark.parametrize("ranks", [False, True])
@pytest.mark.parametrize("seed", [*range(40), 87, 89, 99, 119])  # the last are cut while nobody has room
def test_a_run_that_is_cut_off_leaves_no_pass_that_never_came(seed: int, ranks: bool) -> None:
    case, whole = random_pools(seed, "skipping", ranks=ranks)
    end_ns = play(case, whole)[1][-1][0]
    for cut in range(3):
        cut_ns = random.Random(7 * seed + cut).randrange(1, end_ns + 1)
        records = []
        for core in ("skipping", "plain"):
            _, server = random_pools(seed, core, ranks=ranks)
            record, _ = play(case, server, cut_ns)
            records.append(record)
            count = len(record.passes["start_ns"])
            assert all((rows["pass_index"] < count).all() for rows in (record.events, record.admissions))
            counted = np.bincount(record.preemptions["pass_index"], minlength=count)
            assert counted.tolist() == record.passes["num_preempted"].tolist()
        assert differences(*records) == []


# -- ranks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("core", ["plain", "skipping"])
@pytest.mark.parametrize("seed", range(40))
def test_workers_of_one_rank_are_workers_without(seed: int, core: str) -> None:
    case, draw = random_case(seed), random.Random(seed)
    config = replace(case.config, long_prefill_token_threshold=0)
    case = replace(case, config=config)
    hold: Literal["source", "destination"] = draw.choice(("source", "destination"))
    link = Link(draw.choice((0, 40)), draw.choice((0.5, 7.0)), draw.choice((0, 250)))

    def made(ranks: tuple[int, int]) -> Disaggregated:
        return pools(link, hold, config, config, (2, 2), LinearTiming(case.between_ns), core, ranks=ranks)

    (ours, told), (theirs, expected) = (play(case, made(ranks)) for ranks in ((1, 1), (0, 0)))
    assert told == expected
    assert differences(ours, theirs) == []
    for name, column in (theirs.transfers or {}).items():
        assert (ours.transfers or {})[name].tolist() == column.tolist(), name


def test_ranks_of_a_prefill_worker_wait_for_each_other_and_hold_their_own_prompts() -> None:
    # Two ranks take the prompts of 8 and 4 in one step that lasts 100 + 80. Their ways take 800 and 400 at once.
    rows, record, finished = times(
        pools(Link(100, 1.0, 0), ranks=(2, 1)), Load([(0, request(0, 8, 2)), (0, request(1, 4, 3))])
    )
    assert [(row["prefill_rank"], row["decode_rank"]) for row in rows] == [(0, 0), (1, 0)]
    assert [row["held_ns"] for row in rows] == [180, 180]
    assert [row["end_ns"] for row in rows] == [180 + 800, 180 + 400]
    prefill = record.passes["worker"] == 0
    assert record.passes["dp_rank"][prefill].tolist() == [0, 1]
    assert record.passes["end_ns"][prefill].tolist() == [180, 180]
    # 1 decodes alone 580-780, in passes of 100; 0 joins at 980, with nobody.
    assert [(done.index, done.end_ns) for done in finished] == [(1, 780), (0, 1080)]
    assert record.requests["dp_rank"].tolist() == [0, 0]


def test_who_waits_for_a_full_rank_holds_up_nobody_who_waits_for_another() -> None:
    # Each of the two ranks has one seat, and they are given in turn: 0 and 2 to the first, 1 and 3 to the second. All
    # prompts are computed together, in 100 + 16 x 10. A decode step takes 100. 0 keeps its seat for nine of them, 1 for
    # one, so that 3 comes before 2.
    decode = small_config(seats=1)
    load = Load([(0, request(n, 4, output)) for n, output in enumerate((10, 2, 2, 2))])
    rows, record, finished = times(pools(decode=decode, ranks=(0, 2)), load)
    assert [row["decode_rank"] for row in rows] == [0, 1, 0, 1]
    assert [row["reserved_ns"] for row in rows] == [260, 260, 1160, 360]
    assert [(done.index, done.end_ns) for done in finished] == [(1, 360), (3, 460), (0, 1160), (2, 1260)]
    assert record.requests["dp_rank"].tolist() == [0, 1, 0, 1]
    decoding = record.passes["worker"] == 1
    counts = {rank: int((record.passes["dp_rank"][decoding] == rank).sum()) for rank in (0, 1)}
    assert counts == {0: 9 + 1, 1: 2}


def test_a_rank_whose_blocks_are_all_held_sits_steps_out() -> None:
    # Prefill ranks of two blocks: 0 (8 tokens, 800 on its way) fills the first, so 2 has to wait for it to be gone,
    # while 1 and 3 (4 tokens each) go through the second one by one, as its two blocks hold both.
    load = Load([(0, request(0, 8, 2)), (0, request(1, 4, 2)), (10, request(2, 8, 2)), (10, request(3, 4, 2))])
    rows, record, _ = times(pools(Link(100, 1.0, 0), prefill=small_config(blocks=2), ranks=(2, 0)), load)
    assert [row["held_ns"] for row in rows] == [180, 180, 980 + 180, 180 + 140]
    prefill = record.passes["worker"] == 0
    taken = zip(record.passes["dp_rank"][prefill].tolist(), record.passes["start_ns"][prefill].tolist(), strict=True)
    assert list(taken) == [(0, 0), (0, 980), (1, 0), (1, 180)]
    assert record.passes["period_ns"][prefill].tolist() == [-1, -1, -1, 140]
    assert record.passes["step"][prefill].tolist() == [0, 2, 0, 1]


def test_who_is_given_up_while_it_waits_for_a_rank_no_longer_counts_for_it() -> None:
    # Two ranks with a seat each, by fewest in flight. 0 and 1 take the seats at 220, for long; 2 waits for the first
    # rank, is given up, and 3 gets its place in the queue of that rank: both have one in flight then.
    decode = small_config(seats=1)
    load = Load(
        [(0, request(0, 6, 8)), (0, request(1, 6, 30)), (300, request(2, 4, 2)), (1000, request(3, 4, 2))], [(700, 2)]
    )
    rows, _, finished = times(pools(decode=decode, ranks=(0, 2), dp_router="least_loaded"), load)
    assert [row["decode_rank"] for row in rows] == [0, 1, 0, 0]
    assert 2 not in {done.index for done in finished}
    # 0 has seven steps left at 220, so the seat is free at 920; 3 is computed by 1140 and goes there at once.
    assert rows[3]["reserved_ns"] >= rows[3]["held_ns"] == 1140
