"""Laws that hold for any load: nothing is lost, nothing is computed twice without cause, limits are kept."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_driver import FixedTiming, Load, batches, drive, events

from engine.serving.contract import ServedRequest, ServerConfig
from engine.serving.members import members
from engine.serving.plain import PlainServer


class CheckedServer(PlainServer):
    """Checks its pool and its queues after every pass."""

    def complete(self, now_ns, duration_ns):
        super().complete(now_ns, duration_ns)
        self.check_integrity()


@st.composite
def configs(draw):
    block_size = draw(st.sampled_from([1, 2, 4, 16]))
    return ServerConfig(
        usable_kv_blocks=draw(st.integers(6, 30)),
        block_size=block_size,
        max_num_seqs=draw(st.integers(1, 8)),
        max_num_batched_tokens=draw(st.one_of(st.integers(1, 7), st.integers(8, 40))),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 3, 10])),
        prefix_caching=draw(st.sampled_from([True, True, True, False])),
        reserve_full_prompt=draw(st.booleans()),
    )


@st.composite
def loads(draw, config):
    """Requests over a few shared prefixes, so that contents are often equal up to some block."""
    most = config.usable_kv_blocks * config.block_size
    arrivals = []
    for index in range(draw(st.integers(1, 12))):
        prompt = draw(st.integers(1, most))
        output = draw(st.integers(1, min(20, most - prompt + 1)))
        family, own_from = draw(st.integers(0, 2)), draw(st.integers(0, 8))
        named = draw(st.integers(0, (prompt + output) // config.block_size))
        keys = [1000 * family + n if n < own_from else 100_000 * (index + 1) + n for n in range(named)]
        arrivals.append((draw(st.integers(0, 60)), ServedRequest(index, prompt, output, keys)))
    aborts = draw(st.lists(st.tuples(st.integers(0, 90), st.integers(0, len(arrivals) - 1)), max_size=3))
    aborts = [(max(at, arrivals[index][0]), index) for at, index in aborts]
    return Load(arrivals, aborts)


@st.composite
def served(draw):
    """(config, load, record, finished) of a random load."""
    config = draw(configs())
    load = draw(loads(config))
    timing = FixedTiming(
        draw(st.integers(1, 5)), draw(st.integers(0, 3)), draw(st.integers(0, 2)), draw(st.integers(0, 2))
    )
    record, finished = drive(CheckedServer(config, timing), load)
    return config, load, timing, record, finished


@settings(deadline=None, max_examples=80)
@given(served())
def test_every_request_is_served_or_aborted_and_told_once(case):
    _, load, _, record, finished = case
    wanted = {r.index: r.output_tokens for _, r in load.arrivals}
    told = Counter(f.index for f in finished)
    for index, output in wanted.items():
        aborted = bool(record.requests["aborted"][index])
        assert told[index] == (not aborted)
        assert aborted or record.requests["output_tokens"][index] == output
    ends = record.passes["end_ns"]
    assert all(f.end_ns == ends[f.pass_index] for f in finished)
    assert all(record.requests["last_token_pass"][f.index] == f.pass_index for f in finished)


@settings(deadline=None, max_examples=80)
@given(served())
def test_no_token_is_computed_twice_without_preemption(case):
    """Walks each request through its passes: contiguous, from its hits on, and again only after a preemption."""
    config, load, _, record, finished = case
    served_requests = {r.index: r for _, r in load.arrivals}
    admitted = {
        (int(p), int(i)): int(c)
        for p, i, c in zip(*(record.admissions[c] for c in ("pass_index", "index", "cached_tokens")), strict=True)
    }
    preempted = Counter(zip(*(record.preemptions[c].tolist() for c in ("pass_index", "index")), strict=True))
    reached, computed, sampled = Counter(), {}, Counter()
    again, gained, scheduled = Counter(), Counter(), Counter()
    for p, batch in enumerate(batches(record)):
        for (at, index), times in preempted.items():
            if at == p:
                assert times == 1
                del computed[index]
        for index, before, tokens in batch:
            if (p, index) in admitted:
                assert index not in computed
                assert before == admitted[p, index]
                assert before % config.block_size == 0
                if record.requests["first_admit_pass"][index] == p:
                    assert before == record.requests["cached_tokens"][index]
                    reached[index] = before
                gained[index] += max(0, before - reached[index])
            else:
                assert before == computed[index]
            again[index] += max(0, min(before + tokens, reached[index]) - before)
            computed[index] = before + tokens
            reached[index] = max(reached[index], computed[index])
            scheduled[index] += tokens
            known = served_requests[index].prompt_tokens + sampled[index]
            assert before + tokens <= known
            sampled[index] += computed[index] == known
    assert [again[i] for i in served_requests] == record.requests["recomputed_tokens"].tolist()
    assert [sampled[i] for i in served_requests] == record.requests["output_tokens"].tolist()
    for f in finished:
        r = served_requests[f.index]
        hit = int(record.requests["cached_tokens"][f.index])
        needed = r.prompt_tokens - hit + r.output_tokens - 1
        assert scheduled[f.index] == needed + again[f.index] - gained[f.index]


@settings(deadline=None, max_examples=80)
@given(served())
def test_limits_of_a_pass_are_kept_and_its_sums_are_those_of_its_members(case):
    config, load, _, record, _ = case
    prompts = np.array([r.prompt_tokens for _, r in sorted(load.arrivals, key=lambda a: a[1].index)])
    passes = record.passes
    for p, batch in enumerate(batches(record)):
        assert 0 < sum(tokens for _, _, tokens in batch) <= config.max_num_batched_tokens
        assert len(batch) == passes["num_running"][p] <= config.max_num_seqs
        if config.long_prefill_token_threshold:
            assert max(tokens for _, _, tokens in batch) <= config.long_prefill_token_threshold
        assert len({index for index, _, _ in batch}) == len(batch)
        assert passes["num_prefill_requests"][p] + passes["num_decode_requests"][p] == len(batch)
        assert passes["sum_prefill_tokens"][p] + passes["num_decode_requests"][p] == sum(t for _, _, t in batch)
        assert passes["sum_prefill_kv_tokens"][p] + passes["sum_decode_kv_tokens"][p] == sum(b for _, b, _ in batch)
        assert passes["num_waiting"][p] == (
            passes["queued_num_prefill_requests"][p] + passes["queued_num_decode_requests"][p]
        )
        decoding = [before for index, before, _ in batch if before >= prompts[index]]
        if len(decoding) == passes["num_decode_requests"][p] > 0:
            assert passes["var_decode_kv_tokens"][p] == pytest.approx(np.var(decoding))
    assert passes["num_output_tokens"].sum() == record.requests["output_tokens"].sum()


@settings(deadline=None, max_examples=80)
@given(served())
def test_clocks_only_move_forward_and_nobody_starts_before_it_came(case):
    _, _, timing, record, _ = case
    start, end, period = (record.passes[c] for c in ("start_ns", "end_ns", "period_ns"))
    assert (end > start).all()
    assert (start[1:] >= end[:-1] + timing.between_ns).all()
    went_on = start[1:] == end[:-1] + timing.between_ns
    assert (period[1:] == np.where(went_on, end[1:] - end[:-1], -1)).all()
    requests = record.requests
    admitted = requests["first_admit_pass"] >= 0
    assert (requests["first_admit_ns"][admitted] >= requests["received_ns"][admitted]).all()
    assert (requests["first_admit_ns"][admitted] == start[requests["first_admit_pass"][admitted]]).all()
    assert (np.diff(record.admissions["seq"]) == 1).all()


@settings(deadline=None, max_examples=80)
@given(served())
def test_first_admissions_are_first_come_first_served(case):
    _, load, _, record, _ = case
    first = record.admissions["index"][~record.admissions["is_readmission"]]
    came = {r.index: order for order, (_, r) in enumerate(sorted(load.arrivals, key=lambda a: a[0]))}
    order = [came[int(index)] for index in first]
    assert order == sorted(order)


@settings(deadline=None, max_examples=80)
@given(served())
def test_events_tell_what_the_pool_holds(case):
    """Only held content is evicted, and what stores and evictions leave is what each pass says is held."""
    config, _, _, record, _ = case
    assert (record.passes["kv_blocks_used"] <= config.usable_kv_blocks).all()
    held: Counter[int] = Counter()
    told = events(record)
    for p, cached in enumerate(record.passes["kv_blocks_cached"].tolist()):
        while told and told[0][1] == p:
            kind, _, _, keys = told.pop(0)
            for key in keys:
                held[key] += 1 if kind == "store" else -1
                assert held[key] >= 0
        assert sum(count > 0 for count in held.values()) == cached
        assert sum(held.values()) <= config.usable_kv_blocks
    assert not told
    released = record.events["released_ns"]
    starts = record.passes["start_ns"][record.events["pass_index"]]
    assert ((released >= 0) == (record.events["kind"] == 1)).all()
    assert (released <= starts).all()


@settings(deadline=None, max_examples=60)
@given(configs().flatmap(lambda config: st.tuples(st.just(config), loads(config))), st.integers(1, 20))
def test_how_far_one_call_runs_does_not_matter(case, step_ns):
    config, load = case
    timing = FixedTiming(3, 1, 1, 2)
    at_once, finished = drive(PlainServer(config, timing), load)
    in_steps, finished_in_steps = drive(PlainServer(config, timing), load, step_ns)
    assert finished == finished_in_steps
    assert (at_once.event_keys == in_steps.event_keys).all()
    for table in ("passes", "requests", "stretches", "prefill_chunks", "admissions", "preemptions", "events"):
        for name, column in getattr(at_once, table).items():
            np.testing.assert_array_equal(column, getattr(in_steps, table)[name], err_msg=f"{table}.{name}")


@settings(deadline=None, max_examples=50)
@given(served(), st.integers(0, 40), st.integers(0, 40))
def test_members_of_a_range_are_those_of_the_whole(case, first, length):
    record = case[3]
    whole, part = members(record), members(record, first, first + length)
    within = (whole.pass_index >= first) & (whole.pass_index <= first + length)
    for name in ("pass_index", "index", "computed_before", "scheduled_tokens"):
        np.testing.assert_array_equal(getattr(whole, name)[within], getattr(part, name))
    offsets = part.offsets(first, first + length)
    assert np.diff(offsets).tolist() == [int((part.pass_index == p).sum()) for p in range(first, first + length + 1)]
