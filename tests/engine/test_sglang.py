"""SGLang's rules on cases worked out by hand. Pages hold four tokens; a pass takes one nanosecond unless said."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from serving_driver import FixedTiming, Load, batches, drive, events, request, small_config

from engine.errors import GapscopeError
from engine.knobs import resolve
from engine.serving import make_server
from engine.serving.plain import PlainServer
from engine.serving.rules import SglangRules
from engine.serving.sglang import SglangServer
from engine.serving.speculation import Speculation


def config(blocks=1000, seats=100, policy="fcfs", page=4, **rules):
    return replace(
        small_config(blocks=blocks, seats=seats, block_size=page),
        engine="sglang",
        policy=policy,
        sglang=SglangRules(**rules),
    )


def serve(rules, *arrivals, timing=None):
    """The record of a load; arrivals are (time, request)."""
    server = make_server(rules, timing or FixedTiming())
    assert isinstance(server, SglangServer)
    record, _ = drive(server, Load(arrivals))
    server.check_integrity()
    return record


def members_of(record):
    return [[member[0] for member in batch] for batch in batches(record)]


def test_a_pass_with_prompts_holds_no_decodes():
    record = serve(config(), (0, request(0, 8, 4)), (2, request(1, 6, 2)))
    assert batches(record) == [[(0, 0, 8)], [(0, 8, 1)], [(1, 0, 6)], [(0, 9, 1), (1, 6, 1)], [(0, 10, 1)]]
    assert record.passes["num_prefill_requests"].tolist() == [1, 0, 1, 0, 0]
    assert record.passes["num_decode_requests"].tolist() == [0, 1, 0, 2, 1]
    assert record.passes["sum_decode_kv_tokens"].tolist() == [0, 8, 0, 15, 10]
    assert record.passes["num_running"].tolist() == [1, 1, 2, 2, 1]
    assert record.passes["num_output_tokens"].tolist() == [1, 1, 1, 2, 1]
    assert record.requests["first_token_pass"].tolist() == [0, 2]
    assert record.requests["last_token_pass"].tolist() == [4, 3]
    assert record.requests["output_tokens"].tolist() == [4, 2]


def test_prompts_are_cut_to_whole_pages_one_at_a_time():
    record = serve(config(chunked_prefill_size=10), (0, request(0, 21, 1)), (0, request(1, 4, 1)))
    # Ten tokens are two pages. The third chunk leaves a page, which is what the other prompt needs.
    assert batches(record) == [[(0, 0, 8)], [(0, 8, 8)], [(0, 16, 5)], [(1, 0, 4)]]
    aligned = serve(config(chunked_prefill_size=8), (0, request(0, 20, 1)), (0, request(1, 4, 1)))
    assert batches(aligned) == [[(0, 0, 8)], [(0, 8, 8)], [(0, 16, 4), (1, 0, 4)]]
    whole = serve(config(chunked_prefill_size=0), (0, request(0, 20, 1)), (0, request(1, 4, 1)))
    assert batches(whole) == [[(0, 0, 20), (1, 0, 4)]]


def test_a_pass_takes_its_first_prompt_however_long_and_no_other_beyond_the_limit():
    rules = {"chunked_prefill_size": 0, "max_prefill_tokens": 12}
    record = serve(config(**rules), (0, request(0, 20, 1)), (0, request(1, 4, 1)), (0, request(2, 4, 1)))
    assert batches(record) == [[(0, 0, 20)], [(1, 0, 4), (2, 0, 4)]]


def test_with_mixed_chunks_decodes_ride_along():
    record = serve(config(mixed_chunk=True, chunked_prefill_size=9), (0, request(0, 8, 4)), (2, request(1, 12, 2)))
    # One decode leaves eight of the nine tokens.
    assert batches(record) == [[(0, 0, 8)], [(0, 8, 1)], [(0, 9, 1), (1, 0, 8)], [(0, 10, 1), (1, 8, 4)], [(1, 12, 1)]]
    assert record.passes["num_decode_requests"].tolist() == [0, 1, 1, 1, 1]


def test_admission_holds_room_for_a_share_of_the_outputs_to_come():
    # Ten pages. After its prefill the first holds two and has 19 tokens to sample; 0.7 of them are 13.3 of the 32 left.
    load = (0, request(0, 8, 20)), (1, request(1, 11, 7)), (1, request(2, 12, 7))
    record = serve(config(blocks=10), *load)
    assert members_of(record)[:2] == [[0], [1]]  # 11 + 7 are below 18.7; for 12 + 7 nothing is left
    assert members_of(serve(config(blocks=10), load[0], load[2]))[:2] == [[0], [0]]  # 19 are not
    bold = serve(config(blocks=10, schedule_conservativeness=0), load[0], load[2])
    assert members_of(bold)[:2] == [[0], [2]]
    # Outputs count for no more than the clip: 12 + 2 are below 32 - 0.7 * 2.
    clipped = serve(config(blocks=10, clip_max_new_tokens=2), load[0], load[2])
    assert members_of(clipped)[:2] == [[0], [2]]


def test_who_is_refused_waits_until_somebody_leaves():
    # Room for the second would be there after some decode passes, as the share falls: it is not asked again.
    record = serve(config(blocks=10), (0, request(0, 8, 20)), (1, request(1, 12, 7)))
    assert record.admissions["pass_index"].tolist() == [0, 20]
    assert record.passes["num_waiting"].tolist()[:20] == [0] + [1] * 19
    assert record.passes["queued_sum_prefill_tokens"].tolist()[1] == 12


def test_the_share_falls_from_0_7_to_a_seventh_of_it_in_600_decode_steps_and_is_set_back_by_idling():
    server = SglangServer(config(blocks=2000), FixedTiming())
    server.receive(request(0, 8, 1000), 0)
    ratios = []
    now = 0
    for until in (2, 302, 602, 902):
        now, _ = server.advance(now, until)
        ratios.append(server._share.value)
    # The first pass is the prefill; then 1, 301, 601 and 901 steps.
    expected = [0.7 - 0.602 * steps / 600 for steps in (1, 301)] + [0.098, 0.098]
    assert ratios == pytest.approx(expected)
    server.advance(now, None)
    assert not server.has_work
    server.receive(request(1, 8, 4), now)
    assert server._share.value == pytest.approx(0.7)


def test_where_pages_run_short_the_one_with_the_fewest_outputs_goes_to_the_back_of_the_queue():
    # Six pages; nothing is held for outputs but one token each.
    rules = config(blocks=6, clip_max_new_tokens=1, schedule_conservativeness=0)
    record = serve(rules, (0, request(0, 8, 8)), (0, request(1, 8, 8)))
    # Both open their third page in pass 1; in pass 5 both need a fourth. They are even, so the last of them gives way:
    # its own page is free then, its prompt stays cached. To come back it needs 5 tokens besides the two pages it hits.
    assert batches(record) == [
        [(0, 0, 8), (1, 0, 8)],
        [(0, 8, 1), (1, 8, 1)],
        [(0, 9, 1), (1, 9, 1)],
        [(0, 10, 1), (1, 10, 1)],
        [(0, 11, 1), (1, 11, 1)],
        [(0, 12, 1)],
        [(0, 13, 1)],
        [(0, 14, 1)],
        [(1, 8, 5)],
        [(1, 13, 1)],
        [(1, 14, 1)],
    ]
    assert {name: column.tolist() for name, column in record.preemptions.items()} == {
        "index": [1],
        "pass_index": [5],
        "num_blocks": [3],
    }
    assert record.requests["recomputed_tokens"].tolist() == [0, 4]
    assert record.passes["kv_blocks_used"].tolist() == [4, 6, 6, 6, 6, 4, 4, 4, 4, 4, 4]
    assert record.passes["num_preempted"].tolist() == [0] * 5 + [1] + [0] * 5
    assert record.passes["queued_num_decode_requests"].tolist() == [0] * 5 + [1] * 3 + [0] * 3
    assert record.admissions["is_readmission"].tolist() == [False, False, True]
    assert record.admissions["cached_tokens"].tolist() == [0, 0, 8]


def test_the_share_after_a_retraction():
    rules = config(blocks=6, clip_max_new_tokens=1, schedule_conservativeness=0)
    server = SglangServer(rules, FixedTiming())
    server.receive(request(0, 4, 18), 0)
    server.receive(request(1, 4, 18), 0)
    ratios = set()
    now = 0
    while not len(server._log.preemptions):
        ratios.add(server._share.value)
        now, _ = server.advance(now, now + 1)
    assert ratios == {0.0}
    # 13 pages' worth would be needed in pass 9: the one that stays has sampled 9 of its 18 tokens by then.
    assert server._log.preemptions == [(1, 9, 3)]
    assert server._share.value == min(1, (9 + 20) / (18 + 1))


def test_drafts_are_verified_in_decode_passes_alone():
    # Two drafts, the first always accepted, the second never: 2 tokens a pass, less where fewer are asked for.
    rules = replace(config(), speculation=Speculation(2, (1.0, 0.0)))
    record = serve(rules, (0, request(0, 8, 8)), (2, request(1, 6, 2)))
    assert batches(record) == [
        [(0, 0, 8)],
        [(0, 8, 3)],
        [(1, 0, 6)],
        [(0, 10, 3), (1, 6, 3)],
        [(0, 12, 3)],
        [(0, 14, 3)],
    ]
    assert record.verify_width == 3
    assert record.passes["num_output_tokens"].tolist() == [1, 2, 1, 3, 2, 1]
    assert record.passes["sum_decode_kv_tokens"].tolist() == [0, 8, 0, 16, 12, 14]
    assert record.requests["output_tokens"].tolist() == [8, 2]
    assert record.stretches["first_pass"].tolist() == [0, 2, 3]
    assert record.stretches["computed_after_first"].tolist() == [8, 6, 12]
    assert record.bursts.tolist() == [1, 2, 1, 1, 2, 2, 1]
    # Pages of four for the tokens computed and three more: 11; 11 and 6; 13 and 9; 15; 17.
    assert record.passes["kv_blocks_used"].tolist() == [2, 3, 5, 7, 4, 5]


def test_with_drafts_the_last_to_decode_is_retracted():
    # Eight pages. Three more tokens need 5 + 4 pages in pass 2. Both have sampled 3 tokens: without drafts the longer
    # prompt would go; so it is the last of the batch. The 11 tokens that it comes back with hit 8, and 2 are computed
    # again; they have room when the other is done.
    rules = replace(
        config(blocks=8, clip_max_new_tokens=1, schedule_conservativeness=0), speculation=Speculation(2, (1.0, 0.0))
    )
    record = serve(rules, (0, request(0, 12, 9)), (0, request(1, 8, 9)))
    assert batches(record) == [
        [(0, 0, 12), (1, 0, 8)],
        [(0, 12, 3), (1, 8, 3)],
        [(0, 14, 3)],
        [(0, 16, 3)],
        [(0, 18, 3)],
        [(1, 8, 3)],
        [(1, 11, 3)],
        [(1, 13, 3)],
        [(1, 15, 3)],
    ]
    assert {name: column.tolist() for name, column in record.preemptions.items()} == {
        "index": [1],
        "pass_index": [2],
        "num_blocks": [3],
    }
    assert record.requests["recomputed_tokens"].tolist() == [0, 2]
    assert record.bursts.tolist() == [1, 2, 2, 2, 2, 1, 2, 1, 2, 2, 1]


def test_what_was_computed_can_be_hit_from_the_next_pass_on_and_is_held_once():
    keys = [1, 2]
    record = serve(config(), (0, request(0, 9, 1, keys)), (0, request(1, 9, 1, keys)), (5, request(2, 9, 1, keys)))
    assert record.requests["cached_tokens"].tolist() == [0, 0, 8]
    assert events(record) == [("store", 0, 0, [1, 2])]
    assert record.passes["kv_blocks_used"].tolist() == [6, 3]
    assert record.passes["kv_blocks_cached"].tolist() == [0, 2]


@pytest.mark.parametrize(("prompt", "hit"), [(4, 0), (5, 4), (8, 4), (9, 8), (12, 8), (13, 12)])
def test_a_hit_is_whole_pages_and_leaves_at_least_the_last_token(prompt, hit):
    record = serve(config(), (0, request(0, 13, 1, [1, 2, 3])), (5, request(1, prompt, 1, [1, 2, 3])))
    assert record.requests["cached_tokens"].tolist() == [0, hit]


def test_outputs_are_cached_when_their_request_ends():
    # 6 tokens of prompt and 7 of output, of which the last has no KV: three pages.
    record = serve(config(), (0, request(0, 6, 7, [1, 2, 3])), (20, request(1, 14, 1, [1, 2, 3])))
    assert events(record) == [("store", 0, 0, [1]), ("store", 6, 0, [2, 3])]
    assert record.requests["cached_tokens"].tolist() == [0, 12]


def test_leaves_go_first_and_as_a_whole_least_recently_used_before_others():
    load = (
        (0, request(0, 13, 1, [1, 2, 3])),
        (5, request(1, 13, 1, [1, 2, 9])),  # leaves the first after two pages
        (10, request(2, 13, 1, [20, 21, 22])),  # needs four pages, two are empty
        (15, request(3, 9, 1, [1, 2])),
    )
    record = serve(config(blocks=6), *load)
    assert events(record) == [
        ("store", 0, 0, [1, 2, 3]),
        ("store", 1, 1, [9]),
        ("evict", 2, 2, [3]),
        ("evict", 2, 2, [9]),
        ("store", 2, 2, [20, 21, 22]),
    ]
    assert record.requests["cached_tokens"].tolist() == [0, 8, 0, 8]
    assert record.events["released_ns"].tolist() == [-1, -1, 1, 6, -1]


def test_a_leaf_that_is_held_stays():
    # The first is still decoding when the third needs pages: what the second left behind goes.
    load = (0, request(0, 9, 9, [1, 2])), (2, request(1, 9, 1, [5, 6])), (4, request(2, 13, 1, [7, 8, 9]))
    record = serve(config(blocks=8), *load)
    assert [row for row in events(record) if row[0] == "evict"] == [("evict", 4, 2, [6, 5])]
    assert record.requests["output_tokens"].tolist() == [9, 1, 1]


def test_longest_prefix_first():
    # One seat. The third hits what the first computed, and goes before the second.
    load = (0, request(0, 9, 3, [1, 2])), (1, request(1, 9, 1, [5, 6])), (1, request(2, 9, 1, [1, 2]))
    assert members_of(serve(config(seats=1), *load)) == [[0], [0], [0], [1], [2]]
    record = serve(config(seats=1, policy="lpm"), *load)
    assert members_of(record) == [[0], [0], [0], [2], [1]]
    assert record.admissions["waiting_ahead"].tolist() == [0, 1, 0]


def test_longest_prefix_first_is_given_up_above_128_waiting():
    crowd = [(1, request(2 + n, 9, 1, [100 + n, 400 + n])) for n in range(127)]
    load = (0, request(0, 9, 3, [1, 2])), (1, request(1, 9, 1, [5, 6])), *crowd
    last = request(129, 9, 1, [1, 2])
    record = serve(config(seats=1, policy="lpm"), *load, (1, last))
    # 129 wait when the seat falls free, so the first of them gets it; then 128 do.
    assert record.admissions["index"].tolist()[:3] == [0, 1, 129]


def test_of_those_that_share_an_uncached_prefix_one_goes_first():
    # Pages of 32 tokens, two prompts to a pass: the second shares a page with the first, so the third goes before it.
    load = [(0, request(n, 40, 1, keys)) for n, keys in enumerate(([1], [1], [7]))]
    record = serve(config(page=32, policy="lpm", chunked_prefill_size=128), *load)
    assert batches(record) == [[(0, 0, 40), (2, 0, 40)], [(1, 32, 8)]]
    assert record.admissions["waiting_ahead"].tolist() == [0, 1, 0]
    # Sixteen tokens in common are too few.
    short = [(0, request(n, 20, 1, keys)) for n, keys in enumerate(([1], [1], [7]))]
    by_age = serve(config(page=16, policy="lpm", chunked_prefill_size=64), *short)
    assert batches(by_age) == [[(0, 0, 20), (1, 0, 20)], [(2, 0, 20)]]


def test_an_aborted_request_leaves_what_it_computed_behind():
    server = SglangServer(config(), FixedTiming())
    load = Load([(0, request(0, 9, 50, [1, 2])), (8, request(1, 9, 1, [1, 2]))], [(5, 0)])
    record, _ = drive(server, load)
    assert record.requests["aborted"].tolist() == [True, False]
    assert record.requests["output_tokens"].tolist() == [5, 1]
    assert record.requests["cached_tokens"].tolist() == [0, 8]
    server.check_integrity()


def test_without_prefix_caching_nothing_is_kept():
    rules = replace(config(), prefix_caching=False)
    record = serve(rules, (0, request(0, 9, 3, [1, 2])), (5, request(1, 9, 1, [1, 2])))
    assert record.requests["cached_tokens"].tolist() == [0, 0]
    assert record.passes["kv_blocks_cached"].max() == 0
    assert record.passes["kv_blocks_used"].tolist() == [3, 3, 3, 3]
    assert not len(record.events["kind"])


def test_passes_between_events_go_at_once():
    class Counting(FixedTiming):
        asked = 0

        def pass_ns(self, *batch):
            self.asked += 1
            return super().pass_ns(*batch)

    timing = Counting()
    server = SglangServer(config(blocks=2000), timing)
    record, _ = drive(server, Load([(0, request(0, 8, 1000)), (0, request(1, 8, 500))]))
    assert len(record.passes["start_ns"]) == timing.asked == 1000
    assert len(server._log.segments) // 14 == 3  # the prefill of both, then up to each finish
    np.testing.assert_array_equal(np.diff(record.passes["sum_decode_kv_tokens"])[1:499], 2)


def test_what_can_never_be_admitted_is_refused():
    server = SglangServer(config(blocks=5), FixedTiming())
    with pytest.raises(GapscopeError, match=r"15 \+ 5 are not below 20"):
        server.receive(request(0, 15, 5), 0)
    server.receive(request(1, 14, 5), 0)


def test_an_engine_has_its_own_settings():
    with pytest.raises(GapscopeError, match="mixed_chunk=true has no effect with engine=vllm"):
        resolve({"mixed_chunk": True})
    with pytest.raises(GapscopeError, match="policy=lpm has no effect with engine=vllm"):
        resolve({"policy": "lpm"})
    with pytest.raises(GapscopeError, match="max_num_batched_tokens=4096 has no effect with engine=sglang"):
        resolve({"engine": "sglang", "max_num_batched_tokens": 4096})
    with pytest.raises(GapscopeError, match="one core"):
        resolve({"engine": "sglang", "core": "plain"})
    with pytest.raises(GapscopeError, match="less than a block"):
        resolve({"engine": "sglang", "chunked_prefill_size": 8})
    assert resolve({"engine": "vllm"}, {"engine": "sglang", "policy": "lpm"})["policy"] == "fcfs"
    assert resolve({"engine": "sglang"}, {"max_num_batched_tokens": 4096})["max_num_batched_tokens"] == 2048
    assert isinstance(make_server(small_config(), FixedTiming(), "plain"), PlainServer)
    with pytest.raises(GapscopeError, match="one core"):
        make_server(config(), FixedTiming(), "plain")
