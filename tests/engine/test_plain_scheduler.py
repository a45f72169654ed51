"""Cases small enough to work out by hand. Blocks hold four tokens; a pass takes one nanosecond unless said."""

import numpy as np
import pytest
from serving_driver import FixedTiming, Load, batches, drive, events, request, small_config

from engine.errors import GapscopeError
from engine.serving import make_server
from engine.serving.plain import PlainServer
from engine.serving.record import population_variance, private_key


def serve(config, arrivals, aborts=(), timing=None):
    """The record of a load; arrivals are (time, request)."""
    server = PlainServer(config, timing or FixedTiming())
    return drive(server, Load(arrivals, aborts))[0]


def together(*requests):
    """All arrive at time 0."""
    return [(0, r) for r in requests]


def test_token_budget_is_shared_in_order_and_prompts_are_cut_to_it():
    record = serve(small_config(budget=10), together(request(0, 25, 3), request(1, 6, 2)))
    assert batches(record) == [
        [(0, 0, 10)],
        [(0, 10, 10)],
        [(0, 20, 5), (1, 0, 5)],
        [(0, 25, 1), (1, 5, 1)],
        [(0, 26, 1), (1, 6, 1)],
    ]
    # The last token of a prompt is prefill, however alone it is.
    assert record.passes["num_prefill_requests"].tolist() == [1, 1, 2, 1, 0]
    assert record.passes["num_decode_requests"].tolist() == [0, 0, 0, 1, 2]
    assert record.passes["sum_prefill_tokens"].tolist() == [10, 10, 10, 1, 0]
    assert record.passes["sum_prefill_kv_tokens"].tolist() == [0, 10, 20, 5, 0]
    assert record.passes["sum_decode_kv_tokens"].tolist() == [0, 0, 0, 25, 32]
    assert record.passes["var_decode_kv_tokens"].tolist()[3:] == [0.0, 100.0]
    assert record.passes["var_prefill_length"].tolist()[2] == pytest.approx(9.5**2)
    assert np.isnan(record.passes["var_prefill_length"][4])
    assert record.passes["num_output_tokens"].tolist() == [0, 0, 1, 2, 2]


def test_threshold_limits_what_a_pass_computes_of_one_prompt():
    record = serve(small_config(budget=10, threshold=4), together(request(0, 9, 1), request(1, 9, 1)))
    assert batches(record) == [[(0, 0, 4), (1, 0, 4)], [(0, 4, 4), (1, 4, 4)], [(0, 8, 1), (1, 8, 1)]]


def test_head_of_the_queue_holds_up_whoever_would_fit():
    # Eight blocks: the first holds 5, the second needs 4, the third 1.
    record = serve(small_config(blocks=8), together(request(0, 20, 2), request(1, 16, 1), request(2, 4, 1)))
    assert [[member[0] for member in batch] for batch in batches(record)] == [[0], [0], [1, 2]]
    assert record.passes["num_waiting"].tolist() == [2, 2, 0]
    assert record.passes["queued_num_prefill_requests"].tolist() == [2, 2, 0]
    assert record.passes["queued_sum_prefill_tokens"].tolist() == [20, 20, 0]
    assert record.passes["queued_var_prefill_length"].tolist()[:2] == [36.0, 36.0]
    assert record.passes["kv_blocks_used"].tolist() == [5, 6, 5]


def test_admission_looks_at_the_whole_prompt_or_only_at_its_first_chunk():
    load = together(request(0, 8, 4), request(1, 16, 1))
    whole = serve(small_config(blocks=5, budget=10), load)
    assert [[m[0] for m in batch] for batch in batches(whole)] == [[0], [0], [0], [0], [1], [1]]
    chunk = serve(small_config(blocks=5, budget=10, reserve_full_prompt=False), load)
    assert batches(chunk)[:2] == [[(0, 0, 8), (1, 0, 2)], [(0, 8, 1)]]  # then the newcomer loses its block again
    assert chunk.requests["preemptions"].tolist() == [0, 1]


def test_seats_limit_how_many_run():
    record = serve(small_config(seats=2), together(*(request(i, 3, 2) for i in range(3))))
    assert [[m[0] for m in batch] for batch in batches(record)] == [[0, 1], [0, 1], [2], [2]]
    assert record.passes["num_running"].tolist() == [2, 2, 1, 1]


