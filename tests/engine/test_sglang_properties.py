"""SGLang's core against the same rules walked pass by pass, and laws that hold for any load."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_cases import LinearTiming, MoodyTiming, differences, play, speculating
from sglang_cases import sglang_case
from sglang_oracle import Oracle

from engine.serving.members import members
from engine.serving.sglang import SglangServer


class CheckedServer(SglangServer):
    """Checks pool, tree and queue after every pass, and that nobody who decodes lost a page."""

    def let_go(self, next_start_ns):
        finished = super().let_go(next_start_ns)
        self.check_integrity()
        return finished


def compared(case, timing=LinearTiming):
    """The record of a case, after checking that the oracle's is the same."""
    record, calls = play(case, CheckedServer(case.config, timing(case.between_ns)))
    expected, same_calls = play(case, Oracle(case.config, timing(case.between_ns)))
    assert same_calls == calls
    assert differences(expected, record) == []
    return record


def test_records_are_those_of_the_oracle():
    totals = Counter()
    for seed in range(120):
        record = compared(sglang_case(seed))
        totals["retractions"] += len(record.preemptions["index"])
        totals["evictions"] += np.count_nonzero(record.events["kind"] == 1)
        totals["aborts"] += np.count_nonzero(record.requests["aborted"])
        totals["hits"] += np.count_nonzero(record.admissions["hit_blocks"])
        totals["overtaken"] += np.count_nonzero(record.admissions["waiting_ahead"])
        totals["computed again"] += np.count_nonzero(record.requests["recomputed_tokens"])
        totals["decodes sat out"] += np.count_nonzero(
            (record.passes["num_prefill_requests"] > 0) & (record.passes["num_decode_requests"] == 0)
        )
    assert len(totals) == 7
    assert min(totals.values()) > 10, totals  # the cases really go where it is hard


def drafting(seed):
    """The same with drafts; SGLang puts no prompts into passes that verify them."""
    case = speculating(sglang_case(seed), seed)
    rules = replace(case.config.sglang, mixed_chunk=False)
    return replace(case, config=replace(case.config, sglang=rules))


def test_records_under_speculation_are_those_of_the_oracle():
    totals = Counter()
    for seed in range(200):
        case = drafting(seed)
        record = compared(case)
        totals["retractions"] += len(record.preemptions["index"])
        totals["evictions"] += np.count_nonzero(record.events["kind"] == 1)
        totals["aborts"] += np.count_nonzero(record.requests["aborted"])
        totals["computed again"] += np.count_nonzero(record.requests["recomputed_tokens"])
        totals["more than one token"] += np.count_nonzero(record.bursts > 1)
        chunks = record.prefill_chunks
        goes_on = chunks["pass_index"] > record.requests["first_token_pass"][chunks["index"]]
        goes_on &= chunks["scheduled_tokens"] == record.verify_width
        totals["goes on after sitting out"] += np.count_nonzero(goes_on)
        if case.config.block_size > 1:
            totals["retractions with pages"] += len(record.preemptions["index"])
        owner = np.repeat(record.stretches["index"], record.stretches["last_pass"] - record.stretches["first_pass"] + 1)
        outputs = np.bincount(owner, record.bursts, minlength=len(record.requests["aborted"]))
        np.testing.assert_array_equal(outputs, record.requests["output_tokens"])
    assert len(totals) == 7
    assert min(totals.values()) > 10, totals


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_records_under_speculation_are_equal_when_answers_depend_on_their_order(seed):
    compared(drafting(seed), MoodyTiming)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_records_are_equal_when_answers_depend_on_their_order(seed):
    compared(sglang_case(seed), MoodyTiming)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_laws_of_any_load(seed):
    case = sglang_case(seed)
    record, _ = play(case, CheckedServer(case.config, LinearTiming(case.between_ns)))
    again, _ = play(case, SglangServer(case.config, LinearTiming(case.between_ns)))
    assert differences(record, again) == []
    requests, passes, rules = record.requests, record.passes, case.config.sglang

    # Every request finishes, unless it was given up.
    assert (requests["last_token_pass"][~requests["aborted"]] >= 0).all()
    # A pass has prefill or decodes, and never more requests than may run.
    prefills, decodes = passes["num_prefill_requests"], passes["num_decode_requests"]
    assert (prefills + decodes > 0).all()
    if not rules.mixed_chunk:
        assert (np.minimum(prefills, decodes) == 0).all()
    assert passes["num_running"].max() <= case.config.max_num_seqs
    if rules.chunked_prefill_size:
        page = case.config.block_size
        assert passes["sum_prefill_tokens"].max() <= max(rules.chunked_prefill_size, page)
    # The pool is never above its capacity, and what it holds is what was stored and not evicted.
    assert passes["kv_blocks_used"].max() <= case.config.usable_kv_blocks
    if case.config.record_events and case.config.prefix_caching:
        held = set()
        keys = record.event_keys.tolist()
        for kind, first, count in zip(
            *(record.events[c].tolist() for c in ("kind", "first_key", "num_keys")), strict=True
        ):
            named = set(keys[first : first + count])
            assert len(named) == count
            if kind == 0:
                assert not held & named, "content is held twice"
                held |= named
            else:
                assert named <= held, "what is not held is evicted"
                held -= named
            assert len(held) <= case.config.usable_kv_blocks

    # Tokens are conserved: a request computes all but its last token and what it hit, and again what it lost.
    work = members(record)
    computed = np.bincount(work.index, work.scheduled_tokens, minlength=len(requests["aborted"])).astype(int)
    assert computed.sum() == passes["sum_prefill_tokens"].sum() + decodes.sum()
    hits = np.zeros_like(computed)
    later = record.admissions["is_readmission"]
    np.add.at(hits, record.admissions["index"][~later], record.admissions["cached_tokens"][~later])
    served = ~requests["aborted"] & (requests["preemptions"] == 0)
    lengths = computed + hits - requests["output_tokens"] + 1
    chunks = record.prefill_chunks
    prompts = np.zeros_like(computed)
    first_token = requests["first_token_pass"][chunks["index"]] == chunks["pass_index"]
    prompts[chunks["index"][first_token]] = (chunks["computed_before"] + chunks["scheduled_tokens"])[first_token]
    np.testing.assert_array_equal(lengths[served], prompts[served])
    # Members of consecutive passes go on where they stopped.
    position: dict[tuple[int, int], int] = {}
    seq_at = dict(
        zip(
            zip(record.admissions["index"].tolist(), record.admissions["pass_index"].tolist(), strict=True),
            record.admissions["seq"].tolist(),
            strict=True,
        )
    )
    current: dict[int, int] = {}
    columns = (work.pass_index, work.index, work.computed_before, work.scheduled_tokens)
    for at, index, before, tokens in zip(*(column.tolist() for column in columns), strict=True):
        if (index, at) in seq_at:
            current[index] = seq_at[index, at]
        else:
            assert position[index, current[index]] == before
        position[index, current[index]] = before + tokens


@pytest.mark.parametrize("policy", ["fcfs", "lpm"])
def test_first_come_first_served_is_overtaken_by_nobody_and_longest_prefix_by_some(policy):
    overtaken = 0
    for seed in range(40):
        case = sglang_case(seed)
        case = replace(case, config=replace(case.config, policy=policy, prefix_caching=True))
        record, _ = play(case, SglangServer(case.config, LinearTiming(case.between_ns)))
        overtaken += np.count_nonzero(record.admissions["waiting_ahead"])
    assert (overtaken > 0) == (policy == "lpm")
