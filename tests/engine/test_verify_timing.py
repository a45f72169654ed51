"""What verifying drafts costs: by hand for the fixed source, and cheap answers equal to explained ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import GapscopeError
from engine.knobs import resolve
from engine.replay.loop import server_config
from engine.timing import build_timing
from engine.timing.contract import PassQueries

# 1,000 us per pass, 10 us per decoding request, 5 ns per KV token.
FIXED = {"timing": "fixed", "fixed_pass_us": 1000, "fixed_decode_request_us": 10, "fixed_kv_token_ns": 5}
MTP = {"spec_method": "mtp", "spec_tokens": 3, "spec_mean_length": 2.49}


def test_verification_counts_as_so_many_decodes_that_read_the_kv_once():
    # 4 requests x 4 tokens = 16 decodes: 1,000 + 160 us + 2,000 tokens x 5 ns = 1,170 us.
    timing = build_timing(resolve(FIXED | MTP))
    assert timing.pass_ns(0, 0, 0, 4, 2000) == 1_170_000
    assert build_timing(resolve(FIXED | MTP | {"spec_pricing": "as_measured"})).pass_ns(0, 0, 0, 4, 2000) == 1_050_000


def test_drafting_adds_a_share_of_a_plain_decode_per_draft():
    # Three drafts at a tenth each of 1,000 + 40 + 10 us: 315 us more.
    timing = build_timing(resolve(FIXED | MTP | {"spec_draft_cost": 0.1}))
    assert timing.pass_ns(0, 0, 0, 4, 2000) == 1_170_000 + 315_000
    assert timing.pass_ns(1, 100, 0, 0, 0) == build_timing(resolve(FIXED)).pass_ns(1, 100, 0, 0, 0)
    assert timing.describe()["speculation"] == {"draft_tokens": 3, "pricing": "tokens", "draft_cost": 0.1}


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 900), st.integers(0, 900), st.integers(0, 9), st.integers(0, 9999)),
        min_size=1,
        max_size=20,
    ),
    cost=st.sampled_from([0, 0.07, 0.5]),
)
def test_an_explanation_adds_up_to_the_answer(rows, cost):
    timing = build_timing(resolve(FIXED | MTP | {"spec_draft_cost": cost}))
    explained = timing.explain(PassQueries(*(np.array(column, np.int64) for column in zip(*rows, strict=True))))
    assert explained.total_ns.tolist() == [timing.pass_ns(*row) for row in rows]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"spec_tokens": 3}, "spec_method=none and spec_tokens=3"),
        ({"spec_method": "mtp"}, "spec_method=mtp and spec_tokens=0"),
        ({"spec_seed": 3}, "no effect without drafts"),
        (MTP | {"max_num_batched_tokens": 1000}, "at least 1024"),
        (MTP | {"long_prefill_token_threshold": 3}, "long_prefill_token_threshold below 4"),
        (MTP | {"timing": "measured"}, "recorded passes hold no drafts"),
        (MTP | {"engine": "sglang", "mixed_chunk": True}, "spec_tokens=3 and mixed_chunk=true"),
        (MTP | {"engine": "atom", "max_num_batched_tokens": 1000}, "at least 1024"),
    ],
)
def test_knobs_that_contradict_each_other_are_refused(changes, named):
    with pytest.raises(GapscopeError, match=named):
        resolve(FIXED | changes)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "atom", "trtllm"])
def test_every_engine_verifies_drafts(engine):
    assert server_config(resolve(FIXED | MTP | {"engine": engine})).speculation.draft_tokens == 3


def test_acceptance_reaches_the_scheduler():
    speculation = server_config(resolve(FIXED | MTP)).speculation
    assert speculation.mean_length == pytest.approx(2.49, abs=1e-9)
    assert (speculation.width, speculation.seed) == (4, 42)
    with pytest.raises(GapscopeError, match="exactly one of them"):
        server_config(resolve(FIXED | MTP | {"spec_mean_length": 0}))
