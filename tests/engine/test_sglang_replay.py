"""Replays of SGLang's scheduler: the shape of waiting times, the laws of every run, and what the bundle says of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.bundle import open_bundle
from engine.identity import NOT_APPLICABLE, diff, like_for_like
from engine.knobs import SGLANG_ONLY, resolve
from engine.replay import knobs_from_run, replay, simulate
from engine.serving.speculation import acceptance_of
from engine.timing import build_timing
from tests.engine.client_harness import talk, trace_of, turn
from tests.engine.run_laws import LAWS, Run, pool, sums_of_passes, work_of_requests
from tests.engine.test_client_properties import random_trace
from tests.engine.test_replay import TEN_MS
from tests.engine.test_run_laws import TIMING, smallest_pool

SGLANG = {"engine": "sglang"}


def times_to_first_token(changes: dict[str, Any]) -> np.ndarray:
    """Of the requests of 64 lanes that send equal prompts in closed loop, without the first of each lane."""
    trace = trace_of(*([talk(f"p{n}", turn(f"p{n}", tokens=4096, output=40))] for n in range(64 * 8)))
    timing = {"timing": "fixed", "fixed_pass_us": 1000, "fixed_prefill_token_us": 20, "fixed_decode_request_us": 20}
    pool = {"kv_blocks": 10_000, "block_size": 64, "lanes": 64}
    values = resolve({**timing, "fixed_kv_token_ns": 0, **pool, **changes})
    result = simulate(trace, values, build_timing(values))
    sent = np.array(result.client.sent.dispatched_ns)
    first = result.record.passes["end_ns"][result.record.requests["first_token_pass"]]
    return (first - sent)[64:]


def test_exclusive_prefill_spreads_the_times_to_first_token_evenly() -> None:
    # Two prompts of 4,096 tokens fill a pass, and nobody decodes before the last of the 64: so all end together, and
    # the k-th pair of the next round has its first token after k passes: 32 equal steps from 0 to twice the median.
    ttft = times_to_first_token(SGLANG)
    step = 1_000_000 + 8192 * 20_000
    np.testing.assert_array_equal(np.sort(ttft), np.repeat(np.arange(1, 33) * step, 14))
    spread = ttft.std() / ttft.mean()
    assert spread == pytest.approx(np.sqrt(31 / (3 * 33)))  # of 1 .. 32; sqrt(1/3) = 0.577 if it were continuous
    assert 0.55 < spread < 0.58
    assert np.percentile(ttft, 99) / np.median(ttft) == pytest.approx(1.94, abs=0.01)


def test_with_decodes_in_the_same_passes_requests_end_one_by_one_and_wait_for_few() -> None:
    even = times_to_first_token(SGLANG)
    mixed = times_to_first_token({"max_num_batched_tokens": 8192})
    assert mixed.mean() < 0.15 * even.mean()
    assert mixed.std() / mixed.mean() < 0.45


knobs = st.fixed_dictionaries(
    {
        "lanes": st.integers(1, 6),
        "duration_s": st.sampled_from([0, 0.4, 2.0]),
        "warmup_s": st.sampled_from([0, 0.2]),
        "grace_s": st.sampled_from([0, 0.05]),
        "block_size": st.sampled_from([1, 4, 16]),
        "max_num_seqs": st.sampled_from([2, 8]),
        "policy": st.sampled_from(["fcfs", "lpm"]),
        "chunked_prefill_size": st.sampled_from([0, 16, 64]),
        "mixed_chunk": st.booleans(),
        "clip_max_new_tokens": st.sampled_from([1, 4096]),
        "schedule_conservativeness": st.sampled_from([0, 1]),
        "response_latency_ms": st.sampled_from([0, 7]),
    }
)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), plays=st.integers(1, 5), spare=st.sampled_from([1, 9, 500]), changes=knobs)
def test_laws_of_random_replays(
    tmp_path_factory: pytest.TempPathFactory, seed: int, plays: int, spare: int, changes: dict[str, Any]
) -> None:
    store, trace = tmp_path_factory.mktemp("laws"), random_trace(seed, plays)
    values = TEN_MS | TIMING | SGLANG | changes
    values["kv_blocks"] = smallest_pool(trace, changes["block_size"]) + spare
    run = Run.of(open_bundle(store / replay(trace, values, store=store, slug="law")))
    # Decodes that sit out a pass run without being members, and content is cached when a pass ends.
    said = {law.__name__: list(law(run)) for law in LAWS if law not in (pool, sums_of_passes)}
    assert not any(said.values()), said


def kept_tokens(run: Run) -> Iterator[str]:
    """A request goes on from what it kept: of its prompt all, of a verification as many tokens as its chunk says."""
    admitted = Counter(row["request_id"] for row in run.admissions)
    members: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in run.passes:
        for member in row["members"]:
            members[member["request_id"]].append((member["computed_before"], member["scheduled_tokens"]))
    sampled: dict[str, list[int]] = defaultdict(list)
    for row in sorted(run.chunks, key=lambda row: row["ordinal"]):
        sampled[row["request_id"]].append(row["tokens"])
    for row in run.requests:
        name = row["request_id"]
        if row["status"] == "ok" and admitted[name] == 1:
            work = [(at, tokens) for at, tokens in members[name] if at + tokens >= row["input_tokens"]]
            ends = [work[0][0] + work[0][1]]
            ends += [at + kept for (at, _), kept in zip(work[1:], sampled[name][1:], strict=True)]
            if [at for at, _ in work[1:]] != ends[:-1]:
                yield f"{name} goes on from {[at for at, _ in work[1:]]}, and kept tokens up to {ends[:-1]}"
            if sum(sampled[name]) != row["output_tokens"] or ends[-1] != row["input_tokens"] + row["output_tokens"] - 1:
                yield f"{name} sampled {sum(sampled[name])} tokens"


@settings(max_examples=24, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    plays=st.integers(1, 5),
    spare=st.sampled_from([1, 9, 500]),
    changes=knobs,
    engine=st.sampled_from(["sglang", "atom", "trtllm"]),
)
def test_laws_of_random_replays_with_drafts(
    tmp_path_factory: pytest.TempPathFactory, seed: int, plays: int, spare: int, changes: dict[str, Any], engine: str
) -> None:
    store, trace = tmp_path_factory.mktemp("laws"), random_trace(seed, plays)
    own = {name: value for name, value in changes.items() if engine == "sglang" or name not in SGLANG_ONLY}
    own |= {
        "engine": engine,
        "spec_method": "mtp",
        "spec_tokens": 3,
        "spec_acceptance": "0.8,0.6,0.5",
        "spec_seed": seed,
    }
    own |= {"mixed_chunk": False, "policy": own["policy"] if engine == "sglang" else "fcfs"}
    values = TEN_MS | TIMING | own
    values["kv_blocks"] = smallest_pool(trace, changes["block_size"]) + 3 + spare
    run = Run.of(open_bundle(store / replay(trace, values, store=store, slug="law")))
    said = {law.__name__: list(law(run)) for law in LAWS if law not in (pool, sums_of_passes, work_of_requests)}
    assert not any(said.values()), said
    assert not list(kept_tokens(run))


def test_a_bundle_says_whose_scheduler_it_was_and_can_be_varied(tmp_path: Path) -> None:
    trace = trace_of([talk("a", turn("x", 40, 5), turn("y", 30, 4))])
    base = TEN_MS | {"kv_blocks": 200, "block_size": 4}
    ids = [replay(trace, base | more, store=tmp_path, slug="r") for more in ({}, SGLANG | {"policy": "lpm"})]
    vllm, sglang = (open_bundle(tmp_path / run_id) for run_id in ids)
    assert sglang.verify() == []
    assert (vllm.identity.value("source", "engine"), sglang.identity.value("source", "engine")) == ("vllm", "sglang")
    assert sglang.identity.value("scheduler", "policy") == "lpm"
    assert sglang.identity.value("scheduler", "chunked_prefill_size") == 8192
    assert vllm.identity.value("scheduler", "chunked_prefill_size") is None
    assert sglang.identity.value("scheduler", "max_num_batched_tokens") == NOT_APPLICABLE
    assert not like_for_like(diff(vllm.identity, sglang.identity))
    again = resolve({}, knobs_from_run(sglang))
    assert (again["engine"], again["policy"]) == ("sglang", "lpm")
    again_id = replay(trace, again, store=tmp_path / "other", slug="r")
    assert open_bundle(tmp_path / "other" / again_id).lineage["config"] == sglang.lineage["config"]
    back = resolve({"engine": "vllm"}, knobs_from_run(sglang))
    back_id = replay(trace, back, store=tmp_path / "other", slug="r")
    assert open_bundle(tmp_path / "other" / back_id).lineage["config"] == vllm.lineage["config"]


@pytest.mark.parametrize("drafts", [{}, {"spec_method": "mtp", "spec_tokens": 2, "spec_acceptance": "1, 0"}])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "atom", "trtllm"])
def test_two_ranks_that_do_the_same_take_the_time_of_one(engine: str, drafts: dict[str, Any]) -> None:
    # Every conversation twice, under two names: in lockstep each rank gets one of them, and its passes are those of an
    # engine that serves them alone. A rank of SGLang has half the chunk, and 0.3 of the conservativeness.
    def conversation(name: str, n: int):
        return [talk(name, *(turn(f"{name}.{k}", 30 + 7 * n + k, 9 + n) for k in range(4)))]

    one = trace_of(*(conversation(f"a{n}", n) for n in range(5)))
    two = trace_of(*(conversation(f"{side}{n}", n) for n in range(5) for side in "ab"))
    base = TEN_MS | TIMING | drafts | {"engine": engine, "kv_blocks": 110, "block_size": 4, "max_num_seqs": 8}
    base["lane_assignment"] = "cursor"
    sglang = engine == "sglang"
    # With drafts several requests of a rank end in one pass, so that turns do not alternate between the ranks.
    ranks = resolve(
        base
        | {"lanes": 6, "attention_dp": 2, "dp_router": "session" if drafts else "round_robin"}
        | ({"chunked_prefill_size": 64} if sglang else {})
    )
    alone = {"chunked_prefill_size": 32, "schedule_conservativeness": 0.3} if sglang else {}
    single = resolve(base | {"lanes": 3} | alone)
    both = simulate(two, ranks, build_timing(ranks)).record.passes
    expected = simulate(one, single, build_timing(single)).record.passes
    for rank in (0, 1):
        here = both["dp_rank"] == rank
        for name in ("start_ns", "end_ns", "sum_prefill_tokens", "num_decode_requests", "kv_blocks_used"):
            np.testing.assert_array_equal(both[name][here], expected[name], name)


@pytest.mark.parametrize("engine", ["sglang", "atom", "trtllm"])
def test_drafts_shorten_the_time_between_tokens_by_the_mean_length(engine: str) -> None:
    # One conversation, passes of 1 ms: who samples T tokens after the first takes as many ms as it has verifications.
    # Let N be how many it takes until their lengths, of mean L, add up to T: by Wald's identity L E[N] is T and what
    # the last goes beyond it, at most k. N varies by T s^2 / L^3 (s^2 the variance of a length), so the mean of R
    # requests lies within five of its standard deviations of T / L to (T + k) / L.
    drafts, mean, later, count = 3, 2.49, 600, 30
    trace = trace_of([talk("a", *(turn(f"a{n}", tokens=20, output=later + 1) for n in range(count)))])
    base = {"timing": "fixed", "fixed_pass_us": 1000, "fixed_prefill_token_us": 0, "fixed_decode_request_us": 0}
    base |= {"fixed_kv_token_ns": 0, "kv_blocks": 3_000, "lanes": 1, "engine": engine}

    def per_request_ms(changes: dict[str, Any]) -> np.ndarray:
        values = resolve(base | changes)
        record = simulate(trace, values, build_timing(values)).record
        end_ns, requests = record.passes["end_ns"], record.requests
        assert requests["output_tokens"].tolist() == [later + 1] * count
        return (end_ns[requests["last_token_pass"]] - end_ns[requests["first_token_pass"]]) / 1e6

    np.testing.assert_array_equal(per_request_ms({}), later)
    speculation = {"spec_method": "mtp", "spec_tokens": drafts, "spec_mean_length": mean}
    taken = per_request_ms(speculation)
    (a, *_others) = acceptance_of("", mean, drafts)
    variance = sum((2 * n + 1) * a**n for n in range(drafts + 1)) - mean**2
    error = 5 * np.sqrt(later * variance / mean**3 / count)
    assert error < 0.03 * later / mean
    assert later / mean - error < taken.mean() < (later + drafts) / mean + error
