"""The host model: it delays what clients see and do, and nothing in the engine. Times worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import knobs
from engine.bundle import ledger_of, ledger_problems, open_bundle
from engine.errors import GapscopeError
from engine.replay import knobs_from_run, replay, resolve_host_terms, simulate
from engine.replay.result import ReplayResult
from engine.replay.tables import Tables
from engine.timing import build_timing
from engine.workload.hash_ids import block_keys_of
from engine.workload.host import HostModel
from engine.workload.recorded import RecordedClient, RecordedLoad, RecordedTurn
from tests.engine.client_harness import MS, talk, trace_of, turn
from tests.engine.test_client_properties import random_trace
from tests.engine.test_replay import TEN_MS, pick, rows, run, whole

GIVEN = {"host_model": "given"}
ENGINE_TABLES = ("passes", "kv_events", "admissions", "coverage")


def requests_of(result: ReplayResult) -> dict[str, dict[str, Any]]:
    return {r["request_id"]: r for r in rows(Tables(result).requests())}


def seen(result: ReplayResult) -> dict[str, list[float]]:
    """When the tokens of each request were seen, in ms and in order of the tokens."""
    out: dict[str, list[tuple[int, float]]] = {}
    for chunk in rows(Tables(result).chunks()):
        out.setdefault(chunk["request_id"], []).append((chunk["ordinal"], chunk["time_ns"] / MS))
    for tokens in out.values():
        assert [n for n, _ in sorted(tokens)] == list(range(len(tokens)))
    return {name: [at for _, at in sorted(tokens)] for name, tokens in out.items()}


def test_the_first_token_waits_for_the_request_and_its_prompt_and_later_ones_queue_up_behind_it() -> None:
    trace = trace_of([talk("a", turn("a0", 22, 6), turn("a1", 8, 2, think_ms=4))])
    result = run(
        trace,
        **GIVEN,
        response_latency_ms=1,
        host_chunk_ms=2,
        host_request_ms=5,
        host_prompt_token_us=1000,
    )
    # Passes end at 10, 20, ... 60. The first token is seen at 10 + 3 + 5 + 22, when two more wait behind it.
    assert seen(result)["a/0"] == [40, 40, 40, 43, 53, 63]
    first, second = requests_of(result)["a/0"], requests_of(result)["a/1"]
    assert pick(first, "first_visible_ns", "last_visible_ns", "end_ns") == (40 * MS, 63 * MS, 63 * MS)
    assert first["released_ns"] == 60 * MS
    # The next turn thinks from 63 on. Of its 36 prompt tokens 24 are hit, so its first token takes 5 + 12 more.
    assert pick(second, "dispatched_ns", "input_tokens", "cached_tokens") == (67 * MS, 36, 24)
    assert seen(result)["a/1"] == [77 + 3 + 17, 77 + 3 + 17]
    assert second["end_ns"] == 97 * MS


def test_a_prompt_costs_no_more_than_the_cap() -> None:
    trace = trace_of([talk("a", turn("a0", 30, 1))], [talk("b", turn("b0", 5, 1))])
    changes = {**GIVEN, "lanes": 2, "host_prompt_token_us": 1000, "host_prompt_cap_ms": 20}
    assert seen(run(trace, **changes)) == {"a/0": [30], "b/0": [15]}
    model = HostModel(chunk_ns=0, request_ns=7, prompt_token_ps=1500, prompt_cap_ns=30)
    assert [model.first_ns(n) for n in (0, 1, 2, 20, 21)] == [7, 8, 10, 37, 37]
    assert model.first_ns(np.array([0, 1, 2, 20, 21])).tolist() == [7, 8, 10, 37, 37]


def test_a_response_that_the_engine_completed_is_canceled_when_its_client_had_not_seen_the_end() -> None:
    trace = trace_of([talk("a", turn("a0", 22, 4), turn("a1"))])
    changes = {**GIVEN, "duration_s": 0.03, "grace_s": 0.017, "host_chunk_ms": 8}
    for core in ("plain", "skipping"):
        result = run(trace, **changes, core=core)
        (request,) = requests_of(result).values()
        # The engine was done at 40; the client saw tokens at 18, 28 and 38, and stopped at 47, a ms before the last.
        assert seen(result)["a/0"] == [18, 28, 38]
        assert pick(request, "status", "output_tokens", "end_ns") == ("canceled", 3, 47 * MS)
        assert pick(request, "last_visible_ns", "released_ns") == (38 * MS, 40 * MS)
        assert result.record.requests["output_tokens"].tolist() == [4]
        assert result.aborted_ns == {}  # the engine had nothing left to drop
        ledger = ledger_of(Tables(result).requests(), result.client.never_issued)
        assert pick(ledger["total"], "attempted", "ok", "canceled", "in_flight", "never_issued") == (1, 0, 1, 0, 1)
        assert ledger_problems(ledger, None) == []


def test_tokens_held_up_behind_a_first_one_that_comes_too_late_are_not_seen() -> None:
    trace = trace_of([talk("a", turn("a0", 22, 9))])
    result = run(trace, **GIVEN, duration_s=0.03, grace_s=0.03, host_request_ms=51)
    (request,) = requests_of(result).values()
    assert seen(result) == {}  # the first at 61, canceled at 60, when five more had been sampled
    assert pick(request, "status", "output_tokens", "first_visible_ns", "last_visible_ns") == (
        "canceled",
        0,
        None,
        None,
    )
    assert request["end_ns"] == 60 * MS


def test_what_is_seen_at_the_very_time_of_the_cancel_was_in_time() -> None:
    trace = trace_of([talk("a", turn("a0", 22, 3))])
    at_the_cancel = {**GIVEN, "duration_s": 0.02, "grace_s": 0.02}
    for late_ms, status, tokens in ((10, "ok", 3), (10.001, "canceled", 2)):
        (request,) = requests_of(run(trace, **at_the_cancel, host_chunk_ms=late_ms)).values()
        assert pick(request, "status", "output_tokens", "end_ns") == (status, tokens, 40 * MS)
    for late_ms, tokens in ((30, 3), (30.001, 0)):  # the first holds the others up: seen at 10 + 30
        (request,) = requests_of(run(trace, **at_the_cancel, host_request_ms=late_ms)).values()
        assert pick(request, "status", "output_tokens") == ("ok" if tokens else "canceled", tokens)


def test_the_next_dispatch_at_the_very_time_of_the_deadline_is_not_sent() -> None:
    trace = trace_of([talk("a", turn("a0", 22, 1), turn("a1", 4, 1))])
    for late_ms, sent in ((14.999, 2), (15, 1)):
        result = run(trace, **GIVEN, duration_s=0.025, grace_s=1, host_request_ms=late_ms)
        assert result.num_requests == sent


def test_lanes_take_plays_in_the_order_in_which_clients_saw_the_ends() -> None:
    # The engine finishes a before b, but a's long prompt keeps its client waiting: b's lane takes c, a's takes d.
    plays = [
        [talk("a", turn("a0", 60, 1))],
        [talk("b", turn("b0", 4, 2))],
        [talk("c", turn("c0"))],
        [talk("d", turn("d0"))],
    ]
    changes = {"lanes": 2, "lane_assignment": "cursor"}
    lanes = {n: r["lane"] for n, r in requests_of(run(trace_of(*plays), **changes)).items()}
    assert lanes == {"a/0": 0, "b/0": 1, "c/0": 0, "d/0": 1}
    delayed = run(trace_of(*plays), **changes, **GIVEN, host_prompt_token_us=500)
    lanes = {n: r["lane"] for n, r in requests_of(delayed).items()}
    assert lanes == {"a/0": 0, "b/0": 1, "c/0": 1, "d/0": 0}
    assert requests_of(delayed)["d/0"]["dispatched_ns"] == (10 + 30) * MS


def test_a_parent_joins_on_the_child_that_was_seen_to_end_last() -> None:
    play = [
        talk("r", turn("r0", 4, 1, spawn=("k1", "k2")), turn("r1", 4, 1)),
        talk("k1", turn("k1.0", 80, 1), parent="r", after=0, depth=1),
        talk("k2", turn("k2.0", 4, 3), parent="r", after=0, depth=1),
    ]
    requests = requests_of(run(trace_of(play), **GIVEN, host_prompt_token_us=1000))
    # Seen: r/0 at 14, k1 at 30 + 80 (engine 30), k2 at 50 (engine 50), which the engine finished last.
    assert requests["r/0"]["end_ns"] == 14 * MS
    assert pick(requests["k1/0"], "released_ns", "end_ns") == (24 * MS, 104 * MS)
    assert requests["k2/0"]["end_ns"] == 44 * MS
    assert requests["r/1"]["dispatched_ns"] == 104 * MS


def test_an_open_loop_leaves_the_engine_as_it_was_and_a_closed_one_sends_later() -> None:
    trace = random_trace(23, 12)
    singles = trace_of(*([talk(c.conversation_id, c.turns[0])] for p in trace.plays for c in p.conversations))
    for play in singles.plays:
        play.conversations[0].turns[0] = turn(play.source_trace_id, 30, 9)
    for number, play in enumerate(singles.plays):
        play.arrival_ns = number * 11 * MS
    late = {**GIVEN, "host_request_ms": 35, "host_prompt_token_us": 700, "host_prompt_cap_ms": 15, "host_chunk_ms": 3}
    ends = {"duration_s": 0.2, "grace_s": 0.06}
    for core, more in (("plain", {}), ("skipping", {}), ("plain", ends), ("skipping", ends)):
        near, far = (run(singles, arrivals="trace", kv_blocks=60, core=core, **more, **c) for c in ({}, late))
        for name in ENGINE_TABLES:
            assert whole(getattr(Tables(near), name)()).equals(whole(getattr(Tables(far), name)())), name
        both = list(zip(requests_of(near).values(), requests_of(far).values(), strict=True))
        for left, right in both:
            engine = ("dispatched_ns", "received_ns", "first_admit_ns", "released_ns", "cached_tokens", "preemptions")
            assert pick(left, *engine) == pick(right, *engine)
            if right["first_visible_ns"] is not None:
                assert right["first_visible_ns"] - left["first_visible_ns"] >= 38 * MS
        assert any(left["preemptions"] for left, _ in both) or more
        canceled = [sum(r["status"] == "canceled" for r in side) for side in zip(*both, strict=True)]
        assert canceled[0] < canceled[1] if more else canceled == [0, 0]  # some had not seen the end in time
    near, far = (requests_of(run(trace, lanes=3, kv_blocks=500, **changes)) for changes in ({}, late))
    assert set(near) == set(far)
    assert sum(far[name]["dispatched_ns"] > near[name]["dispatched_ns"] for name in near) > len(near) // 2


def test_a_recorded_load_is_seen_late_and_each_cancel_cuts_its_own_request() -> None:
    trace = trace_of(*([talk(name, turn(f"{name}0", 8, 9))] for name in "abc"))
    values = knobs.resolve({**TEN_MS, **GIVEN, "host_chunk_ms": 2, "host_request_ms": 11, "host_prompt_token_us": 1000})
    recorded = [
        RecordedTurn(f"{name}/0", name, name, 0, name, 0, 0, 0, canceled, 8, 9, None)
        for name, canceled in (("a", None), ("b", 52 * MS), ("c", 30 * MS))
    ]
    load = RecordedLoad(recorded, trace, block_keys_of(trace, values["block_size"]), "play")
    result = simulate(trace, values, build_timing(values), client=RecordedClient(load, values))
    # Passes end at 10, 20, ... 90; the first token is seen at 10 + 2 + 11 + 8 and holds up the one after it.
    assert seen(result) == {"a/0": [31, 31, *range(32, 93, 10)], "b/0": [31, 31, 32, 42, 52]}
    ends = {name: pick(r, "status", "end_ns", "output_tokens") for name, r in requests_of(result).items()}
    assert ends == {"a/0": ("ok", 92 * MS, 9), "b/0": ("canceled", 52 * MS, 5), "c/0": ("canceled", 30 * MS, 0)}


TERMS = st.fixed_dictionaries(
    {
        "host_request_ms": st.sampled_from([0, 3, 40]),
        "host_prompt_token_us": st.sampled_from([0, 137.5, 2000]),
        "host_prompt_cap_ms": st.sampled_from([0, 11]),
        "host_chunk_ms": st.sampled_from([0, 2.5]),
        "response_latency_ms": st.sampled_from([0, 7]),
        "request_latency_ms": st.sampled_from([0, 3]),
        "lanes": st.integers(1, 5),
        "lane_assignment": st.sampled_from(["strided", "cursor"]),
        "lane_stagger_ms": st.sampled_from([0, 17]),
        "duration_s": st.sampled_from([0, 0.3, 1.5]),
        "grace_s": st.sampled_from([0, 0.1]),
        "max_num_batched_tokens": st.sampled_from([16, 64]),
        "max_num_seqs": st.sampled_from([2, 8]),
    }
)


def expected_ms(result: ReplayResult, index: int, request: dict[str, Any], terms: dict[str, Any]) -> list[float]:
    """When the tokens that a request sampled reach its client, if it listens: one after the other, none early."""
    stretches, ends = result.record.stretches, result.record.passes["end_ns"]
    passes: list[int] = []
    for who, first, last in zip(stretches["index"], stretches["first_pass"], stretches["last_pass"], strict=True):
        passes += range(first, last + 1) if who == index else ()
    prompt = terms["host_prompt_token_us"] / 1000 * (request["input_tokens"] - (request["cached_tokens"] or 0))
    extra = terms["host_request_ms"] + min(prompt, terms["host_prompt_cap_ms"] or prompt)
    way = terms["response_latency_ms"] + terms["host_chunk_ms"]
    out: list[float] = []
    for number, at in enumerate(sorted(passes)):
        free = ends[at] / MS + way + (0 if number else extra)
        out.append(max(free, out[-1]) if out else free)
    return out


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 5_000), spare=st.sampled_from([1, 8, 200]), changes=TERMS)
def test_laws_of_what_clients_see(seed: int, spare: int, changes: dict[str, Any]) -> None:
    trace = random_trace(seed, 3)
    sent = run(trace, kv_blocks=100_000).client.sent
    turns = list(zip(sent.conversation, sent.turn, strict=True))
    pool = max(c.walk.prompt_tokens[t] + c.conversation.turns[t].output_tokens for c, t in turns) // 4 + 1 + spare
    results = [run(trace, **GIVEN, **changes, kv_blocks=pool, core=core) for core in ("plain", "skipping")]
    tables = [Tables(result) for result in results]
    result, client = results[0], results[0].client
    for name in ("requests", "chunks", *ENGINE_TABLES):
        assert whole(getattr(tables[0], name)()).equals(whole(getattr(tables[1], name)())), name
    ledger = ledger_of(tables[0].requests(), client.never_issued)
    assert ledger_problems(ledger, None) == []
    assert ledger["total"]["in_flight"] == 0

    order = [(c["time_ns"], c["request_id"], c["ordinal"]) for c in rows(tables[0].chunks())]
    assert order == sorted(order)
    times, requests = seen(result), requests_of(result)
    sent, released = client.sent, result.record.passes["end_ns"][result.record.requests["last_token_pass"]]
    end_of = {(id(c), t): end for c, t, end in zip(sent.conversation, sent.turn, sent.end_ns, strict=True)}
    for index, (talking, number) in enumerate(zip(sent.conversation, sent.turn, strict=True)):
        name = f"{talking.conversation.conversation_id}/{number}"
        request, at = requests[name], times.get(name, [])
        expected = expected_ms(result, index, request, changes)
        assert at == sorted(at)
        assert len(at) == request["output_tokens"]
        if request["status"] == "ok":
            assert at == pytest.approx(expected)
            assert len(at) == request["requested_output_tokens"]
            assert request["end_ns"] == request["last_visible_ns"] == round(at[-1] * MS)
        else:
            assert request["end_ns"] == client.cancel_ns
            assert at == pytest.approx([time for time in expected if round(time * MS) <= client.cancel_ns])
            assert len(at) < request["requested_output_tokens"]
        if index not in result.aborted_ns:  # the engine waits for nobody
            assert request["released_ns"] == released[index]
        if number:
            assert sent.scheduled_ns[index] >= end_of[id(talking), number - 1]
        if client.deadline_ns is not None:
            assert request["dispatched_ns"] < client.deadline_ns


def test_rows_of_tokens_come_in_order_however_they_are_batched(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(random_trace(3, 5), lanes=4, **GIVEN, host_request_ms=90, host_prompt_token_us=300)
    expected = rows(Tables(result).chunks())
    assert len({c["time_ns"] for c in expected}) < len(expected)
    for size in (1, 7):
        monkeypatch.setattr("engine.replay.chunks.BATCH_ROWS", size)
        assert len(list(Tables(result).chunks())) > 10
        assert rows(Tables(result).chunks()) == expected


FRONTEND = {
    "host_request_ms": 1.5,
    "host_prompt_token_us": 12.0,
    "host_prompt_cap_ms": 6.0,
    "host_chunk_ms": 9.5,
}
MODEL = {"host": {"response_latency_ms": {"value": 10.0, "n": 9}, "frontend": {**FRONTEND, "requests": 20}}}


def test_fitted_terms_count_the_way_to_the_client_once() -> None:
    asked = knobs.resolve({"host_model": "fitted"})
    resolved = resolve_host_terms(asked, MODEL)
    assert resolved["host_model"] == "given"  # what was used are numbers
    assert {name: resolved[name] for name in FRONTEND} == FRONTEND
    assert resolved["response_latency_ms"] == 0.0  # the term per chunk is the whole way
    assert HostModel.of(resolved).chunk_ns == 9.5 * MS
    again = resolve_host_terms(knobs.resolve(resolved), MODEL)
    assert again == resolved
    set_by_hand = resolve_host_terms(knobs.resolve({"host_model": "fitted", "response_latency_ms": 4}), MODEL)
    assert pick(set_by_hand, "response_latency_ms", "host_chunk_ms", "host_request_ms") == (4.0, 0.0, 1.5)
    on_top = resolve_host_terms(knobs.resolve({"host_model": "given", "host_chunk_ms": 2}), MODEL)
    assert HostModel.of(on_top).chunk_ns == 12 * MS
    off = resolve_host_terms(knobs.resolve({}), MODEL)
    assert HostModel.of(off) == HostModel(chunk_ns=10 * MS)
    assert HostModel.of(off).keeps_order


def test_fitted_without_a_warm_up_is_refused_with_what_to_do() -> None:
    for model, timing in ((None, "fpm"), ({"host": {}}, "fpm"), (MODEL, "fixed")):
        with pytest.raises(GapscopeError, match=r"host_model=fitted: .*fit on such a run .*or give the terms"):
            resolve_host_terms(knobs.resolve({"host_model": "fitted", "timing": timing}), model)


def test_a_term_that_would_have_no_effect_is_refused() -> None:
    for host_model in ("off", "fitted"):
        with pytest.raises(GapscopeError, match=r"host_request_ms=5 has no effect .*expected host_model=given"):
            knobs.resolve({"host_request_ms": 5, "host_model": host_model})
    of_a_replay = knobs.resolve({"host_request_ms": 5, "host_model": "given"})
    assert knobs.resolve({"host_model": "off"}, of_a_replay)["host_request_ms"] == 0.0


def test_the_record_says_what_was_used_and_nothing_where_it_is_off(tmp_path: Path) -> None:
    trace = random_trace(5, 4)
    off = open_bundle(tmp_path / replay(trace, TEN_MS, store=tmp_path))
    terms = {f"host_{name}" for name in ("request_ms", "prompt_token_us", "prompt_cap_ms", "chunk_ms")}
    assert off.lineage["config"]["host_model"] == off.identity.value("client", "host_model") == "off"
    assert not terms & set(off.lineage["config"])
    assert all(off.identity.value("client", name) is None for name in terms)
    on = open_bundle(tmp_path / replay(trace, {**TEN_MS, **GIVEN, "host_request_ms": 5}, store=tmp_path))
    assert on.identity.value("client", "host_request_ms") == on.lineage["config"]["host_request_ms"] == 5.0
    assert on.lineage["knobs_changed"]["host_model"] == {"from": "off", "to": "given"}
    assert knobs_from_run(on)["host_request_ms"] == 5.0
    assert on.run_id != off.run_id
    assert on.verify() == []


def test_a_client_that_waits_a_minute_for_every_first_token_still_gets_everything() -> None:
    result = run(random_trace(9, 2), **GIVEN, host_request_ms=60_000)
    assert {r["status"] for r in requests_of(result).values()} == {"ok"}
    assert all(len(set(times)) == 1 for times in seen(result).values())
