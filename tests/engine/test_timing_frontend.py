"""Terms of the host model, estimated from delays whose terms are known."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from timing_fakes import FakeBundle

from engine.timing import FitSource
from engine.timing.frontend import FORMS, Delays, fit_frontend, least_absolute
from engine.timing.host import host_terms

MS = 1_000_000


def delays(extra_ms, uncached, chunk_ms=10.0, seed=0) -> Delays:
    """n first tokens that take ``extra_ms`` longer than later ones, all give or take 0.3 ms."""
    rng = np.random.default_rng(seed)
    first = chunk_ms + np.asarray(extra_ms, float) + rng.uniform(-0.3, 0.3, len(uncached))
    later = chunk_ms + np.tile([-0.3, 0.0, 0.3], 10 * len(uncached))
    return Delays(first, later, np.asarray(uncached, float))


def prompts(n: int, longest: int = 1000) -> np.ndarray:
    return np.random.default_rng(5).integers(0, longest + 1, n).astype(float)


def test_a_term_per_request_alone():
    told = fit_frontend([delays(np.full(60, 2.5), prompts(60))])
    assert told["form"] == FORMS[0]
    assert told["host_chunk_ms"] == pytest.approx(10.0, abs=0.01)
    assert told["host_request_ms"] == pytest.approx(2.5, abs=0.1)
    assert (told["host_prompt_token_us"], told["host_prompt_cap_ms"]) == (0.0, 0.0)
    assert (told["requests"], told["chunks"]) == (60, 1800)
    assert told["error_ms"] == pytest.approx(0.15, abs=0.05)  # the mean of |uniform(-0.3, 0.3)|


def test_a_term_per_prompt_token_ends_with_the_longest_prompt_seen():
    uncached = prompts(80)
    told = fit_frontend([delays(1.0 + 0.02 * uncached, uncached)])
    assert told["form"] == FORMS[1]
    assert told["host_request_ms"] == pytest.approx(1.0, abs=0.1)
    assert told["host_prompt_token_us"] == pytest.approx(20.0, abs=0.5)
    assert told["host_prompt_cap_ms"] == pytest.approx(0.02 * uncached.max(), abs=0.5)


def test_a_cap_where_there_is_one():
    uncached = prompts(120)
    told = fit_frontend([delays(1.0 + np.minimum(8.0, 0.02 * uncached), uncached)])
    assert told["form"] == FORMS[2]
    assert told["host_prompt_token_us"] == pytest.approx(20.0, rel=0.1)
    assert told["host_prompt_cap_ms"] == pytest.approx(8.0, abs=0.3)
    assert told["held_out_ms"][FORMS[2]] < told["held_out_ms"][FORMS[1]] < told["held_out_ms"][FORMS[0]]


def test_stalls_bend_nothing():
    uncached = prompts(80)
    clean = delays(1.0 + 0.02 * uncached, uncached)
    stalled = Delays(clean.first_ms.copy(), clean.later_ms.copy(), uncached)
    stalled.first_ms[[3, 40]] += 2000.0
    stalled.later_ms[:20] += 500.0  # fewer than a hundredth
    for name, near in (("host_chunk_ms", 0.01), ("host_request_ms", 0.1), ("host_prompt_token_us", 0.5)):
        assert fit_frontend([stalled])[name] == pytest.approx(fit_frontend([clean])[name], abs=near)


def test_no_term_is_negative():
    uncached = prompts(60)
    told = fit_frontend([delays(-3.0 - 0.001 * uncached, uncached)])
    assert (told["host_request_ms"], told["host_prompt_token_us"]) == (0.0, 0.0)
    told = fit_frontend([delays(-1.0 + 0.02 * uncached, uncached)])
    assert told["host_request_ms"] == 0.0
    assert told["host_prompt_token_us"] == pytest.approx(18.5, abs=1.0)


def test_few_requests_say_nothing_about_prompts():
    uncached = np.array([0.0, 100.0, 500.0, 900.0])
    told = fit_frontend([delays(0.02 * uncached, uncached)])
    assert told["form"] == FORMS[0]
    assert told["held_out_ms"] == {FORMS[0]: None}
    assert fit_frontend([]) is None


def test_every_prompt_cached_leaves_the_term_per_request():
    told = fit_frontend([delays(np.full(60, 2.0), np.zeros(60))])
    assert told["host_request_ms"] == pytest.approx(2.0, abs=0.1)
    assert told["host_prompt_token_us"] == 0.0


def test_the_least_sum_of_absolute_errors():
    # One column of ones: the median. Of y = 2 x with one outlier, a line through the rest.
    assert least_absolute(np.ones((5, 1)), np.array([1.0, 2.0, 3.0, 50.0, 100.0])) == pytest.approx([3.0], abs=0.05)
    x = np.arange(1.0, 9.0)
    target = 2.0 * x
    target[2] = 900.0
    assert least_absolute(np.stack([np.ones(8), x], axis=1), target) == pytest.approx([0.0, 2.0], abs=0.01)
    assert least_absolute(np.zeros((3, 2)), np.ones(3)) == [0.0, 0.0]


def recorded(profile_extra_ms: float = 0.0) -> FakeBundle:
    """40 requests of three tokens, 30 of them in warm-up; first tokens take 14 ms to the client, later ones 10."""
    starts = [20 * MS * i for i in range(200)]
    members: list[list[dict[str, object]]] = [[] for _ in starts]
    requests, chunks = [], []
    for n in range(40):
        name, phase, at = f"r{n}", "warmup" if n < 30 else "profile", 4 * n
        for k in range(3):
            members[at + k].append({"request_id": name, "computed_before": 0, "scheduled_tokens": 1})
            late = (10 + (0 if k else 4) + (profile_extra_ms if phase == "profile" else 0)) * MS
            chunks.append((name, k, int(starts[at + k] + 20 * MS + late), 1))
        requests.append((name, phase, "ok", starts[at], starts[at], starts[at], 3, 100 + n, 64))
    names = ("request_id", "phase", "status", "scheduled_ns", "dispatched_ns", "received_ns", "output_tokens")
    names += ("input_tokens", "cached_tokens")
    tables = {
        "requests": pa.table(dict(zip(names, map(list, zip(*requests, strict=True)), strict=True))),
        "passes": pa.table({"start_ns": starts, "end_ns": [s + 20 * MS for s in starts], "members": members}),
        "chunks": pa.table(
            dict(zip(("request_id", "ordinal", "time_ns", "tokens"), map(list, zip(*chunks, strict=True)), strict=True))
        ),
    }
    return FakeBundle("run", "measured", tables)


@pytest.mark.parametrize("phases", [None, ("warmup",), ("profile",), ("warmup", "profile")])
def test_only_warm_up_counts_whatever_phases_are_named(phases):
    told = host_terms([FitSource(recorded(profile_extra_ms=70.0), phases)])["frontend"]
    assert (told["phase"], told["runs"], told["requests"], told["chunks"]) == ("warmup", ["run"], 30, 60)
    assert (told["host_chunk_ms"], told["host_request_ms"]) == pytest.approx((10.0, 4.0), abs=0.05)


def test_a_run_named_twice_counts_once_and_one_without_warm_up_gives_none():
    bundle = recorded()
    told = host_terms([FitSource(bundle, ("warmup",)), FitSource(bundle, ("profile",))])["frontend"]
    assert told["requests"] == 30
    requests = bundle.tables_["requests"]
    bundle.tables_["requests"] = requests.filter(pa.compute.equal(requests["phase"], "profile"))
    assert "frontend" not in host_terms([FitSource(bundle)])
