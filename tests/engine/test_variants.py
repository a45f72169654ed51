"""ATOM, TensorRT-LLM and the rules that reproduce a bias, by hand: blocks of four tokens, passes of a nanosecond."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_cases import LinearTiming, differences, play, random_case, speculating
from serving_driver import FixedTiming, Load, batches, drive, events, request, small_config

from engine.errors import GapscopeError
from engine.knobs import resolve
from engine.serving import make_server
from engine.serving.members import computed_at_end, members
from engine.serving.plain import PlainServer
from engine.serving.reserving import ReservingServer
from engine.serving.speculation import Speculation
from engine.serving.variants import DoubleBookedPool, VariantServer


def serve(config, *arrivals):
    """The record of a load; arrivals are (time, request)."""
    server = make_server(config, FixedTiming(), "plain")
    assert isinstance(server, VariantServer)
    return drive(server, Load(arrivals))[0]


def who(record):
    return [[member[0] for member in batch] for batch in batches(record)]


def test_atom_computes_prompts_without_decodes_in_vllms_pool() -> None:
    config = replace(small_config(budget=10), engine="atom")
    record = serve(config, (0, request(0, 8, 4)), (2, request(1, 14, 2, [1, 2, 3])), (3, request(2, 9, 1, [1, 2])))
    assert batches(record) == [
        [(0, 0, 8)],
        [(0, 8, 1)],
        [(1, 0, 10)],  # two of its blocks can be hit from now on
        [(1, 10, 4), (2, 8, 1)],
        [(0, 9, 1), (1, 14, 1)],
        [(0, 10, 1)],
    ]
    assert record.passes["num_decode_requests"].tolist() == [0, 1, 0, 0, 2, 1]


def test_atom_preempts_the_last_in_to_the_front() -> None:
    # Six blocks, and two requests that need five each: both open their third block in pass 1; in pass 5 none is left.
    config = replace(small_config(blocks=6, budget=100), engine="atom", prefix_caching=False)
    record = serve(config, (0, request(0, 8, 10)), (0, request(1, 8, 10)))
    assert record.preemptions["index"].tolist() == [1]
    assert record.preemptions["pass_index"].tolist() == [5]
    assert who(record)[:6] == [[0, 1], [0, 1], [0, 1], [0, 1], [0, 1], [0]]
    assert record.requests["output_tokens"].tolist() == [10, 10]


def test_atom_verifies_drafts_after_it_sat_out_a_pass() -> None:
    # Two drafts, the first always accepted, the second never: 2 tokens a pass, less where fewer are asked for.
    config = replace(small_config(budget=100), engine="atom", speculation=Speculation(2, (1.0, 0.0)))
    record = serve(config, (0, request(0, 8, 8)), (2, request(1, 6, 2)))
    assert batches(record) == [
        [(0, 0, 8)],
        [(0, 8, 3)],
        [(1, 0, 6)],
        [(0, 10, 3), (1, 6, 3)],
        [(0, 12, 3)],
        [(0, 14, 3)],
    ]
    assert record.passes["num_output_tokens"].tolist() == [1, 2, 1, 3, 2, 1]
    assert record.passes["num_decode_requests"].tolist() == [0, 1, 0, 2, 1, 1]
    assert record.stretches["first_pass"].tolist() == [0, 2, 3]
    assert record.stretches["computed_after_first"].tolist() == [8, 6, 12]
    assert record.bursts.tolist() == [1, 2, 1, 1, 2, 2, 1]
    assert computed_at_end(record).tolist() == [10, 7, 15]
    # Blocks of four for the tokens computed and three more: 11; 11 and 6; 13 and 9; 15; 17.
    assert record.passes["kv_blocks_used"].tolist() == [2, 3, 5, 7, 4, 5]


def test_tensorrt_llm_holds_blocks_for_the_drafts_too() -> None:
    # 8 prompt and 8 output tokens but the last, and two drafts: 17 tokens, five blocks. Ten hold two, nine one.
    load = (0, request(0, 8, 8)), (0, request(1, 8, 8))
    for blocks, first in ((10, [0, 1]), (9, [0])):
        config = replace(small_config(blocks=blocks), engine="trtllm", speculation=Speculation(2, (1.0, 0.0)))
        assert who(serve(config, *load))[0] == first
        both, _ = drive(make_server(config, FixedTiming()), Load(load))
        assert [member[0] for member in batches(both)[0]] == first


def test_tensorrt_llm_admits_who_has_room_to_the_end() -> None:
    # The first needs 8 + 8 - 1 tokens, four blocks of six; the second as many: it waits, where vLLM would let it in.
    load = (0, request(0, 8, 8)), (0, request(1, 8, 8))
    record = serve(replace(small_config(blocks=6), engine="trtllm"), *load)
    assert who(record) == [[0]] * 8 + [[1]] * 8
    assert not len(record.preemptions["index"])
    vllm, _ = drive(make_server(small_config(blocks=6), FixedTiming()), Load(load))
    assert [m[0] for m in batches(vllm)[0]] == [0, 1]
    assert len(vllm.preemptions["index"]) > 0


def test_what_is_hit_is_reserved_once_or_by_every_sharer() -> None:
    # Three requests of four blocks, of which the first two are the same and cached: 2 + 3 * 2 blocks hold all three.
    warm = (0, request(0, 9, 1, [1, 2]))
    load = [(2, request(n, 9, 7, [1, 2])) for n in (1, 2, 3)]
    config = small_config(blocks=8)
    once = serve(replace(config, reservation="whole_sequence"), warm, *load)
    assert who(once)[1] == [1, 2, 3]
    each = serve(replace(config, reservation="per_sharer"), warm, *load)
    assert who(each)[1] == [1, 2]
    assert once.passes["kv_blocks_used"].max() == 8
    assert each.passes["kv_blocks_used"].max() == 6


def test_longest_prefix_first() -> None:
    config = replace(small_config(seats=1), policy="longest_prefix")
    load = (0, request(0, 9, 3, [1, 2])), (1, request(1, 9, 1, [5, 6])), (1, request(2, 9, 1, [1, 2]))
    record = serve(config, *load)
    assert who(record) == [[0], [0], [0], [2], [1]]
    assert record.admissions["waiting_ahead"].tolist() == [0, 1, 0]


def test_flat_lru_evicts_the_beginning_of_a_prompt_first() -> None:
    # Six blocks: the second needs two more than are blank. What is left of the first is of no use to the third.
    load = (
        (0, request(0, 12, 1, [10, 11, 12])),
        (5, request(1, 17, 1, [20, 21, 22, 23])),
        (9, request(2, 13, 1, [10, 11, 12])),
    )
    flat = serve(replace(small_config(blocks=6), eviction="flat_lru"), *load)
    assert events(flat)[1] == ("evict", 1, 1, [10, 11])
    assert flat.requests["cached_tokens"].tolist() == [0, 0, 0]
    own, _ = drive(make_server(small_config(blocks=6), FixedTiming()), Load(load))
    assert events(own)[1] == ("evict", 1, 1, [12, 11])
    assert own.requests["cached_tokens"].tolist() == [0, 0, 4]


def test_a_double_booked_cache_takes_nothing_from_the_pool() -> None:
    # Six blocks run two such requests at once, and twelve more remember four prompts.
    config = replace(small_config(blocks=6), cache_blocks=12)
    prompts = [[10 * n + 1, 10 * n + 2] for n in range(4)]
    load = [(4 * n, request(n, 11, 1, keys)) for n, keys in enumerate(prompts)]
    again = [(20 + 4 * n, request(4 + n, 11, 1, keys)) for n, keys in enumerate(prompts)]
    record = serve(config, *load, *again)
    assert record.requests["cached_tokens"].tolist() == [0] * 4 + [8] * 4
    assert record.passes["kv_blocks_used"].tolist() == [3] * 4 + [1] * 4
    assert record.passes["kv_blocks_cached"].tolist() == [2, 4, 6, 8, 8, 8, 8, 8]
    assert not [row for row in events(record) if row[0] == "evict"]
    one, _ = drive(make_server(small_config(blocks=6), FixedTiming()), Load([*load, *again]))
    assert one.requests["cached_tokens"].sum() == 0


def test_a_double_booked_cache_evicts_the_tail_of_what_was_used_longest_ago() -> None:
    config = replace(small_config(blocks=6), cache_blocks=4)
    load = (0, request(0, 11, 1, [1, 2])), (4, request(1, 15, 1, [5, 6, 7])), (8, request(2, 9, 1, [1, 2]))
    record = serve(config, *load)
    assert events(record) == [
        ("store", 0, 0, [1, 2]),
        ("store", 1, 1, [5, 6, 7]),
        ("evict", 1, 1, [2]),
        ("store", 2, 2, [2]),
        ("evict", 2, 2, [7]),
    ]
    assert record.requests["cached_tokens"].tolist() == [0, 0, 4]
    assert record.events["released_ns"].tolist() == [-1, -1, 1, -1, 5]


VARIANTS = st.fixed_dictionaries(
    {
        "engine": st.sampled_from(["vllm", "atom", "trtllm"]),
        "policy": st.sampled_from(["fcfs", "longest_prefix"]),
        "reservation": st.sampled_from(["own", "whole_sequence", "per_sharer"]),
        "eviction": st.sampled_from(["own", "flat_lru"]),
        "cache_blocks": st.sampled_from([0, 0, 3, 200]),
    }
)


class CheckedServer(VariantServer):
    """Checks pool and queues after every pass."""

    def let_go(self, next_start_ns):
        if not isinstance(self.pool, DoubleBookedPool):
            self.check_integrity()
        assert self.pool.num_referenced <= self.pool.size
        return super().let_go(next_start_ns)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 1 << 30), rules=VARIANTS, drafts=st.booleans())
def test_laws_of_any_load(seed, rules, drafts) -> None:
    case = speculating(random_case(seed), seed) if drafts else random_case(seed)
    case = replace(case, config=replace(case.config, **rules))
    record, _ = play(case, CheckedServer(case.config, LinearTiming(case.between_ns)))
    again, _ = play(case, VariantServer(case.config, LinearTiming(case.between_ns)))
    assert differences(record, again) == []
    requests, passes = record.requests, record.passes
    assert (requests["last_token_pass"][~requests["aborted"]] >= 0).all()
    assert passes["kv_blocks_used"].max() <= case.config.usable_kv_blocks
    if rules["engine"] == "atom":
        # A request that comes back with one token to compute prefills it; its pass may count it as a decode.
        mixed = (passes["num_prefill_requests"] > 0) & (passes["num_decode_requests"] > 0)
        assert mixed.sum() <= requests["preemptions"].sum()
    if rules["engine"] == "trtllm" or rules["reservation"] != "own":
        assert not len(record.preemptions["index"])
    if rules["policy"] == "fcfs":
        assert not record.admissions["waiting_ahead"].any()
    work = members(record)
    if drafts:
        # What the passes of a request sampled is its output, and each computes its drafts besides the last token.
        passes_each = record.stretches["last_pass"] - record.stretches["first_pass"] + 1
        owner = np.repeat(record.stretches["index"], passes_each)
        outputs = np.bincount(owner, record.bursts, minlength=len(requests["aborted"]))
        np.testing.assert_array_equal(outputs, requests["output_tokens"])
        assert passes["num_output_tokens"].sum() == record.bursts.sum()
        assert record.bursts.max() <= record.verify_width
        return
    # Without a preemption a request computes all but what it hit and its last token.
    computed = np.bincount(work.index, work.scheduled_tokens, minlength=len(requests["aborted"])).astype(int)
    served = ~requests["aborted"] & (requests["preemptions"] == 0)
    chunks = record.prefill_chunks
    prompts = np.zeros_like(computed)
    at_first = requests["first_token_pass"][chunks["index"]] == chunks["pass_index"]
    prompts[chunks["index"][at_first]] = (chunks["computed_before"] + chunks["scheduled_tokens"])[at_first]
    needed = prompts - requests["cached_tokens"] + requests["output_tokens"] - 1
    np.testing.assert_array_equal(computed[served], needed[served])


@settings(max_examples=160, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    rules=st.sampled_from(
        [{"engine": "trtllm"}, {"reservation": "whole_sequence"}, {"engine": "trtllm", "reservation": "per_sharer"}]
    ),
    drafts=st.booleans(),
)
def test_who_reserves_for_a_whole_request_is_simulated_alike_from_event_to_event(seed, rules, drafts) -> None:
    case = speculating(random_case(seed), seed) if drafts else random_case(seed)
    case = replace(case, config=replace(case.config, **rules))
    expected, calls = play(case, make_server(case.config, LinearTiming(case.between_ns), "plain"))
    server = make_server(case.config, LinearTiming(case.between_ns))
    assert isinstance(server, ReservingServer)
    record, same_calls = play(case, server)
    assert same_calls == calls
    assert differences(expected, record) == []


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_with_no_rule_of_its_own_it_is_the_plain_core(seed) -> None:
    case = random_case(seed)
    record, _ = play(case, VariantServer(case.config, LinearTiming(case.between_ns)))
    expected, _ = play(case, PlainServer(case.config, LinearTiming(case.between_ns)))
    assert differences(expected, record) == []


def test_settings_that_an_engine_or_core_does_not_have_are_refused() -> None:
    for changes, said in (
        ({"engine": "sglang", "reservation": "per_sharer"}, "reservation=per_sharer has no effect with engine=sglang"),
        ({"engine": "sglang", "policy": "longest_prefix"}, "policy=longest_prefix has no effect with engine=sglang"),
        ({"engine": "atom", "policy": "lpm"}, "policy=lpm has no effect with engine=atom"),
        ({"engine": "atom", "core": "skipping"}, "core=skipping and engine=atom"),
        (
            {"eviction": "flat_lru", "prefix_caching": False},
            "eviction=flat_lru has no effect with prefix_caching=false",
        ),
        ({"cache_blocks": 9, "core": "skipping"}, "core=skipping"),
    ):
        with pytest.raises(GapscopeError, match=said):
            resolve(changes)
    assert resolve({"engine": "sglang"}, {"eviction": "flat_lru", "cache_blocks": 9})["cache_blocks"] == 0
    with pytest.raises(GapscopeError, match="does not have these rules"):
        make_server(replace(small_config(), engine="atom"), FixedTiming(), "skipping")