@pytest.mark.parametrize(("prompt", "hit"), [(8, 4), (9, 8), (11, 8), (12, 8), (13, 12)])
def test_a_hit_leaves_at_least_the_last_token(prompt, hit):
    keys = [1, 2, 3]
    record = serve(small_config(), [(0, request(0, 13, 1, keys)), (5, request(1, prompt, 1, keys))])
    assert record.requests["cached_tokens"].tolist() == [0, hit]
    assert batches(record)[1] == [(1, hit, prompt - hit)]
    assert record.admissions["hit_blocks"].tolist() == [0, hit // 4]


def test_blocks_can_be_shared_within_the_pass_that_computes_them():
    record = serve(small_config(), together(request(0, 9, 1, [1, 2]), request(1, 9, 1, [1, 2])))
    assert batches(record) == [[(0, 0, 9), (1, 8, 1)]]
    assert record.passes["kv_blocks_used"].tolist() == [4]  # two shared, and a partial one each
    assert events(record) == [("store", 0, 0, [1, 2])]


def test_running_requests_register_before_new_ones_look():
    # The first prompt ends in pass 1; the second arrives for that pass and shares all three blocks.
    record = serve(small_config(budget=8), [(0, request(0, 13, 1, [1, 2, 3])), (1, request(1, 13, 1, [1, 2, 3]))])
    assert batches(record) == [[(0, 0, 8)], [(0, 8, 5), (1, 12, 1)]]


def test_without_prefix_caching_nothing_is_shared_or_stored():
    record = serve(small_config(prefix_caching=False), together(request(0, 9, 1, [1, 2]), request(1, 9, 1, [1, 2])))
    assert batches(record) == [[(0, 0, 9), (1, 0, 9)]]
    assert events(record) == []
    assert record.passes["kv_blocks_cached"].tolist() == [0]


def test_two_blocks_of_one_content_are_stored_and_evicted_each_for_itself():
    # Both prompts are two whole blocks: the last token rule makes the second compute its own second block.
    load = [*together(request(0, 8, 1, [1, 2]), request(1, 8, 1, [1, 2])), (5, request(2, 12, 1, [7, 8, 9]))]
    record = serve(small_config(blocks=3), load)
    assert batches(record) == [[(0, 0, 8), (1, 4, 4)], [(2, 0, 12)]]
    assert record.passes["kv_blocks_cached"].tolist() == [2, 3]
    # Let go: the first request's second block, then the second's; the shared first block only by the second.
    assert events(record) == [
        ("store", 0, 0, [1, 2]),
        ("store", 0, 1, [2]),
        ("evict", 1, 2, [2, 2, 1]),
        ("store", 1, 2, [7, 8, 9]),
    ]


def test_eviction_takes_the_tail_of_a_prefix_first():
    load = [(0, request(0, 12, 1, [1, 2, 3])), (5, request(1, 8, 1, [7, 8])), (9, request(2, 9, 1, [1, 2]))]
    record = serve(small_config(blocks=4), load)
    assert events(record)[1] == ("evict", 1, 1, [3])  # one block was never used
    assert record.requests["cached_tokens"].tolist() == [0, 0, 8]
    assert record.events["released_ns"].tolist()[:2] == [-1, 1]


def test_blocks_past_the_given_keys_are_private_but_kept():
    record = serve(small_config(), [(0, request(3, 9, 4, [1]))])
    assert events(record) == [("store", 0, 3, [1, private_key(3, 1)]), ("store", 3, 3, [private_key(3, 2)])]
    assert private_key(3, 1) < 0
    assert record.requests["received_ns"].tolist() == [-1, -1, -1, 0]


def test_keys_past_the_last_token_with_kv_are_ignored():
    record = serve(small_config(), [(0, request(0, 7, 2, [1, 2, 3]))])  # eight tokens have KV
    assert events(record) == [("store", 0, 0, [1]), ("store", 1, 0, [2])]


def preemption():
    """Two requests of 7 + 6 tokens in four blocks: the second gives up its two when the first needs a third."""
    load = together(request(0, 7, 6, [1, 2, 3]), request(1, 7, 6, [11, 12, 13]), request(2, 3, 1))
    return serve(small_config(blocks=4, seats=2), load)


def test_last_admitted_is_preempted_and_nobody_is_admitted_in_that_pass():
    record = preemption()
    assert batches(record)[:6] == [
        [(0, 0, 7), (1, 0, 7)],
        [(0, 7, 1), (1, 7, 1)],
        [(0, 8, 1)],
        [(0, 9, 1)],
        [(0, 10, 1)],
        [(0, 11, 1)],
    ]
    assert {c: v.tolist() for c, v in record.preemptions.items()} == {
        "index": [1],
        "pass_index": [2],
        "num_blocks": [2],
    }
    assert record.passes["num_preempted"].tolist()[:4] == [0, 0, 1, 0]
    assert record.passes["queued_num_decode_requests"].tolist()[:7] == [0, 0, 1, 1, 1, 1, 0]
    assert record.passes["queued_sum_decode_kv_tokens"].tolist()[2:4] == [9, 9]  # its known tokens
    assert events(record)[4] == ("evict", 2, 0, [12])  # its second block; the first one stays


def test_preempted_request_comes_back_first_and_hits_its_own_surviving_block():
    record = preemption()
    assert batches(record)[6:] == [[(1, 4, 5), (2, 0, 3)], [(1, 9, 1)], [(1, 10, 1)], [(1, 11, 1)]]
    assert record.requests["recomputed_tokens"].tolist() == [0, 4, 0]
    assert record.requests["cached_tokens"].tolist() == [0, 0, 0]
    assert record.requests["first_admit_pass"].tolist() == [0, 0, 6]
    assert record.requests["output_tokens"].tolist() == [6, 6, 1]
    again = record.admissions
    assert again["is_readmission"].tolist() == [False, False, True, False]
    assert (again["ordinal"][2], again["cached_tokens"][2], again["seq"][2]) == (1, 4, 2)
    # Nine known tokens, four in the surviving block: prefill, and no decode.
    assert record.passes["num_prefill_requests"].tolist()[6:] == [2, 0, 0, 0]
    assert {c: v.tolist() for c, v in record.stretches.items()} == {
        "index": [0, 1, 1, 2],
        "seq": [0, 1, 2, 3],
        "first_pass": [0, 0, 6, 6],
        "last_pass": [5, 1, 9, 6],
        "computed_after_first": [7, 7, 9, 3],
    }


def test_request_that_is_last_itself_is_preempted_and_ends_the_pass():
    # The second prompt takes the last block; when it needs one more it is itself the last to have come.
    record = serve(small_config(blocks=4), together(request(0, 9, 3, [1, 2]), request(1, 4, 3, [5])))
    assert batches(record) == [[(0, 0, 9), (1, 0, 4)], [(0, 9, 1)], [(0, 10, 1)], [(1, 4, 1)], [(1, 5, 1)]]
    # It lacks one token when it comes back, and yet that is a prefill.
    assert record.passes["num_prefill_requests"].tolist() == [2, 0, 0, 1, 0]
    assert record.requests["recomputed_tokens"].tolist() == [0, 0]


def test_recompute_that_ends_in_one_token_counts_as_decode_there():
    config = small_config(blocks=4, budget=4, prefix_caching=False)
    record = serve(config, together(request(0, 7, 3), request(1, 4, 5)))
    assert batches(record)[:6] == [
        [(0, 0, 4)],
        [(0, 4, 3), (1, 0, 1)],
        [(0, 7, 1), (1, 1, 3)],
        [(0, 8, 1)],
        [(1, 0, 4)],
        [(1, 4, 1)],
    ]
    assert record.passes["num_prefill_requests"].tolist()[4:6] == [1, 0]
    assert record.passes["num_decode_requests"].tolist()[4:6] == [0, 1]
    assert record.prefill_chunks["scheduled_tokens"].tolist() == [4, 3, 1, 3, 4, 1]
    assert record.stretches["first_pass"].tolist() == [1, 2, 5]
    assert record.requests["recomputed_tokens"].tolist() == [0, 4]


def test_abort_frees_blocks_at_once_and_leaves_the_finished_alone():
    load = together(request(0, 8, 9), request(1, 16, 1), request(2, 4, 1))
    record = serve(small_config(blocks=5), load, aborts=[(2, 0), (3, 0), (9, 2)])
    assert [[m[0] for m in batch] for batch in batches(record)] == [[0], [0], [1, 2]]
    assert record.requests["aborted"].tolist() == [True, False, False]
    assert record.requests["output_tokens"].tolist() == [2, 1, 1]


def test_abort_of_a_waiting_request_lets_the_next_one_in():
    load = together(request(0, 8, 9), request(1, 16, 1), request(2, 4, 1))
    record = serve(small_config(blocks=5), load, aborts=[(1, 1)])
    assert [[m[0] for m in batch] for batch in batches(record)][:2] == [[0], [0, 2]]
    assert record.requests["first_admit_ns"].tolist() == [0, -1, 1]
    assert record.requests["cached_tokens"].tolist() == [0, -1, 0]


@pytest.mark.parametrize(
    ("prompt", "output", "words"),
    [(30, 4, "33 |need 9 blocks of 4 tokens, the pool has 8"), (0, 4, "0 prompt"), (4, 0, "0 output")],
)
def test_request_that_can_never_run_is_refused_with_numbers(prompt, output, words):
    server = PlainServer(small_config(blocks=8), FixedTiming())
    with pytest.raises(GapscopeError, match=words.split("|")[-1]):
        server.receive(request(0, prompt, output), 0)
    assert not server.has_work
    assert server.finish().requests["received_ns"].tolist() == [-1]


def test_largest_request_that_fits_runs():
    record = serve(small_config(blocks=8), [(0, request(0, 29, 4))])  # 32 tokens have KV
    assert record.requests["output_tokens"].tolist() == [4]
    assert record.passes["kv_blocks_used"].max() == 8


def test_clock_runs_from_pass_to_pass_with_the_time_between_them():
    timing = FixedTiming(duration_ns=100, between_ns=7, per_token_ns=10, per_decode_ns=1)
    load = [(50, request(0, 3, 2)), (60, request(1, 2, 2)), (1000, request(2, 1, 1))]
    record = serve(small_config(), load, timing=timing)
    # Pass 0: 3 prompt tokens; pass 1 takes the second, which came during it: 2 tokens and a decode; pass 2: a decode.
    assert record.passes["start_ns"].tolist() == [50, 187, 315, 1000]
    assert record.passes["end_ns"].tolist() == [180, 308, 416, 1110]
    assert record.passes["period_ns"].tolist() == [-1, 128, 108, -1]
    assert record.requests["received_ns"].tolist() == [50, 187, 1000]
    assert record.requests["first_admit_ns"].tolist() == [50, 187, 1000]
    assert record.requests["first_token_pass"].tolist() == [0, 1, 3]
    assert record.requests["last_token_pass"].tolist() == [1, 2, 3]


def test_advance_stops_at_a_finish_and_before_the_limit():
    server = PlainServer(small_config(), FixedTiming(duration_ns=10, between_ns=5))
    server.receive(request(0, 3, 5), 0)
    server.receive(request(1, 3, 2), 0)
    assert server.advance(0, 15) == (15, [])  # the next pass would start at the limit
    now, finished = server.advance(15, None)
    assert (now, [(f.index, f.pass_index, f.end_ns) for f in finished]) == (30, [(1, 1, 25)])
    assert server.advance(30, 31)[0] == 45  # one pass at least
    assert server.has_work
    now, finished = server.advance(45, None)
    assert [(f.index, f.pass_index, f.end_ns) for f in finished] == [(0, 4, 70)]
    assert not server.has_work
    with pytest.raises(ValueError, match="nothing"):
        server.advance(now, None)


def test_requests_that_finish_together_are_told_in_running_order():
    server = PlainServer(small_config(), FixedTiming())
    for index in (0, 1, 2):
        server.receive(request(index, 3, 1), 0)
    assert [f.index for f in server.advance(0, None)[1]] == [0, 1, 2]


def test_events_are_left_out_on_request():
    record = serve(small_config(record_events=False), together(request(0, 9, 1, [1, 2])))
    assert len(record.event_keys) == 0
    assert events(record) == []
    assert record.passes["kv_blocks_cached"].tolist() == [2]


def test_budget_below_the_seats_lets_the_last_ones_wait_their_turn():
    record = serve(small_config(budget=2), together(request(0, 1, 3), request(1, 2, 4)))
    assert batches(record) == [
        [(0, 0, 1), (1, 0, 1)],
        [(0, 1, 1), (1, 1, 1)],
        [(0, 2, 1), (1, 2, 1)],
        [(1, 3, 1)],
        [(1, 4, 1)],
    ]
    starved = serve(small_config(budget=1, threshold=1, seats=2), together(request(0, 1, 3), request(1, 2, 2)))
    assert [[m[0] for m in batch] for batch in batches(starved)] == [[0], [0], [0], [1], [1], [1]]


@pytest.mark.parametrize(
    ("config", "core", "expected"),
    [
        (small_config(), "auto", "SkippingServer"),
        (small_config(), "plain", "PlainServer"),
        (small_config(threshold=8), "auto", "SkippingServer"),
        (small_config(seats=9, budget=8), "auto", "PlainServer"),
    ],
)
def test_auto_takes_the_fast_core_where_it_can(config, core, expected):
    assert type(make_server(config, FixedTiming(), core)).__name__ == expected


def test_empty_server_has_an_empty_record():
    record = PlainServer(small_config(), FixedTiming()).finish()
    assert batches(record) == []
    assert all(len(column) == 0 for column in record.requests.values())


def test_unknown_core_is_named():
    with pytest.raises(GapscopeError, match=r"'turbo'.*auto, skipping, plain"):
        make_server(small_config(), FixedTiming(), core="turbo")


def test_variance_is_exact_for_large_numbers():
    values = [900_000_001, 900_000_003]  # their squares do not fit a double
    count, total, squares = (np.array([v]) for v in (2, sum(values), sum(v * v for v in values)))
    assert population_variance(count, total, squares).tolist() == [1.0]
