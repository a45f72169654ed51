"""Replays with a prefill and a decode pool: what a bundle says of them, and the laws that hold in each pool."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.bundle import Bundle, open_bundle
from engine.errors import GapscopeError
from engine.knobs import resolve
from engine.replay import replay, simulate
from engine.serving.cluster import Disaggregated
from engine.timing import build_timing
from tests.engine.client_harness import talk, trace_of, turn
from tests.engine.run_laws import (
    Row,
    Run,
    clocks_of_passes,
    clocks_of_requests,
    ledger_of_requests,
    pool,
    sums_of_passes,
    tokens_of_clients,
)
from tests.engine.test_client_properties import random_trace
from tests.engine.test_replay import TEN_MS
from tests.engine.test_run_laws import TIMING, smallest_pool

ROOT = Path(__file__).resolve().parents[2]
TIMES = ("held_ns", "reserved_ns", "start_ns", "end_ns", "admitted_ns", "released_ns")


def rows(bundle: Bundle, name: str) -> list[Row]:
    table = bundle.table(name)
    assert table is not None
    found: list[Row] = table.to_pylist()
    return found


def played(store: Path, seed: int, plays: int, spare: int, changes: dict[str, Any]) -> Bundle:
    """The run of a replay, after checking that both cores write the same one."""
    trace = random_trace(seed, plays)
    values = TEN_MS | TIMING | changes | {"kv_blocks": smallest_pool(trace, 4) + spare}
    ids = {replay(trace, values | {"core": core}, store=store, slug="two") for core in ("plain", "skipping")}
    assert len(ids) == 1
    return open_bundle(store / ids.pop())


def of_pool(run: Run, moved: dict[str, Row], worker: str, rank: int) -> Run:
    """What one rank of a worker did, its passes numbered from 0, its requests as it knew them."""
    passes = [row["pass_index"] for row in run.passes if (row["worker_id"], row["dp_rank"]) == (worker, rank)]
    number = {pass_index: own for own, pass_index in enumerate(passes)}
    known = []
    for row in run.requests:
        way = moved.get(row["request_id"])
        if "prefill" in worker and way is not None and prefilled_by(way) == (worker, rank):
            known.append(row | {"released_ns": way["released_ns"]})
        elif (row["worker_id"], row["dp_rank"]) == (worker, rank):
            known.append(row)

    def own(table: list[Row]) -> list[Row]:
        return [{**row, "pass_index": number[row["pass_index"]]} for row in table if row["pass_index"] in number]

    return replace(
        run, requests=known, passes=own(run.passes), kv_events=own(run.kv_events), admissions=own(run.admissions)
    )


def prefilled_by(way: Row) -> tuple[str, int]:
    """Worker and rank that computed the prompt."""
    return way["prefill_worker_id"], way["prefill_dp_rank"] or 0


def reserved(run: Run, moved: dict[str, Row], worker: str, rank: int) -> list[tuple[int, str, list[int], int]]:
    """When a rank reserved for whom: the blocks that it hit, by content, and how many it took besides."""
    found = []
    for row in run.requests:
        way = moved.get(row["request_id"])
        if way is None or way["reserved_ns"] is None:
            continue
        if (way["decode_worker_id"], way["decode_dp_rank"] or 0) != (worker, rank):
            continue
        hits = (row["input_tokens"] - way["tokens"]) // run.block_size
        blocks = -(-(row["input_tokens"] + 1) // run.block_size)
        found.append((way["reserved_ns"], row["request_id"], row["prompt_block_hashes"][:hits], blocks - hits))
    return sorted(found)


def work(run: Run, moved: dict[str, Row]) -> None:
    """A prompt is computed once, by its prefill worker; the decode worker goes on after it."""
    batches: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for row in run.passes:
        for member in row["members"]:
            took = member["computed_before"], member["scheduled_tokens"]
            batches[row["worker_id"], member["request_id"]].append(took)
    for row in run.requests:
        name, way = row["request_id"], moved.get(row["request_id"])
        if row["status"] != "ok":
            continue
        first = way["prefill_worker_id"] if way else row["worker_id"]
        prompt = batches.pop((first, name))
        if not row["preemptions"]:
            assert prompt[0][0] == row["cached_tokens"], name
            assert sum(tokens for _, tokens in prompt) == row["input_tokens"] - row["cached_tokens"], name
        if way is None:
            assert row["output_tokens"] == 1
            continue
        decodes = batches.pop((way["decode_worker_id"], name))
        assert decodes[0] == (row["input_tokens"], 1), name
        if not row["preemptions"]:
            steps = range(row["input_tokens"], row["input_tokens"] + row["output_tokens"] - 1)
            assert decodes == [(before, 1) for before in steps], name


knobs = st.fixed_dictionaries(
    {
        "prefill_replicas": st.integers(1, 3),
        "replicas": st.integers(1, 3),
        "router": st.sampled_from(["round_robin", "least_loaded", "kv_aware"]),
        "prefill_router": st.sampled_from(["round_robin", "session", "kv_aware"]),
        "transfer_hold": st.sampled_from(["source", "destination"]),
        "transfer_gb_s": st.sampled_from([0, 0.01, 50]),
        "transfer_latency_us": st.sampled_from([0, 3000]),
        "lanes": st.integers(1, 6),
        "duration_s": st.sampled_from([0, 0.4, 2.0]),
        "warmup_s": st.sampled_from([0, 0.2]),
        "grace_s": st.sampled_from([0, 0.05, 5]),
        "max_num_seqs": st.sampled_from([2, 8]),
        "max_num_batched_tokens": st.sampled_from([16, 70]),
        "prefill_max_num_seqs": st.sampled_from([0, 1]),
        "attention_dp": st.integers(1, 3),
        "prefill_attention_dp": st.integers(0, 3),
        "dp_price": st.sampled_from(["slowest", "combined"]),
        "dp_router": st.sampled_from(["round_robin", "least_loaded", "kv_aware"]),
        "prefill_kv_blocks": st.sampled_from([0, 400]),
        "response_latency_ms": st.sampled_from([0, 7]),
    }
)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), plays=st.integers(1, 5), spare=st.sampled_from([0, 2, 9, 500]), changes=knobs)
def test_laws_hold_in_each_pool(
    tmp_path_factory: pytest.TempPathFactory, seed: int, plays: int, spare: int, changes: dict[str, Any]
) -> None:
    if changes["prefill_replicas"] == 1:
        del changes["prefill_router"]
    if changes["replicas"] == 1:
        del changes["router"]
    several = max(changes["attention_dp"], changes["prefill_attention_dp"]) > 1
    if not several:
        del changes["dp_price"], changes["dp_router"]
    changes["block_size"] = 4
    bundle = played(tmp_path_factory.mktemp("pools"), seed, plays, spare, changes)
    run, moved = Run.of(bundle), {row["request_id"]: row for row in rows(bundle, "transfers")}
    for law in (clocks_of_requests, sums_of_members, tokens_of_clients, ledger_of_requests):
        assert list(law(run)) == [], law.__name__
    workers = {row["worker_id"] for row in (*run.passes, *run.admissions, *run.kv_events, *run.requests)}
    pools = {"prefill": changes["prefill_replicas"], "decode": changes["replicas"]}
    assert workers <= {f"vllm-{name}-{number}" for name, count in pools.items() for number in range(count)}
    total = {"prefill": changes["prefill_kv_blocks"], "decode": 0}
    whole = all(row["status"] == "ok" for row in run.requests)
    ranks = {"decode": changes["attention_dp"]}
    ranks["prefill"] = changes["prefill_attention_dp"] or ranks["decode"]
    ranks_of = {worker: ranks[worker.split("-")[1]] for worker in sorted(workers)}
    for worker, rank in [(worker, rank) for worker, count in ranks_of.items() for rank in range(count)]:
        own = of_pool(run, moved, worker, rank)
        assert list(clocks_of_passes(own)) == [], (worker, rank)
        if whole:
            assert list(pool(own, reserved(run, moved, worker, rank))) == [], (worker, rank)
        blocks = total[worker.split("-")[1]] or bundle.identity.value("capacity", "kv_blocks")
        assert {row["kv_blocks_total"] for row in own.passes} <= {blocks - 1}
    seen = {(row["worker_id"], row["dp_rank"]) for row in (*run.passes, *run.admissions, *run.kv_events)}
    assert all(rank < ranks_of[worker] for worker, rank in seen)
    if several:
        steps = {(row["worker_id"], row["step"], row["start_ns"], row["end_ns"]) for row in run.passes}
        assert len(steps) == len({row["step"] for row in run.passes})
    work(run, moved)
    for row in run.requests:
        way = moved.get(row["request_id"])
        if row["status"] == "ok":
            assert (way is None) == (row["output_tokens"] == 1)
        if way is not None and row["status"] == "ok":
            assert None not in [way[name] for name in TIMES]
            assert way["start_ns"] == max(way["held_ns"], way["reserved_ns"])
            assert way["start_ns"] <= way["end_ns"] <= way["admitted_ns"]
            assert way["end_ns"] <= way["released_ns"]
            late = round(1e6 * changes["response_latency_ms"])
            assert row["first_visible_ns"] == way["end_ns"] + late
            assert row["last_visible_ns"] == row["released_ns"] + late


def sums_of_members(run: Run) -> list[str]:
    """What a pass counts is what its members are; who joins a decode worker decodes from its first pass on."""
    return list(sums_of_passes(run))


def test_what_the_record_of_two_pools_says(tmp_path: Path) -> None:
    # Outputs of 4, 1 and 3 tokens; a second turn begins with what came before it: 12 + 4 + 3 tokens.
    trace = trace_of([talk("a", turn("p", 12, 4), turn("q", 3, 1))], [talk("b", turn("r", 9, 3))])
    changes = {"prefill_replicas": 1, "replicas": 2, "lanes": 2, "kv_bytes_per_token": 1000, "transfer_gb_s": 0.001}
    bundle = open_bundle(tmp_path / replay(trace, TEN_MS | changes, store=tmp_path))
    assert bundle.identity.value("topology", "serving") == "prefill/decode"
    assert bundle.identity.value("topology", "prefill_workers") == {"replicas": 1}
    assert bundle.identity.value("topology", "decode_workers") == 2
    way = {row["request_id"]: row for row in rows(bundle, "transfers")}
    assert {row["tokens"] for row in way.values()} == {12, 9}  # the answer of one token stays where it was computed
    assert all(row["end_ns"] - row["start_ns"] == 5_000 + row["tokens"] * 1_000_000 for row in way.values())
    last = {row["request_id"]: row["worker_id"] for row in rows(bundle, "requests")}
    assert {last[name] for name in way} == {"vllm-decode-0", "vllm-decode-1"}
    assert {worker for name, worker in last.items() if name not in way} == {"vllm-prefill-0"}


def test_a_run_without_pools_has_no_transfers(tmp_path: Path) -> None:
    trace = trace_of([talk("a", turn("p", 12, 4))])
    one, two = (replay(trace, TEN_MS | more, store=tmp_path) for more in ({}, {"prefill_replicas": 0}))
    assert one == two
    assert open_bundle(tmp_path / one).table("transfers") is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"transfer_gb_s": 3}, "no effect with prefill_replicas=0"),
        ({"prefill_replicas": 1, "prefill_router": "session"}, "no effect with prefill_replicas=1"),
        ({"prefill_replicas": 1, "engine": "sglang"}, "engine=sglang"),
        ({"prefill_replicas": 1, "attention_dp": 2, "prefill_schedule_interval": 4}, "prefill_schedule_interval=4"),
        ({"prefill_attention_dp": 2}, "no effect with prefill_replicas=0"),
        ({"prefill_replicas": 1, "dp_price": "combined"}, "attention_dp above 1"),
        ({"prefill_replicas": 9, "attention_dp": 2, "prefill_attention_dp": 120}, "schedulers"),
        ({"prefill_replicas": 1000, "replicas": 1000}, "schedulers"),
        ({"prefill_replicas": 1, "prefill_max_num_seqs": 4000}, "budget of 2048 tokens for 4000"),
        ({"prefill_replicas": 1, "timing": "measured", "measured_match": "order"}, "measured_match=geometry"),
        ({"prefill_replicas": 1, "core": "skipping", "engine": "trtllm"}, "core=auto"),
        ({"prefill_replicas": 1, "prefill_kv_blocks": 1}, "prefill_kv_blocks=1: .* at least 2"),
        ({"prefill_replicas": 1, "async_scheduling": True}, "async_scheduling=true and prefill_replicas=1: no rule"),
        ({"async_scheduling": True, "engine": "sglang"}, "async_scheduling=true has .* its default, false"),
        ({"router": "session", "replicas": 1}, "router=session has no effect: expected replicas above 1"),
        ({"prefill_replicas": 1, "transfer_gb_s": 1e-300}, "transfer_gb_s=1e-300: expected at least 1e-09 GB/s"),
    ],
)
def test_what_two_pools_cannot_do_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(GapscopeError, match=words):
        resolve(changes)


def test_a_prompt_that_no_prefill_engine_holds_is_refused_in_the_words_of_that_pool() -> None:
    # 22 tokens and one more have 22 with KV: 6 blocks of 4. A pool of 6 holds 5, one being the null block.
    values = resolve(TEN_MS | {"prefill_replicas": 1, "prefill_kv_blocks": 6})
    with pytest.raises(
        GapscopeError, match=r"of a prefill engine: .* need 6 blocks .* has 5 .* raise prefill_kv_blocks"
    ):
        simulate(trace_of([talk("a", turn("a0", 22, 3))]), values, build_timing(values, None))


def test_nobody_looks_up_while_nothing_but_a_transfer_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A prompt of 22 tokens at 131,072 bytes each and a byte per second is 2,883,584 s on its way.
    calls = []
    advance = Disaggregated.advance

    def counted(self: Disaggregated, now_ns: int, until_ns: int | None) -> Any:
        calls.append(until_ns)
        return advance(self, now_ns, until_ns)

    monkeypatch.setattr(Disaggregated, "advance", counted)
    changes = TEN_MS | {"prefill_replicas": 1, "transfer_gb_s": 1e-9, "transfer_latency_us": 0, "cache_bust": "none"}
    trace = trace_of([talk("a", turn("a0", 22, 3))])
    run_id = replay(trace, changes, store=tmp_path, progress=lambda *report: None)
    (way,) = rows(open_bundle(tmp_path / run_id), "transfers")
    assert way["end_ns"] - way["start_ns"] == 2_883_584_000_000_000
    assert len(calls) < 10


@pytest.mark.parametrize(
    "changes",
    [
        {"transfer_gb_s": 1e-9, "kv_bytes_per_token": 1_000_000_000, "prefill_replicas": 1},
        {"fixed_prefill_token_us": 1e9, "pass_scale": 100.0},
        {"fixed_prefill_token_us": 1e9, "pass_scale": 100.0, "replicas": 2},
        {"fixed_prefill_token_us": 1e9, "pass_scale": 100.0, "attention_dp": 2},
        {"fixed_prefill_token_us": 1e9, "pass_scale": 100.0, "prefill_replicas": 1},
    ],
)
def test_what_lasts_longer_than_146_years_is_refused(changes: dict[str, Any]) -> None:
    # 20 tokens of 10^18 ns each, and then 50,000 tokens of 10^14 ns each, are more than 2^62 = 4.6 x 10^18.
    trace = trace_of([talk("a", turn("a0", 20 if "transfer_gb_s" in changes else 50_000, 3))])
    values = resolve(TEN_MS | {"kv_blocks": 13_000, "max_num_batched_tokens": 60_000} | changes)
    with pytest.raises(GapscopeError, match="beyond 146 years"):
        simulate(trace, values, build_timing(values, None))


def test_whole_reservation_in_both_pools_preempts_nobody(tmp_path: Path) -> None:
    trace = random_trace(3, 5)
    changes = {"prefill_replicas": 1, "engine": "trtllm", "lanes": 5, "block_size": 4}
    values = TEN_MS | TIMING | changes | {"kv_blocks": smallest_pool(trace, 4) + 2}
    bundle = open_bundle(tmp_path / replay(trace, values, store=tmp_path))
    found = rows(bundle, "requests")
    assert found
    assert all(row["status"] == "ok" and not row["preemptions"] for row in found)


def test_a_replay_of_two_pools_is_the_same_in_another_process(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from engine.replay import replay; "
        "from tests.engine.test_client_properties import random_trace; from tests.engine.test_replay import TEN_MS; "
        f"print(replay(random_trace(5, 4), {{**TEN_MS, 'prefill_replicas': 2, 'replicas': 2, 'lanes': 4}}, "
        f"store=Path({str(tmp_path)!r}), slug='p'))"
    )
    ids = set()
    for seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": seed},
            text=True,
            capture_output=True,
        )
        assert done.returncode == 0, done.stderr
        ids.add(done.stdout.strip())
        for run in ids:
            for path in sorted((tmp_path / run).iterdir()):
                path.unlink()
            (tmp_path / run).rmdir()
    assert len(ids) == 1


def test_tables_are_in_order_over_both_pools(tmp_path: Path) -> None:
    bundle = played(tmp_path, 7, 5, 9, {"prefill_replicas": 2, "replicas": 2, "lanes": 4, "block_size": 4})
    run = Run.of(bundle)
    assert [row["pass_index"] for row in run.passes] == list(range(len(run.passes)))
    for table, keys in (
        (run.passes, ("start_ns", "pass_index")),
        (run.kv_events, ("time_ns", "pass_index", "event_index")),
        (run.chunks, ("time_ns", "request_id", "ordinal")),
    ):
        order = [tuple(row[key] for key in keys) for row in table]
        assert all(left < right for left, right in pairwise(order))


def test_times_of_the_way_move_with_the_profile_start(tmp_path: Path) -> None:
    """Primers start the profile when they have ended, so all times before are moved; the host adds to what is seen."""
    plays = [[talk(f"c{n}", *(turn(f"{n}.{t}", 12, 3) for t in range(4)))] for n in range(2)]
    changes = {"prefill_replicas": 1, "lanes": 2, "cut": "turns", "prime": True, "warmup_requests": 1}
    more = {"host_model": "given", "host_request_ms": 2.0, "host_chunk_ms": 1.0, "transfer_latency_us": 4000}
    bundle = open_bundle(tmp_path / replay(trace_of(*plays), TEN_MS | changes | more, store=tmp_path))
    moved = {row["request_id"]: row for row in rows(bundle, "transfers")}
    requests = rows(bundle, "requests")
    assert {row["phase"] for row in requests} == {"primer", "warmup", "profile"}
    assert {row["request_id"] for row in requests if row["phase"] == "profile"} == moved.keys()
    assert all(row["dispatched_ns"] >= 0 for row in requests if row["phase"] == "profile")
    for row in requests:
        way = moved.get(row["request_id"])
        if way is not None:
            assert row["first_admit_ns"] < way["held_ns"] <= way["reserved_ns"] < way["end_ns"] <= way["admitted_ns"]
            assert row["first_visible_ns"] == way["end_ns"] + 3_000_000
