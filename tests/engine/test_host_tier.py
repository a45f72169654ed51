"""KV blocks in host memory: by hand on tiny pools, against a naive list, core against core, and what it is worth."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving_cases import LinearTiming, MoodyTiming, differences, play, random_case
from serving_driver import FixedTiming, Load, drive, events, request, small_config
from test_skipping import speculating

from engine.bundle import open_bundle
from engine.errors import GapscopeError
from engine.knobs import resolve
from engine.replay import replay
from engine.serving import make_server
from engine.serving.cluster.lockstep import LockstepServer
from engine.serving.cluster.routers import make_router
from engine.serving.contract import HostMemory, ServedRequest, ServerRecord
from engine.serving.host_tier import HostTier
from engine.serving.plain import PlainServer
from engine.serving.skipping import SkippingServer
from engine.timing.hidden import HiddenHost
from tests.engine.run_laws import Run, broken
from tests.engine.test_biases import Outcome, crowded
from tests.engine.test_client_properties import random_trace
from tests.engine.test_replay import TEN_MS
from tests.engine.test_run_laws import TIMING, smallest_pool

CORES = (PlainServer, SkippingServer)


def equal(case: Any, timing: Any = LinearTiming) -> ServerRecord:
    """The plain core's record of a case, after checking that the skipping core's is the same."""
    expected, calls = play(case, PlainServer(case.config, timing(case.between_ns)))
    actual, same_calls = play(case, SkippingServer(case.config, timing(case.between_ns)))
    assert same_calls == calls
    assert differences(expected, actual) == []
    assert expected.host_events.keys() == actual.host_events.keys()
    for name, column in expected.host_events.items():
        np.testing.assert_array_equal(column, actual.host_events[name])
    np.testing.assert_array_equal(expected.host_keys, actual.host_keys)
    return expected


# -- the tier alone ------------------------------------------------------------------------------------------------


def test_the_tier_is_a_list_by_last_use() -> None:
    draw = random.Random(3)
    for room in (1, 2, 5, 9):
        tier, held = HostTier(HostMemory(room, 1.0), record=True), []
        content: set[int] = set()
        for turn in range(300):
            keys = draw.sample(range(14), draw.randrange(1, 9))
            reach = next((n for n, key in enumerate(keys) if key not in held), len(keys))
            assert tier.reach(keys) == reach
            tier.use(keys[:reach])
            held = [key for key in held if key not in keys[:reach]] + keys[:reach][::-1]
            tier.pass_index = turn
            tier.keep(keys, turn)
            held = ([key for key in held if key not in keys] + keys[::-1])[-room:]
            assert len(tier) == len(held) <= room
            assert all(key in tier for key in held)
        record = tier.record()
        table, flat = record["host_events"], record["host_keys"]
        for kind, first, count in zip(*(table[n].tolist() for n in ("kind", "first_key", "num_keys")), strict=True):
            moved = set(flat[first : first + count].tolist())
            assert len(moved) == count
            assert moved.isdisjoint(content) if kind == 0 else moved <= content
            content = content | moved if kind == 0 else content - moved
        assert content == set(held)


def test_the_head_of_a_prompt_that_is_larger_than_the_host_is_kept() -> None:
    tier = HostTier(HostMemory(2, 1.0), record=False)
    tier.keep([1, 2, 3, 4], 0)
    assert tier.reach([1, 2, 3, 4]) == 2
    assert tier.record() == {}


# -- by hand -------------------------------------------------------------------------------------------------------


def sweep(cycles: int) -> Load:
    """Three prompts of four full blocks and a token, in turn, each after the one before."""
    asked = [
        (100_000 * n, ServedRequest(n, 17, 1, [10 * (n % 3) + block for block in range(1, 5)]))
        for n in range(3 * cycles)
    ]
    return Load(asked)


@pytest.mark.parametrize("core", CORES)
def test_a_sweep_that_the_pool_forgets_is_served_from_the_host(core: Any) -> None:
    # Nine blocks hold two prompts, and who comes next was used longest ago: all of it was evicted.
    alone, _ = drive(core(small_config(blocks=9), FixedTiming(duration_ns=1000)), sweep(4))
    assert alone.requests["cached_tokens"].tolist() == [0] * 12
    assert "restored_blocks" not in alone.admissions

    # Twelve blocks on the host hold all three. A block of 4 tokens of 1,000 bytes takes 125 ns at 32 GB/s.
    config = replace(small_config(blocks=9), host=HostMemory(12, 4 * 1000 / 32))
    record, _ = drive(core(config, FixedTiming(duration_ns=1000, per_token_ns=10)), sweep(4))
    assert record.requests["cached_tokens"].tolist() == [0] * 3 + [16] * 9
    assert record.admissions["hit_blocks"].tolist() == [0] * 12
    assert record.admissions["restored_blocks"].tolist() == [0] * 3 + [4] * 9
    assert (record.passes["end_ns"] - record.passes["start_ns"]).tolist() == [1170] * 3 + [1010 + 4 * 125] * 9
    assert record.passes["sum_prefill_tokens"].tolist() == [17] * 3 + [1] * 9
    assert record.passes["kv_blocks_used"].tolist() == [5] * 12
    copies = record.host_events
    assert copies["kind"].tolist() == [0] * 3  # each copied once, nothing forgotten
    assert copies["pass_index"].tolist() == copies["index"].tolist() == [0, 1, 2]
    assert record.host_keys.tolist() == [4, 3, 2, 1, 14, 13, 12, 11, 24, 23, 22, 21]
    assert events(record)[-3:] == [
        ("store", 10, 10, [11, 12, 13, 14]),
        ("evict", 11, 11, [4, 3, 2, 1]),
        ("store", 11, 11, [21, 22, 23, 24]),
    ]


@pytest.mark.parametrize("core", CORES)
def test_the_host_goes_on_where_the_pool_ends_and_leaves_the_last_token(core: Any) -> None:
    # Request 0 leaves 4 blocks. Request 1 takes 7 of the 8: it evicts three from the tail, block 1 stays. Request 2
    # hits it, restores blocks 2 and 3, and computes block 4, as its last token is in it.
    load = Load(
        [(0, request(0, 17, 1, [1, 2, 3, 4])), (5000, request(1, 26, 1, [])), (9000, request(2, 16, 1, [1, 2, 3, 4]))]
    )
    config = replace(small_config(blocks=8), host=HostMemory(100, 50.0))
    record, _ = drive(core(config, FixedTiming(duration_ns=100)), load)
    assert record.admissions["hit_blocks"].tolist() == [0, 0, 1]
    assert record.admissions["restored_blocks"].tolist() == [0, 0, 2]
    assert record.requests["cached_tokens"].tolist() == [0, 0, 12]
    assert (record.passes["end_ns"] - record.passes["start_ns"]).tolist() == [100, 100, 200]


@pytest.mark.parametrize("core", CORES)
def test_who_is_preempted_finds_its_blocks_on_the_host(core: Any) -> None:
    # Two requests of 8 prompt and 12 output tokens in 8 blocks: at 16 tokens each the second gives up its four full
    # blocks. The first takes one of them and ends; the second then has 16 tokens from pool and host.
    load = Load([(0, request(0, 8, 12)), (0, request(1, 8, 12))])
    record, _ = drive(core(replace(small_config(blocks=8), host=HostMemory(100, 1.0)), FixedTiming()), load)
    assert record.preemptions["index"].tolist() == [1]
    again = record.admissions["is_readmission"]
    assert record.admissions["cached_tokens"][again].tolist() == [16]
    assert record.admissions["restored_blocks"][again].tolist() == [1]
    assert record.requests["recomputed_tokens"].tolist() == [0, 0]


def test_ranks_wait_for_the_one_that_loads() -> None:
    # Request n goes to rank n % 2, each after the one before; the seventh is the fourth of rank 0 and comes back to
    # what that rank's pool lost: its step takes 4 blocks of 125 ns more.
    asked = [
        (100_000 * n, ServedRequest(n, 17, 1, [10 * (n // 2 % 3) + at + 1000 * (n % 2) for at in range(1, 5)]))
        for n in range(8)
    ]
    config = replace(small_config(blocks=9), host=HostMemory(12, 125.0))
    for price in ("slowest", "combined"):
        timing = FixedTiming(duration_ns=1000)
        ranks = [SkippingServer(config, timing) for _ in range(2)]
        server = LockstepServer(ranks, timing, price, make_router("round_robin", 2, 4, 9, 1.0))
        record, _ = drive(server, Load(asked))
        lasted = record.passes["end_ns"] - record.passes["start_ns"]
        assert sorted(lasted.tolist()) == [1000] * 6 + [1500] * 2
        assert record.host_events["kind"].tolist() == [0] * 6
        assert record.host_keys.tolist()[-4:] == [1024, 1023, 1022, 1021]


@pytest.mark.parametrize("core", CORES)
def test_a_rank_without_anything_to_copy_leaves_the_copies_of_the_others(core: Any) -> None:
    # Of three ranks, the first copies the two blocks of its request, the second has no full block, the third nothing.
    timing = FixedTiming()
    config = replace(small_config(), host=HostMemory(9, 0.0))
    ranks = [core(config, timing) for _ in range(3)]
    server = LockstepServer(ranks, timing, "slowest", make_router("round_robin", 3, 4, 9, 1.0))
    record, _ = drive(server, Load([(0, request(0, 9, 1, [7, 8])), (0, request(1, 3, 1))]))
    assert (record.host_events["kind"].tolist(), record.host_events["index"].tolist()) == ([0], [0])
    assert record.host_keys.tolist() == [8, 7]


# -- both cores ----------------------------------------------------------------------------------------------------


def with_host(case: Any, seed: int) -> Any:
    draw = random.Random(seed)
    host = HostMemory(draw.choice((1, 3, 10, 40, 1000)), draw.choice((0.0, 3.7, 50.0)))
    return replace(case, config=replace(case.config, host=host))


def test_records_are_equal_on_random_cases() -> None:
    totals = dict.fromkeys(("restored", "again", "forgotten", "preemptions"), 0)
    for seed in range(200):
        record = equal(with_host(random_case(seed), seed), MoodyTiming if seed % 3 == 0 else LinearTiming)
        restored = record.admissions["restored_blocks"]
        totals["restored"] += np.count_nonzero(restored)
        totals["again"] += np.count_nonzero(restored[record.admissions["is_readmission"]])
        totals["preemptions"] += len(record.preemptions["index"])
        if record.host_events:
            totals["forgotten"] += np.count_nonzero(record.host_events["kind"])
    assert totals["again"] > 10, totals
    assert min(totals["restored"], totals["forgotten"], totals["preemptions"]) > 100, totals


def test_records_are_equal_under_speculation() -> None:
    restored = 0
    for seed in range(100):
        record = equal(with_host(speculating(random_case(seed), seed), seed))
        restored += np.count_nonzero(record.admissions["restored_blocks"])
    assert restored > 50


@pytest.mark.parametrize(
    "rules", [{"reservation": "whole_sequence"}, {"reservation": "per_sharer"}, {"async_scheduling": True}]
)
def test_records_are_equal_under_other_rules(rules: dict[str, Any]) -> None:
    restored = 0
    for seed in range(60):
        case = with_host(random_case(seed), seed)
        config = replace(case.config, **rules)
        expected, calls = play(case, make_server(config, HiddenHost(LinearTiming(case.between_ns)), "plain"))
        actual, same_calls = play(case, make_server(config, HiddenHost(LinearTiming(case.between_ns)), "auto"))
        assert same_calls == calls
        assert differences(expected, actual) == []
        np.testing.assert_array_equal(expected.host_keys, actual.host_keys)
        restored += np.count_nonzero(expected.admissions["restored_blocks"])
    assert restored > 20


def test_a_large_host_at_no_cost_reuses_what_an_endless_pool_does() -> None:
    for seed in range(60):
        case = random_case(seed)
        config = replace(case.config, max_num_seqs=1, max_num_batched_tokens=1000, long_prefill_token_threshold=0)
        config = replace(config, prefix_caching=True)
        tiny = replace(case, config=replace(config, host=HostMemory(1_000_000, 0.0)))
        endless = replace(case, config=replace(config, usable_kv_blocks=1_000_000))
        record, reference = equal(tiny), equal(endless)
        np.testing.assert_array_equal(record.requests["cached_tokens"], reference.requests["cached_tokens"])
        np.testing.assert_array_equal(record.passes["end_ns"], reference.passes["end_ns"])


# -- replays -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"attention_dp": 2}, {"replicas": 2, "router": "session"}])
def test_replays_obey_the_laws_and_both_cores_write_the_same(tmp_path: Path, more: dict[str, Any]) -> None:
    trace = random_trace(20, 6)
    changes = {"lanes": 6, "max_num_seqs": 8, "max_num_batched_tokens": 70, "duration_s": 2.0, "wrap": True}
    changes |= {"host_kv_blocks": 60, "host_link_gb_s": 0.5, "kv_bytes_per_token": 100_000, "cache_bust": "none"}
    values = TEN_MS | TIMING | changes | more | {"block_size": 4, "kv_blocks": smallest_pool(trace, 4) + 6}
    ids = {replay(trace, values | {"core": core}, store=tmp_path, slug="host") for core in ("plain", "skipping")}
    assert len(ids) == 1
    run = Run.of(open_bundle(tmp_path / ids.pop()))
    assert sum(row["restored_blocks"] for row in run.admissions) > 10
    parts = ("prefill_ns", "decode_ns", "overhead_ns", "transfer_ns")
    loaded: dict[int, int] = {}
    for row in run.admissions:
        loaded[row["pass_index"]] = loaded.get(row["pass_index"], 0) + row["restored_blocks"]
    for row in run.passes:
        waited = row.get("wait_ns") or 0
        assert waited >= 0
        assert sum(row[name] for name in parts) + waited == row["duration_ns"]
        assert row["transfer_ns"] == loaded.get(row["pass_index"], 0) * 4 * 100_000 / 0.5
    if not more:
        assert broken(run) == {}
        assert {(event["kind"], event["tier"]) for event in run.kv_events} >= {
            ("restore", "host"),
            ("store", "host"),
            ("evict", "host"),
            ("store", "device"),
            ("evict", "device"),
        }


def hosted(lanes: int, **changes: Any) -> Outcome:
    return crowded(lanes, {"kv_bytes_per_token": 131_072, **changes})


def test_conversations_that_do_not_fit_the_pool_go_on_from_the_host() -> None:
    # Eight and sixteen conversations where five and a half fit: with room on the host reuse is what it is when all fit,
    # 1 - 40 / 220. A block is 2 MiB: 66 us at 32 GB/s, where computing it takes 320 us.
    for lanes, blocks in ((8, 1000), (16, 2000)):
        pool, host = crowded(lanes, {}), hosted(lanes, host_kv_blocks=blocks)
        assert pool.reuse < 0.5
        assert host.reuse == pytest.approx(1 - 40 / 220)
        assert host.rate > 1.5 * pool.rate
        assert host.ttft_s < 0.65 * pool.ttft_s
    # Over a link that takes longer than computing, the same reuse costs more than it saves.
    slow = hosted(16, host_kv_blocks=2000, host_link_gb_s=2.0)
    assert slow.reuse == pytest.approx(1 - 40 / 220)
    assert slow.rate < crowded(16, {}).rate


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"host_kv_blocks": 9, "engine": "sglang"}, "host_kv_blocks=9 and engine=sglang"),
        ({"host_kv_blocks": 9, "prefix_caching": False}, "prefix_caching=false"),
        ({"host_kv_blocks": 9, "host_link_gb_s": 1e-300}, "host_link_gb_s=1e-300: expected at least 1e-09 GB/s"),
        ({"host_kv_blocks": 9, "cache_blocks": 4}, "cache_blocks=4"),
        ({"host_kv_blocks": 9, "policy": "longest_prefix"}, "policy=longest_prefix"),
        ({"host_kv_blocks": 9, "prefill_replicas": 1}, "prefill_replicas=1"),
        ({"host_link_gb_s": 9.0}, "host_kv_blocks=0"),
    ],
)
def test_what_is_not_known_to_work_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(GapscopeError, match=said):
        resolve(changes)


def test_what_a_token_takes_is_taken_over_from_a_recording_where_it_matters() -> None:
    assert resolve({"kv_bytes_per_token": 6144})["kv_bytes_per_token"] == resolve({})["kv_bytes_per_token"]
    assert resolve({"kv_bytes_per_token": 6144, "host_kv_blocks": 1})["kv_bytes_per_token"] == 6144


def test_a_server_without_such_a_pool_has_no_host_memory() -> None:
    config = replace(small_config(), host=HostMemory(9, 1.0), engine="sglang")
    with pytest.raises(GapscopeError, match="engine=sglang"):
        make_server(config, LinearTiming())
