"""Replays of several replicas: every law of a run holds for each of them, and the tables are in order over all."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.bundle import Bundle, BundleWriter, Phase, open_bundle
from engine.errors import GapscopeError
from engine.identity import Identity
from engine.knobs import resolve
from engine.replay import Tables, knobs_from_run, replay
from engine.serving.cluster.routers import ROUTERS
from tests.engine.client_harness import talk, trace_of, turn
from tests.engine.run_laws import LAWS, Run, ledger_of_requests
from tests.engine.test_client_properties import random_trace
from tests.engine.test_replay import TEN_MS, run
from tests.engine.test_run_laws import TIMING, smallest_pool

ROOT = Path(__file__).resolve().parents[2]


def played(store: Path, seed: int, plays: int, spare: int, changes: dict[str, Any]) -> Bundle:
    """The run of a replay, after checking that both cores write the same one."""
    trace = random_trace(seed, plays)
    values = TEN_MS | TIMING | changes | {"kv_blocks": smallest_pool(trace, 4) + spare}
    ids = {replay(trace, values | {"core": core}, store=store, slug="two") for core in ("plain", "skipping")}
    assert len(ids) == 1
    return open_bundle(store / ids.pop())


def of_worker(run: Run, worker: str) -> Run:
    """What one worker did, its passes under the numbers that it gave them."""
    step = {row["pass_index"]: row["counter"] for row in run.passes}
    requests = [row for row in run.requests if row["worker_id"] == worker]
    names = {row["request_id"] for row in requests}

    def own(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**row, "pass_index": step[row["pass_index"]]} for row in rows if row["worker_id"] == worker]

    return Run(
        requests,
        own(run.passes),
        own(run.kv_events),
        own(run.admissions),
        [row for row in run.chunks if row["request_id"] in names],
        run.ledger,
        run.block_size,
    )


def check(bundle: Bundle, replicas: int) -> Run:
    """Every law, worker by worker, and the order of what all did."""
    run = Run.of(bundle)
    workers = {row["worker_id"] for row in (*run.passes, *run.admissions, *run.kv_events, *run.requests)}
    assert workers <= {f"vllm-{number}" for number in range(replicas)}
    for worker in workers:
        for law in LAWS:
            if law is not ledger_of_requests:
                assert list(law(of_worker(run, worker))) == [], (worker, law.__name__)
    assert list(ledger_of_requests(run)) == []
    assert [row["pass_index"] for row in run.passes] == list(range(len(run.passes)))
    assert [row["step"] for row in run.passes] == list(range(len(run.passes)))  # no two are taken together
    for rows, keys in (
        (run.passes, ("start_ns", "pass_index")),
        (run.kv_events, ("time_ns", "pass_index", "event_index")),
        (run.admissions, ("time_ns", "request_id")),
        (run.chunks, ("time_ns", "request_id", "ordinal")),
    ):
        order = [tuple(row[key] for key in keys) for row in rows]
        assert all(left < right for left, right in pairwise(order))
    return run


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    plays=st.integers(1, 5),
    spare=st.sampled_from([0, 2, 9, 500]),
    changes=st.fixed_dictionaries(
        {
            "replicas": st.sampled_from([2, 3, 5]),
            "router": st.sampled_from(ROUTERS),
            "lanes": st.integers(2, 8),
            "duration_s": st.sampled_from([0, 0.4, 2.0]),
            "warmup_s": st.sampled_from([0, 0.2]),
            "grace_s": st.sampled_from([0, 0.05]),
            "max_num_seqs": st.sampled_from([2, 8]),
            "max_num_batched_tokens": st.sampled_from([16, 70]),
            "request_latency_ms": st.sampled_from([0, 3]),
            "response_latency_ms": st.sampled_from([0, 7]),
        }
    ),
)
def test_every_law_holds_for_each_replica(
    tmp_path_factory: pytest.TempPathFactory, seed: int, plays: int, spare: int, changes: dict[str, Any]
) -> None:
    check(played(tmp_path_factory.mktemp("laws"), seed, plays, spare, changes), changes["replicas"])


def test_tokens_that_the_host_holds_back_are_in_order_over_all_replicas(tmp_path: Path) -> None:
    host = {"host_model": "given", "host_request_ms": 25, "host_prompt_token_us": 300, "host_chunk_ms": 1}
    changes = {"replicas": 3, "lanes": 7, "duration_s": 0.6, "grace_s": 0.05, **host}
    run = check(played(tmp_path, 20, 6, 9, changes), 3)
    together: dict[str, set[int]] = {}
    for row in run.chunks:
        together.setdefault(row["request_id"], set()).add(row["time_ns"])
    tokens = {row["request_id"]: row["output_tokens"] for row in run.requests}
    assert any(len(times) < tokens[name] for name, times in together.items()), "none was held back"


def test_the_record_says_how_many_there_are_and_who_sends_them_what(tmp_path: Path) -> None:
    changes = {"replicas": 2, "router": "kv_aware", "router_overlap_weight": 0.5, "lanes": 3}
    run = played(tmp_path, 5, 4, 60, changes)
    said = {name: run.identity.value("topology", name) for name in ("replicas", "router", "serving")}
    assert said == {"replicas": 2, "router": "kv_aware", "serving": "aggregated"}
    again = knobs_from_run(run)
    assert {name: again[name] for name in changes} == changes
    alone = played(tmp_path, 5, 4, 60, {"lanes": 3})
    assert alone.identity.value("topology", "replicas") == 1
    assert alone.identity.value("topology", "router") is None
    assert set(alone.table("passes").column("worker_id").to_pylist()) == {"0"}
    assert "replicas" not in alone.lineage["config"]


def test_a_recorded_router_that_is_not_simulated_is_left_out_and_the_replicas_are_taken(tmp_path: Path) -> None:
    identity = Identity()
    for name, value in {"replicas": 4, "router": "precise-prefix-cache-scorer"}.items():
        identity.set("topology", name, value, "by hand")
    row = {
        "request_id": "a",
        "phase": "profile",
        "status": "ok",
        "dispatched_ns": 0,
        "input_tokens": 1,
        "output_tokens": 1,
    }
    with BundleWriter(tmp_path, "measured", "four", "four", identity) as writer:
        writer.write_table("requests", pa.Table.from_pylist([row]))
        run_id = writer.seal(phases=[Phase("profile", 0, 10**9)])
    known = knobs_from_run(open_bundle(tmp_path / run_id))
    assert known["replicas"] == 4
    assert "router" not in known


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"router": "session"}, "expected replicas above 1"),
        ({"replicas": 2, "router_overlap_weight": 2}, "router=kv_aware"),
        ({"replicas": 2, "timing": "measured", "measured_match": "order"}, "measured_match=geometry"),
        ({"replicas": 0}, "from 1 to 1024"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(GapscopeError, match=reason):
        resolve(changes)


def test_what_has_no_effect_is_forgotten_when_the_rest_is_varied() -> None:
    two = resolve({"replicas": 2, "router": "kv_aware", "router_overlap_weight": 3})
    assert resolve({"replicas": 1}, two) == resolve({})
    assert resolve({"router": "session"}, two)["router_overlap_weight"] == 1


def test_the_same_run_id_in_other_processes_and_under_other_hash_seeds(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.engine.test_replay_replicas import played\n"
        "for router in ('session', 'sibling', 'kv_aware', 'least_loaded'):\n"
        "    changes = {'replicas': 3, 'router': router, 'lanes': 6, 'duration_s': 0.5}\n"
        "    print(played(Path(sys.argv[1]), 9, 5, 9, changes).run_id)"
    )
    said = []
    for seed in ("0", "1"):
        store = tmp_path / seed
        store.mkdir()
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        run = subprocess.run(
            [sys.executable, "-c", code, str(store)], env=env, capture_output=True, text=True, check=True, cwd=ROOT
        )
        said.append(run.stdout)
    assert said[0] == said[1]
    assert len(set(said[0].split())) == 4


def test_only_ranks_of_one_replica_share_a_step(tmp_path: Path) -> None:
    changes = {"replicas": 2, "attention_dp": 2, "lanes": 8, "duration_s": 0.6}
    run = played(tmp_path, 9, 6, 60, changes).table("passes").to_pylist()
    assert {(row["worker_id"], row["dp_rank"]) for row in run} == {(f"vllm-{w}", r) for w in (0, 1) for r in (0, 1)}
    steps: dict[int, list[dict[str, Any]]] = {}
    for row in run:
        steps.setdefault(row["step"], []).append(row)
    assert sorted(steps) == list(range(len(steps)))
    assert any(len(rows) == 2 for rows in steps.values())
    for rows in steps.values():
        assert len({(row["worker_id"], row["start_ns"], row["end_ns"]) for row in rows}) == 1
        assert len({row["dp_rank"] for row in rows}) == len(rows)
    starts = [rows[0]["start_ns"] for _, rows in sorted(steps.items())]
    assert starts == sorted(starts)


@pytest.mark.parametrize(
    ("router", "workers", "reused"),
    [
        ("round_robin", [0, 1, 0, 1], [0, 0, 20, 40]),
        ("session", [0, 0, 0, 0], [0, 20, 40, 60]),
        ("sibling", [0, 0, 0, 0], [0, 20, 40, 60]),
        ("kv_aware", [0, 0, 0, 0], [0, 20, 40, 60]),
    ],
)
def test_what_a_turn_reuses_depends_on_where_the_turn_before_went(
    router: str, workers: list[int], reused: list[int]
) -> None:
    # Every turn brings 16 tokens and gets 5. Turn k has 21 k tokens of context; the last sampled one has no KV yet, so
    # what turn k - 1 left at its replica are the 21 k - 1 tokens before it: 20, 41, 62, in blocks of 4: 20, 40, 60.
    # Round robin takes every other turn to the other replica, which knows the context as of two turns ago. The KV-aware
    # router remembers the prompt before, of 16 + 21 (k - 1) tokens in 4 + 5 (k - 1) blocks or one more: it misses few.
    turns = [turn(f"t{k}", 16, 5) for k in range(4)]
    result = run(trace_of([talk("c", *turns)]), replicas=2, router=router)
    requests = sorted(Tables(result).requests().to_pylist(), key=lambda row: row["turn_index"])
    assert [row["worker_id"] for row in requests] == [f"vllm-{number}" for number in workers]
    assert [row["cached_tokens"] for row in requests] == reused


def test_children_of_one_request_stay_together_by_siblings_and_with_the_root_by_session() -> None:
    root = [turn("a", 16, 5, spawn=("x", "y")), turn("b", 16, 5)]
    children = [talk(name, turn(name, 16, 50), parent="r", after=0, depth=1) for name in ("x", "y")]
    tree = trace_of([talk("r", *root), *children], [talk("s", turn("s", 16, 200))])
    homes: dict[str, dict[str, str]] = {}
    for router in ("session", "sibling"):
        rows = Tables(run(tree, replicas=2, router=router, lanes=2)).requests().to_pylist()
        homes[router] = {row["request_id"]: row["worker_id"] for row in rows}
    # Both plays start at once: the first at 0, the second at 1, where it stays busy for long.
    assert homes["session"] == {"r/0": "vllm-0", "x/0": "vllm-0", "y/0": "vllm-0", "r/1": "vllm-0", "s/0": "vllm-1"}
    # When the children come, nothing is in flight at 0, so they go there as well.
    assert homes["sibling"] == homes["session"]
