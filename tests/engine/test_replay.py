"""Replays from end to end: rows worked out by hand, sums that must agree, digests that must be equal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.bundle import ledger_of, ledger_problems, open_bundle
from engine.errors import GapscopeError
from engine.replay import Canceled, replay, resolve_host_terms, simulate
from engine.replay import loop as replay_module
from engine.replay.result import ReplayResult
from engine.replay.tables import Tables
from engine.serving.members import members
from engine.timing import build_timing
from engine.traces.tree import Trace
from tests.engine.client_harness import MS, talk, trace_of, turn
from tests.engine.test_client_properties import random_trace

ROOT = Path(__file__).resolve().parents[2]

TEN_MS = {
    "timing": "fixed",
    "fixed_pass_us": 10_000,
    "fixed_prefill_token_us": 0,
    "fixed_decode_request_us": 0,
    "fixed_kv_token_ns": 0,
    "lanes": 1,
    "block_size": 4,
    "kv_blocks": 101,
}
"""Every pass takes 10 ms."""


def run(trace: Trace, **changes: Any) -> ReplayResult:
    from engine import knobs

    values = knobs.resolve({**TEN_MS, **changes})
    return simulate(trace, values, build_timing(values))


def whole(table: pa.Table | Any) -> pa.Table:
    table = table if isinstance(table, pa.Table) else pa.Table.from_batches(list(table))
    return table.select(sorted(table.column_names))


def rows(table: pa.Table | Any) -> list[dict[str, Any]]:
    return whole(table).to_pylist()


def pick(row: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(row[name] for name in names)


def test_one_request_from_schedule_to_last_token() -> None:
    trace = trace_of([talk("a", turn("a0", tokens=22, output=3, think_ms=7))])
    result = run(trace, dispatch_lag_ms=1, request_latency_ms=2, response_latency_ms=5)
    (request,) = rows(Tables(result).requests())
    # Sent at 8 and at the engine at 10; passes end at 20, 30 and 40 and are seen 5 later.
    times = pick(request, "scheduled_ns", "dispatched_ns", "received_ns", "first_admit_ns")
    assert times == (7 * MS, 8 * MS, 10 * MS, 10 * MS)
    times = pick(request, "first_visible_ns", "last_visible_ns", "end_ns", "released_ns")
    assert times == (25 * MS, 45 * MS, 45 * MS, 40 * MS)
    assert pick(request, "request_id", "status", "phase", "play_id", "lane") == ("a/0", "ok", "profile", "a", 0)
    assert pick(request, "input_tokens", "output_tokens", "cached_tokens", "preemptions") == (22, 3, 0, 0)
    assert [len(request[f"{part}_block_hashes"]) for part in ("prompt", "output")] == [5, 1]  # 24 tokens with KV
    passes = rows(Tables(result).passes())
    shape = ("num_prefill_requests", "sum_prefill_tokens", "num_decode_requests", "sum_decode_kv_tokens")
    assert [pick(p, *shape) for p in passes] == [(1, 22, 0, 0), (0, 0, 1, 22), (0, 0, 1, 23)]
    assert [p["period_ns"] for p in passes] == [None, 10 * MS, 10 * MS]
    assert [m["computed_before"] for p in passes for m in p["members"]] == [0, 22, 23]
    chunks = rows(Tables(result).chunks())
    assert [pick(c, "ordinal", "time_ns", "tokens", "visible") for c in chunks] == [
        (n, (25 + 10 * n) * MS, 1, True) for n in range(3)
    ]


def test_a_follow_up_hits_every_full_block_before_the_last_sampled_token() -> None:
    trace = trace_of([talk("a", turn("a0", 22, 3), turn("a1", 7, 1))])
    first, second = rows(Tables(run(trace)).requests())
    assert second["input_tokens"] == 22 + 3 + 7
    assert second["cached_tokens"] == (25 - 1) // 4 * 4
    both = first["prompt_block_hashes"] + first["output_block_hashes"]
    assert second["prompt_block_hashes"][:6] == both


def test_what_the_client_gave_up_on_is_cut_off_where_it_stopped_listening() -> None:
    trace = trace_of([talk("a", turn("a0", 22, 30), turn("a1"))])
    result = run(trace, duration_s=0.035, grace_s=0.012, response_latency_ms=5, request_latency_ms=1)
    (request,) = rows(Tables(result).requests())
    # Passes start at 1, 11, ...; tokens are seen at 16, 26, 36, 46; canceled at 47, which the engine takes at 51.
    assert pick(request, "status", "end_ns", "released_ns") == ("canceled", 47 * MS, 51 * MS)
    assert pick(request, "output_tokens", "first_visible_ns", "last_visible_ns") == (4, 16 * MS, 46 * MS)
    assert len(rows(Tables(result).chunks())) == 4
    assert result.record.requests["output_tokens"].tolist() == [5]
    assert [(p.name, p.start_ns, p.end_ns) for p in result.phases] == [
        ("profile", 0, 35 * MS),
        ("grace", 35 * MS, 47 * MS),
        ("drain", 47 * MS, 51 * MS),
    ]
    assert [p["phase"] for p in rows(Tables(result).passes())] == ["profile"] * 4 + ["grace"]


def test_each_canceled_request_is_cut_off_at_its_own_time() -> None:
    trace = trace_of(*([talk(name, turn(f"{name}0", 22, 9))] for name in "abc"))
    result = run(trace, lanes=3, response_latency_ms=5)  # tokens are seen at 15, 25, ... 95
    sent = result.client.sent
    sent.ok[:], sent.end_ns[:] = [False, False, True], [45 * MS, 45 * MS - 1, 95 * MS]
    requests = {r["request_id"]: r for r in rows(Tables(result).requests())}
    assert {n: r["output_tokens"] for n, r in requests.items()} == {"a/0": 4, "b/0": 3, "c/0": 9}
    assert {n: r["last_visible_ns"] for n, r in requests.items()} == {"a/0": 45 * MS, "b/0": 35 * MS, "c/0": 95 * MS}


def test_canceled_before_any_token_leaves_latencies_unknown() -> None:
    result = run(trace_of([talk("a", turn("a0", 22, 30))]), duration_s=0.004, grace_s=0.002)
    (request,) = rows(Tables(result).requests())
    assert pick(request, "first_visible_ns", "last_visible_ns", "output_tokens") == (None, None, 0)


def test_arrivals_wait_for_the_running_pass() -> None:
    trace = trace_of([talk("a", turn("a0", 8, 4))], [talk("b", turn("b0", 8, 1, think_ms=13))])
    by_id = {r["request_id"]: r for r in rows(Tables(run(trace, lanes=2)).requests())}
    assert pick(by_id["b/0"], "dispatched_ns", "received_ns", "first_visible_ns") == (13 * MS, 20 * MS, 30 * MS)


def test_a_preempted_request_gives_its_blocks_back_and_hits_them_again() -> None:
    # 6 usable blocks of 4 tokens: both prompts fill two each, and outputs soon need a seventh.
    trace = trace_of([talk("a", turn("a0", 8, 9))], [talk("b", turn("b0", 8, 9))])
    result = run(trace, lanes=2, kv_blocks=7)
    requests = {r["request_id"]: r for r in rows(Tables(result).requests())}
    assert [requests[n]["preemptions"] for n in ("a/0", "b/0")] == [0, 1]
    assert [requests[n]["output_tokens"] for n in ("a/0", "b/0")] == [9, 9]
    events = rows(Tables(result).kv_events())
    (gone,) = [e for e in events if e["kind"] == "preempt"]
    # a needs its fourth block for its 13th token, when b has 12 tokens in three blocks.
    assert pick(gone, "request_id", "num_blocks", "reason", "time_ns") == ("b/0", 3, "capacity", 50 * MS)
    stored = {h for e in events if e["kind"] == "store" and e["request_id"] == "b/0" for h in e["block_hashes"]}
    assert len(gone["block_hashes"]) == 3
    assert set(gone["block_hashes"]) <= stored
    (again,) = [e for e in events if e["kind"] == "readmit"]
    assert again["block_hashes"] == gone["block_hashes"][: again["num_blocks"]]
    assert again["num_blocks"] >= 1
    assert [e["event_index"] for e in events] == list(range(len(events)))
    evicted = [e for e in events if e["kind"] == "evict"]
    assert evicted
    assert all(e["age_ns"] >= 0 and e["reason"] == "capacity" for e in evicted)


def test_stores_know_the_block_before_them() -> None:
    trace = trace_of([talk("a", turn("a0", 10, 9), turn("a1", 4, 1))])
    result = run(trace)
    (first, second) = rows(Tables(result).requests())
    chain = second["prompt_block_hashes"]
    for event in (e for e in rows(Tables(result).kv_events()) if e["kind"] == "store"):
        at = chain.index(event["block_hashes"][0])
        assert event["parent_hash"] == (chain[at - 1] if at else None)
    assert first["prompt_block_hashes"] == chain[:2]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 5_000),
    spare=st.sampled_from([1, 8, 200]),
    changes=st.fixed_dictionaries(
        {
            "lanes": st.integers(1, 5),
            "duration_s": st.sampled_from([0, 0.3, 1.5]),
            "warmup_s": st.sampled_from([0, 0.2]),
            "grace_s": st.sampled_from([0, 0.1, 5]),
            "max_num_seqs": st.sampled_from([2, 8]),
            "max_num_batched_tokens": st.sampled_from([16, 64]),
            "response_latency_ms": st.sampled_from([0, 7]),
        }
    ),
)
def test_tables_agree_with_each_other_and_both_cores_with_one_another(
    seed: int, spare: int, changes: dict[str, Any]
) -> None:
    trace = random_trace(seed, 2)
    probe = run(trace, kv_blocks=100_000)
    longest = max(
        c.walk.prompt_tokens[t] + c.conversation.turns[t].output_tokens
        for c, t in zip(probe.client.sent.conversation, probe.client.sent.turn, strict=True)
    )
    pool = -(-longest // 4) + spare
    results = [run(trace, **changes, kv_blocks=pool, core=core) for core in ("plain", "skipping")]
    tables = [Tables(r) for r in results]
    result, made = results[0], tables[0]
    if not result.num_requests:
        return
    requests, chunks = rows(made.requests()), rows(made.chunks())
    passes, events = rows(made.passes()), rows(made.kv_events())
    for name in ("requests", "passes", "kv_events", "admissions", "chunks", "coverage"):
        assert whole(getattr(tables[0], name)()).equals(whole(getattr(tables[1], name)())), name

    never = result.client.never_issued
    assert ledger_problems(ledger_of(made.requests(), never), None) == []
    by_request: dict[str, list[int]] = {}
    for chunk in chunks:
        by_request.setdefault(chunk["request_id"], []).append(chunk["time_ns"])
    for request in requests:
        seen = by_request.get(request["request_id"], [])
        assert len(seen) == request["output_tokens"]
        if seen:
            assert (min(seen), max(seen)) == pick(request, "first_visible_ns", "last_visible_ns")
        if request["status"] == "ok":
            assert request["output_tokens"] == request["requested_output_tokens"]
            assert request["end_ns"] == request["last_visible_ns"]
    assert [c["time_ns"] for c in chunks] == sorted(c["time_ns"] for c in chunks)

    for row in passes:
        batch = row["members"]
        assert len(batch) == row["num_prefill_requests"] + row["num_decode_requests"]
        assert sum(m["scheduled_tokens"] for m in batch) == row["sum_prefill_tokens"] + row["num_decode_requests"]
        assert row["prefill_ns"] + row["decode_ns"] + row["overhead_ns"] == row["duration_ns"]
        assert row["kv_blocks_used"] <= row["kv_blocks_total"] == pool - 1
    covered = rows(made.coverage())
    assert sum(c["count"] for c in covered) == len(passes)
    assert sum(c["modelled_ns"] for c in covered) == sum(p["duration_ns"] for p in passes)

    # The cache holds what was stored and not evicted; hits and preemptions are of blocks that were stored.
    held: dict[int, int] = {}
    known = {r["request_id"]: r["prompt_block_hashes"] + r["output_block_hashes"] for r in requests}
    for event in sorted(events, key=lambda e: (e["pass_index"], e["event_index"])):
        for name in event["block_hashes"]:
            if event["kind"] == "store":
                held[name] = held.get(name, 0) + 1
                assert name in known[event["request_id"]]
            elif event["kind"] == "evict":
                held[name] -= 1
                assert held[name] >= 0
            else:
                assert name in held
    assert sum(held.values()) >= passes[-1]["kv_blocks_cached"]


def test_passes_and_tokens_come_in_batches_that_join_up(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = random_trace(3, 5)
    result = run(trace, lanes=4)
    expected = [rows(Tables(result).passes()), rows(Tables(result).chunks())]
    monkeypatch.setattr("engine.replay.chunks.BATCH_ROWS", 7)
    assert len(list(Tables(result).chunks())) > 10
    assert [rows(Tables(result).passes()), rows(Tables(result).chunks())] == expected
    assert len(members(result.record)) == sum(len(p["members"]) for p in expected[0])


def test_the_bundle_is_sound_and_says_what_it_rests_on(tmp_path: Path) -> None:
    trace = random_trace(5, 6)
    changes = {**TEN_MS, "lanes": 2, "warmup_s": 0.2, "duration_s": 1, "grace_s": 0.1}
    run_id = replay(trace, changes, store=tmp_path, title="A title", held=["m-0123456789ab"])
    bundle = open_bundle(tmp_path / run_id)
    assert bundle.verify() == []
    assert (bundle.kind, bundle.title, bundle.run_id.rpartition("-")[0]) == ("replay", "A title", "a-title")
    assert {c.check: c.verdict for c in bundle.qualification}["ledger_balances"] == "pass"
    assert bundle.lineage["store_held_at_seal"] == ["m-0123456789ab"]
    assert bundle.lineage["knobs_changed"]["lanes"] == {"from": 8, "to": 2}
    assert "core" not in bundle.lineage["config"]
    assert bundle.identity.value("trace", "digest") == trace.digest
    assert bundle.identity.value("capacity", "usable_kv_blocks") == 100
    assert bundle.identity.value("model", "name") is None  # nobody said
    assert bundle.manifest["host"]["wall_s"] > 0
    assert replay_module.knobs_from_run(bundle)["lanes"] == 2


def test_the_same_config_gives_the_same_run_whatever_the_title_core_or_hash_seed(tmp_path: Path) -> None:
    trace = random_trace(11, 5)
    changes = {**TEN_MS, "lanes": 3, "kv_blocks": 120}
    ids = [
        replay(trace, {**changes, "core": core}, store=tmp_path / core, slug="r", title=core)
        for core in ("plain", "skipping")
    ]
    assert len(set(ids)) == 1
    code = (
        "import sys; from pathlib import Path; from engine.replay import replay;"
        "from tests.engine.test_client_properties import random_trace;"
        f"print(replay(random_trace(11, 5), {changes!r}, store=Path(sys.argv[1]), slug='r'))"
    )
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        out = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / seed)],
            cwd=ROOT,
            env=env,
            capture_output=True,
            text=True,
            check=True,
        )
        ids.append(out.stdout.strip())
    assert len(set(ids)) == 1
    assert replay(trace, {**changes, "lanes": 2}, store=tmp_path, slug="r") != ids[0]


def test_looking_on_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = random_trace(11, 5)
    changes = {**TEN_MS, "lanes": 3, "kv_blocks": 120}
    alone = replay(trace, changes, store=tmp_path, slug="r")
    monkeypatch.setattr(replay_module, "LOOK_EVERY_NS", 15 * MS)
    for core in ("plain", "skipping"):
        watched = replay(
            trace, {**changes, "core": core}, store=tmp_path / core, slug="r", progress=lambda *report: None
        )
        assert watched == alone


def test_a_trace_that_runs_dry_before_the_deadline_is_said(tmp_path: Path) -> None:
    trace = trace_of([talk("a", turn("a0", 22, 3))])
    for changes, verdict in (({}, "fail"), ({"wrap": True}, "pass")):
        run_id = replay(trace, {**TEN_MS, "duration_s": 0.2, **changes}, store=tmp_path)
        checks = {c.check: c for c in open_bundle(tmp_path / run_id).qualification}
        assert checks["trace_outlasts_profile"].verdict == verdict
    assert checks["ledger_balances"].verdict == "pass"


def test_an_open_loop_that_runs_dry_is_said(tmp_path: Path) -> None:
    trace = trace_of(*([talk(name, turn(f"{name}0", 22, 3))] for name in "ab"))
    rate = {"arrivals": "constant", "arrival_rate": 10.0}  # a play at 0 and one at 100 ms
    for changes, verdict in (
        ({"duration_s": 0.5}, "fail"),
        ({"duration_s": 0.05}, "pass"),
        ({"duration_s": 0.5, "wrap": True}, "pass"),
    ):
        run_id = replay(trace, {**TEN_MS, **rate, **changes}, store=tmp_path)
        checks = {c.check: c for c in open_bundle(tmp_path / run_id).qualification}
        assert checks["trace_outlasts_profile"].verdict == verdict
        if verdict == "fail":
            assert "started 0.1 s after profile start, which lasts 0.5 s" in checks["trace_outlasts_profile"].detail


def test_a_title_names_what_was_changed(tmp_path: Path) -> None:
    trace = trace_of([talk("a", turn("a0", 22, 3))])
    like = open_bundle(tmp_path / replay(trace, {**TEN_MS, "lanes": 2}, store=tmp_path, title="two lanes"))
    again = replay(trace, {**TEN_MS, "lanes": 3, "kv_blocks": 99}, store=tmp_path, like=like)
    assert open_bundle(tmp_path / again).title == "Replay of two lanes, with lanes=3, kv_blocks=99"
    same = replay(trace, {**TEN_MS, "lanes": 2}, store=tmp_path, like=like)
    assert open_bundle(tmp_path / same).title == "Replay of two lanes"


def test_a_title_names_what_was_changed_against_the_replay_that_was_varied(tmp_path: Path) -> None:
    trace = trace_of([talk("a", turn("a0", 22, 3))])
    measured = open_bundle(tmp_path / replay(trace, {**TEN_MS, "lanes": 2}, store=tmp_path, title="two lanes"))
    varied = {**TEN_MS, "lanes": 2, "request_latency_ms": 4.0}  # as fitted, and so no change of who varies it
    base = open_bundle(tmp_path / replay(trace, varied, store=tmp_path, like=measured, slug="two-fitted"))
    told = {"like": measured, "base": base, "parent_run": base.run_id}
    again = replay(trace, {**varied, "lanes": 3}, store=tmp_path, **told)
    assert open_bundle(tmp_path / again).title == "two-fitted, lanes=3"


def test_canceling_and_interrupting_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace, store = random_trace(2, 6), tmp_path / "store"
    monkeypatch.setattr(replay_module, "REPORT_EVERY_S", 0.0)
    seen: list[tuple[int, float, int, int]] = []
    replay(trace, TEN_MS, store=tmp_path / "other", progress=lambda *report: seen.append(report))
    assert [s[2] for s in seen] == sorted(s[2] for s in seen)
    assert seen[-1][3] == sum(len(c.turns) for p in trace.plays for c in p.conversations)
    for answers in ([True], [False, True], [False] * (len(seen) + 2) + [True]):  # before, during, while writing
        given_answers = iter(answers)
        with pytest.raises(Canceled):
            replay(trace, TEN_MS, store=store, cancel=lambda: next(given_answers, True))  # noqa: B023
        assert not store.exists() or list(store.iterdir()) == []

    def interrupt(*report: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replay(trace, TEN_MS, store=store, progress=interrupt)
    assert not store.exists() or list(store.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kv_blocks": 5}, "can never fit the KV pool"),
        ({"kv_block": 5}, "Unknown knob 'kv_block'. Did you mean kv_blocks?"),
        ({"lanes": 0}, "lanes=0 is out of range: expected a whole number from 1 to"),
        ({"lanes": "many"}, "lanes='many': expected a whole number"),
        ({"wrap": True}, "wrap=true needs an end"),
        ({"max_num_seqs": 64, "max_num_batched_tokens": 32}, "is smaller than"),
        ({"timing": "fpm"}, "needs a timing model"),
        ({"duration_s": 0.001, "grace_s": 0}, "sent no request before its admission deadline"),
    ],
)
def test_bad_input_is_told_in_one_sentence_and_nothing_is_written(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    trace = trace_of([talk("a", turn("a0", 22, 3, think_ms=5))])
    with pytest.raises(GapscopeError) as caught:
        replay(trace, {**TEN_MS, **changes}, store=tmp_path / "store")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "store").exists() or list((tmp_path / "store").iterdir()) == []


def test_latencies_are_as_fitted_unless_they_are_set() -> None:
    model = {"host": {"request_latency_ms": {"value": 4.5, "n": 9}}}
    from engine import knobs

    values = knobs.resolve({"response_latency_ms": 2})
    resolved = resolve_host_terms(values, model)
    names = ("dispatch_lag_ms", "request_latency_ms", "response_latency_ms")
    assert tuple(resolved[n] for n in names) == (0.0, 4.5, 2.0)
    assert resolve_host_terms({**values, "timing": "fixed"}, model)["request_latency_ms"] == 0.0


def test_client_latency_never_delays_the_release_of_blocks() -> None:
    trace = random_trace(4, 4)
    near, far = (run(trace, lanes=1, response_latency_ms=ms) for ms in (0, 50))
    for result in (near, far):
        released = {r["request_id"]: r["released_ns"] for r in rows(Tables(result).requests())}
        ends = np.asarray(result.record.passes["end_ns"])[result.record.requests["last_token_pass"]]
        assert sorted(released.values()) == sorted(ends.tolist())
