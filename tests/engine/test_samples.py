"""The recordings in sample_runs: every published figure of theirs, computed anew from the bundles' rows.

``data/summaries.json`` holds the measured figures; nothing in it comes from the code under test.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from engine.bundle import Bundle, ledger_problems, open_bundle
from engine.importers.recording import native_metrics, rate_windows
from engine.importers.recording.native import differences
from engine.traces import find_trace, load_trace

SAMPLES = Path(__file__).parents[2] / "sample_runs"
RUNS = ("ample8", "ample8_repeat", "tight8", "tight8_repeat")
SUMMARIES: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "summaries.json").read_text())["runs"]


@cache
def sample(name: str) -> Bundle:
    (path,) = SAMPLES.glob(f"{name}-" + "[0-9a-f]" * 12)
    return open_bundle(path)


@cache
def table(name: str, of: str) -> pa.Table:
    found = sample(name).table(of)
    assert found is not None
    return found


@cache
def rows(name: str, of: str) -> list[dict[str, Any]]:
    return table(name, of).to_pylist()


def successes(name: str) -> list[dict[str, Any]]:
    return [r for r in rows(name, "requests") if r["phase"] == "profile" and r["status"] == "ok"]


def spread(values: list[float] | npt.NDArray[np.float64]) -> dict[str, float]:
    p50, p90, p99 = np.percentile(values, [50, 90, 99])
    mean = float(np.mean(values))
    low, high = float(np.min(values)), float(np.max(values))
    return {"n": len(values), "mean": mean, "p50": p50, "p90": p90, "p99": p99, "min": low, "max": high}


def assert_printed(ours: dict[str, float], published: dict[str, float], digits: int) -> None:
    """Equal at the precision at which the figure was published."""
    assert ours == pytest.approx(published, abs=0.5 * 10**-digits * (1 + 1e-6), rel=0)


def test_all_are_there_intact_and_small() -> None:
    for name in (*RUNS, "fpm_sweep"):
        assert sample(name).verify() == []
    assert sum(f.stat().st_size for f in SAMPLES.rglob("*") if f.is_file()) < 8_000_000


@pytest.mark.parametrize("name", RUNS)
def test_every_check_passes(name: str) -> None:
    verdicts = {c.check: c.verdict for c in sample(name).qualification}
    assert set(verdicts.values()) == {"pass"}
    assert {"prompts_verified", "token_sums", "summary_reproduced", "kv_events_complete", "ledger_balances"} <= set(
        verdicts
    )


@pytest.mark.parametrize("name", RUNS)
def test_counts_and_ledger(name: str) -> None:
    published = SUMMARIES[name]["requests"]
    counted = Counter((r["phase"], r["status"]) for r in rows(name, "requests"))
    assert counted["profile", "ok"] == published["ok"]
    assert counted["profile", "canceled"] == published["canceled"]
    assert counted["profile", "error"] == published["error"] == 0
    assert counted["warmup", "ok"] == published["warmup"]
    assert sum(1 for r in successes(name) if r["requested_output_tokens"] == 1) == published["one_token"]
    assert sum(1 for r in successes(name) if r["agent_depth"] > 0) == published["children"]
    ledger = sample(name).ledger
    assert ledger is not None
    assert ledger_problems(ledger, counted) == []
    total = ledger["total"]
    assert total["attempted"] + total["never_issued"] == total["in_graph"] == turns_of_started_plays(name)


def turns_of_started_plays(name: str) -> int:
    digest = sample(name).identity.value("trace", "digest")
    assert digest is not None
    started = {r["source_trace_id"] for r in rows(name, "requests")}
    trace = load_trace(find_trace([SAMPLES], digest))
    return sum(len(t.turns) for p in trace.plays if p.source_trace_id in started for t in p.conversations)


@pytest.mark.parametrize("name", RUNS)
def test_latency_to_the_first_token(name: str) -> None:
    ttft = [(r["first_visible_ns"] - r["dispatched_ns"]) / 1e6 for r in successes(name)]
    assert_printed(spread(ttft), SUMMARIES[name]["ttft_visible_ms"], 3)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("column", ["input_tokens", "output_tokens", "cached_tokens"])
def test_token_counts(name: str, column: str) -> None:
    assert_printed(spread([r[column] for r in successes(name)]), SUMMARIES[name][column], 1)


@pytest.mark.parametrize("name", RUNS)
def test_hit_ratio_and_preemptions(name: str) -> None:
    ok = successes(name)
    ratio = sum(r["cached_tokens"] for r in ok) / sum(r["input_tokens"] for r in ok)
    assert ratio == pytest.approx(SUMMARIES[name]["cache_hit_ratio"], abs=5e-5)
    passes = rows(name, "passes")
    assert sum(p["num_preempted"] for p in passes if p["phase"] == "profile") == SUMMARIES[name]["preemptions"]
    whole = SUMMARIES[name]["whole_capture"]["preemptions"]
    assert sum(p["num_preempted"] for p in passes) == whole
    assert sum(r["preemptions"] for r in rows(name, "requests")) == whole
    kinds = Counter(e["kind"] for e in rows(name, "kv_events"))
    assert kinds["preempt"] == whole
    assert sum(a["is_readmission"] for a in rows(name, "admissions")) == kinds["readmit"]


@pytest.mark.parametrize("name", RUNS)
def test_passes_by_class(name: str) -> None:
    def classes(passes: list[dict[str, Any]]) -> dict[str, int]:
        found = Counter(
            ("mixed" if p["num_decode_requests"] else "prefill_only") if p["num_prefill_requests"] else "decode_only"
            for p in passes
        )
        return {c: found[c] for c in ("prefill_only", "mixed", "decode_only")}

    working = [p for p in rows(name, "passes") if p["num_prefill_requests"] + p["num_decode_requests"]]
    whole = SUMMARIES[name]["whole_capture"]
    assert classes(working) == {c: whole[c] for c in ("prefill_only", "mixed", "decode_only")}
    published = SUMMARIES[name]["iterations"]
    profile = [p for p in working if p["phase"] == "profile"]
    assert len(profile) == published["n"]
    assert classes(profile) == {c: published[c] for c in ("prefill_only", "mixed", "decode_only")}
    assert_printed(spread([p["duration_ns"] / 1e6 for p in profile]), SUMMARIES[name]["step_ms"]["all"], 3)


@pytest.mark.parametrize("name", RUNS)
def test_idle_calls_keep_their_time_and_nothing_else(name: str) -> None:
    idle = [p for p in rows(name, "passes") if not p["num_prefill_requests"] + p["num_decode_requests"]]
    assert idle
    assert all(p["duration_ns"] > 0 and p["members"] == [] and p["num_output_tokens"] == 0 for p in idle)


@pytest.mark.parametrize("name", RUNS)
def test_its_own_definitions_under_their_own_names(name: str) -> None:
    profile = sample(name).phase("profile")
    assert profile is not None
    metrics = native_metrics(lambda of: table(name, of), profile)
    compared, words = differences(metrics, SUMMARIES[name])
    assert words == []
    assert compared == 157
    published = SUMMARIES[name]
    assert metrics["tpot_ms"]["mean"] == pytest.approx(published["tpot_ms"]["mean"], abs=5e-4)
    assert metrics["request_latency_ms"]["p99"] == pytest.approx(published["request_latency_ms"]["p99"], abs=5e-4)
    rate = metrics["throughput"]["requests_per_s"]
    assert rate == pytest.approx(published["throughput"]["requests_per_s"], abs=5e-5)


def test_a_differing_figure_is_named() -> None:
    profile = sample("tight8").phase("profile")
    assert profile is not None
    metrics = native_metrics(lambda of: table("tight8", of), profile)
    changed = {**SUMMARIES["tight8"], "preemptions": 5}
    _, words = differences(metrics, changed)
    assert words == ["preemptions is 6, the summary says 5"]


def test_our_definitions_beside_its_own() -> None:
    """To the last visible chunk rather than the last chunk, and to the end: measured on ample8."""
    ok = successes("ample8")
    tpot = [
        (r["last_visible_ns"] - r["first_visible_ns"]) / 1e6 / (r["output_tokens"] - 1)
        for r in ok
        if r["output_tokens"] > 1
    ]
    assert (len(tpot), round(float(np.mean(tpot)), 3)) == (580, 34.650)
    latency = [(r["last_visible_ns"] - r["dispatched_ns"]) / 1e6 for r in ok]
    assert round(float(np.mean(latency)), 2) == 1267.81


def test_the_three_rate_windows() -> None:
    profile = sample("ample8").phase("profile")
    assert profile is not None
    found = rate_windows(table("ample8", "requests"), profile)
    rates = {name: round(r["requests_per_s"] or 0, 3) for name, r in found.items()}
    assert rates == {"completions": 4.427, "fixed": 4.413, "observed_span": 4.407}
    assert found["completions"]["output_tokens_per_s"] == pytest.approx(140.42, abs=5e-4)
    empty = rate_windows(table("ample8", "requests").slice(0, 0), profile)
    assert empty["observed_span"] == {"requests_per_s": None, "output_tokens_per_s": None}
    assert empty["fixed"]["requests_per_s"] == 0


def test_a_follow_up_turn_hits_all_full_blocks_that_have_kv() -> None:
    """The last sampled token has no KV; in one turn a forked child had computed it."""
    by_turn = {(r["conversation_id"], r["turn_index"]): r for r in rows("ample8", "requests") if r["status"] == "ok"}
    pairs = [(by_turn[c, t - 1], r) for (c, t), r in by_turn.items() if (c, t - 1) in by_turn]
    other = []
    for before, row in pairs:
        context = before["input_tokens"] + before["output_tokens"]
        if row["cached_tokens"] != (context - 1) // 32 * 32:
            other.append((row["conversation_id"], row["turn_index"], context, row["cached_tokens"]))
    assert len(pairs) == 520
    assert other == [("s0083", 3, 1184, 1184)]
    children = [r for r in rows("ample8", "requests") if r["parent_request_id"] == by_turn["s0083", 2]["request_id"]]
    assert (children[0]["turn_index"], children[0]["cached_tokens"]) == (0, 1152)
    assert children[0]["input_tokens"] > 1184  # so it computed the token at the end of the context's last block


def test_preempted_requests_hit_their_own_surviving_blocks() -> None:
    for name in ("tight8", "tight8_repeat"):
        again = [a for a in rows(name, "admissions") if a["is_readmission"]]
        assert len(again) == SUMMARIES[name]["whole_capture"]["preemptions"] - unresumed(name)
        assert any(a["cached_tokens"] > 0 for a in again)


def unresumed(name: str) -> int:
    """Preemptions of requests that were canceled before they ran again."""
    last: dict[str, str] = {}
    for event in rows(name, "kv_events"):
        if event["kind"] in ("preempt", "readmit"):
            last[event["request_id"]] = event["kind"]
    return sum(kind == "preempt" for kind in last.values())


@pytest.mark.parametrize("name", RUNS)
def test_events_replayed_give_the_cached_blocks_of_every_pass(name: str) -> None:
    """The recorded number of distinct hashes held, pass by pass, from stores and evictions alone."""
    by_pass: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in rows(name, "kv_events"):
        by_pass[event["pass_index"]].append(event)
    held: Counter[int] = Counter()
    for p in rows(name, "passes"):
        for event in by_pass[p["pass_index"]]:
            if event["kind"] == "store":
                held.update(event["block_hashes"])
            elif event["kind"] == "evict":
                held.subtract(event["block_hashes"])
            elif event["kind"] == "clear":
                held.clear()
        assert min(held.values(), default=0) >= 0
        assert sum(n > 0 for n in held.values()) == p["kv_blocks_cached"], p["pass_index"]
    stored = sum(e["num_blocks"] for e in rows(name, "kv_events") if e["kind"] == "store")
    evicted = sum(e["num_blocks"] for e in rows(name, "kv_events") if e["kind"] == "evict")
    whole = SUMMARIES[name]["whole_capture"]
    assert (stored, evicted) == (whole["blocks_stored"], whole["blocks_removed"])


@pytest.mark.parametrize("name", RUNS)
def test_hits_and_stores_of_a_request_are_its_blocks_in_order(name: str) -> None:
    """What a request reused and then computed is its content, block by block: the two sides of a join."""
    content: dict[str, list[int]] = defaultdict(list)
    for event in rows(name, "kv_events"):
        if event["kind"] in ("hit", "store"):
            content[event["request_id"]] += event["content_hashes"]
    checked = 0
    for r in rows(name, "requests"):
        if r["status"] == "ok" and r["preemptions"] == 0:
            assert content[r["request_id"]] == r["prompt_block_hashes"] + r["output_block_hashes"]
            checked += 1
    assert checked > 500


def test_equal_content_has_equal_hashes_in_every_run() -> None:
    seen: dict[tuple[str, int], tuple[list[int], int]] = {}
    for r in rows("ample8", "requests"):
        seen[r["conversation_id"], r["turn_index"]] = (r["prompt_block_hashes"], r["cached_tokens"])
    shared = 0
    for r in rows("ample8_repeat", "requests"):
        if r["status"] == "ok" and (r["conversation_id"], r["turn_index"]) in seen:
            hashes, cached = seen[r["conversation_id"], r["turn_index"]]
            assert (r["prompt_block_hashes"], r["cached_tokens"]) == (hashes, cached)
            shared += 1
    assert shared >= 747
    for r in rows("tight8", "requests"):
        if (r["conversation_id"], r["turn_index"]) in seen:
            assert r["prompt_block_hashes"] == seen[r["conversation_id"], r["turn_index"]][0]


@pytest.mark.parametrize("name", RUNS)
def test_engine_hashes_use_all_64_bits(name: str) -> None:
    hashes = {h for e in rows(name, "kv_events") if e["kind"] == "store" for h in e["block_hashes"]}
    large = sum(h >= 2**63 for h in hashes)
    assert 0.4 < large / len(hashes) < 0.6


@pytest.mark.parametrize("name", RUNS)
def test_tokens_add_up_between_passes_requests_and_chunks(name: str) -> None:
    requests = rows(name, "requests")
    scheduled: Counter[str] = Counter()
    for p in rows(name, "passes"):
        for member in p["members"]:
            scheduled[member["request_id"]] += member["scheduled_tokens"]
    arrived: Counter[str] = Counter()
    for chunk in rows(name, "chunks"):
        arrived[chunk["request_id"]] += chunk["tokens"]
    for r in requests:
        assert arrived[r["request_id"]] == r["output_tokens"]
        if r["status"] == "ok":
            fresh = r["input_tokens"] - r["cached_tokens"] + r["output_tokens"] - 1
            assert scheduled[r["request_id"]] == fresh + r["recomputed_tokens"]
    sampled = sum(p["num_output_tokens"] for p in rows(name, "passes"))
    canceled = sum(r["status"] == "canceled" for r in requests)
    ok_tokens = sum(r["output_tokens"] for r in requests)
    assert 0 <= sampled - ok_tokens <= 2 * canceled  # of canceled requests, what did not arrive any more


@pytest.mark.parametrize("name", [*RUNS, "fpm_sweep"])
def test_nothing_of_the_recording_machine_is_in_the_manifest(name: str) -> None:
    text = (sample(name).path / "run.json").read_text()
    assert not re.search(r"127\.0\.0|localhost|tcp:|:\s*(8123|5557)\b|Linux|linux|6\.18", text)
    assert not re.search(r'"/|[^\w.]/(home|root|tmp|usr|opt|etc|var|proc)\b', text)


def test_the_repeat_is_the_same_experiment() -> None:
    for name in ("ample8", "tight8"):
        left, right = sample(name).identity, sample(f"{name}_repeat").identity
        differing = {f"{g}.{f}" for g, f, field in left if right.value(g, f) != field.value}
        assert differing == {"hardware.load"}


def test_the_sweep_has_its_passes() -> None:
    bundle = sample("fpm_sweep")
    assert (bundle.kind, bundle.tables, bundle.rows("passes")) == ("sweep", ("passes",), 1217)
    verdicts = {c.check: c.verdict for c in bundle.qualification}
    assert verdicts == {"rows_used": "pass", "files_intact": "pass", "shapes_reproduced": "pass"}


def test_the_trace_is_there_in_compact_form() -> None:
    digest = sample("ample8").identity.value("trace", "digest")
    trace = load_trace(find_trace([SAMPLES], digest))
    assert (trace.digest, trace.format, len(trace.plays)) == (digest, "agentic-trace/1", 320)
    assert sample("fpm_sweep").identity.value("trace", "digest") is None
    systems = Counter(t.turns[0].new_input[0].tokens for p in trace.plays for t in p.conversations if t.mode == "fresh")
    assert set(systems) == {650, 430, 225, 345}  # its four shared system prompts
