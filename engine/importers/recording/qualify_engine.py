"""Does what the engine wrote agree with itself: its passes, its counters, its cache events?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from engine.bundle import Check
from engine.importers.recording.files import Recording
from engine.importers.recording.history import History
from engine.importers.recording.kv_events import CacheEvents
from engine.importers.recording.kv_hashes import hashes_name_contents
from engine.importers.recording.verdict import verdict


def passes_unbroken(passes: Sequence[Mapping[str, Any]]) -> Check:
    """Whether the engine's own numbering of scheduler calls has no gap and no pass overlaps the next."""
    bad = [
        f"pass {b['iter']}"
        for a, b in pairwise(passes)
        if b["engine_iter"] != a["engine_iter"] + 1 or b["t_start_s"] < a["t_end_s"]
    ]
    return verdict(
        "passes_unbroken", bad, len(passes), "passes follow each other", "passes do not follow the previous one"
    )


def passes_consistent(recording: Recording, seen: Mapping[str, History]) -> list[Check]:
    """Members, budget, order of admission, counters at release, and how long the worker had no processor."""
    budget = recording.identity.get("scheduler", {}).get("max_num_batched_tokens")
    over = [
        f"pass {r['iter']}" for r in recording.passes if budget is not None and sum(m[2] for m in r["reqs"]) > budget
    ]
    order: dict[str, int] = {}
    late = []
    last = -1
    for row in recording.passes:
        for name, *_ in row.get("arrivals", ()):
            order.setdefault(name, len(order))
        for name, _, _, kind in row["reqs"]:
            if kind == "n" and name in order:
                if order[name] < last:
                    late.append(name)
                last = max(last, order[name])
    preempted = [
        name
        for name, h in seen.items()
        if h.engine_preemptions is not None and h.engine_preemptions != len(h.preemptions)
    ]
    outputs = [
        name
        for name, h in seen.items()
        if h.engine_output_tokens is not None and not 0 <= h.sampled_tokens - h.engine_output_tokens <= 1
    ]
    pieces = [
        f"pass {r['iter']}"
        for r in recording.passes
        if sum(m[2] for m in r["reqs"]) != r["prefill_tokens"] + r["num_decode"]
        or len(r["reqs"]) != r["num_prefill"] + r["num_decode"]
    ]
    total = len(recording.passes)
    worked = sum(1 for r in recording.passes if r["reqs"])
    wall = sum(r["wall_time_s"] for r in recording.passes)
    waits = [r["worker_runq_wait_s"] for r in recording.passes]
    checks = [
        verdict("pass_sums", pieces, total, "passes sum up to their members", "passes do not sum up to their members"),
        verdict("token_budget", over, worked, "passes keep the token budget", "passes exceed the token budget"),
        verdict(
            "arrival_order",
            late,
            len(order),
            "requests were admitted in order of arrival",
            "requests were admitted after one that came later",
        ),
        verdict(
            "preemptions_agree",
            preempted,
            len(seen),
            "requests count their preemptions alike",
            "requests count other preemptions than the passes show",
        ),
        verdict(
            "outputs_agree",
            outputs,
            len(seen),
            "requests sampled their outputs in the passes",
            "requests count other outputs than the passes sampled",
        ),
    ]
    if wall > 0 and None not in waits:
        share = sum(waits) / wall
        text = f"the worker waited for a processor for {100 * share:.1f} % of the passes' time (5 % is the limit here)"
        checks.append(Check("contention", "pass" if share <= 0.05 else "fail", text))
    return checks


def events_consistent(recording: Recording, events: CacheEvents) -> list[Check]:
    """Whether the cache events are complete and say what passes and tokens say."""
    if recording.events is None:
        return [Check("kv_events_recorded", "unknown", "no KV events were recorded")]
    counted: dict[int, list[int]] = {}
    for event in recording.events:
        if event["iter"] is not None:
            pair = counted.setdefault(event["iter"], [0, 0])
            if event["type"] != "AllBlocksCleared":
                pair[event["type"] == "BlockRemoved"] += len(event["hashes"])
    differing = [
        f"pass {r['iter']}"
        for r in recording.passes
        if r["kv_stored"] is not None and counted.get(r["iter"], [0, 0]) != [r["kv_stored"], r["kv_removed"]]
    ]
    n = len(recording.events)
    return [
        verdict(
            "kv_events_joined", range(events.unjoined), n, "KV events belong to a pass", "KV events belong to no pass"
        ),
        verdict(
            "kv_events_complete",
            differing,
            len(recording.passes),
            "passes published as many stored and removed blocks as they count",
            "passes published other numbers of blocks than they count",
        ),
        verdict(
            "kv_content",
            range(events.foreign),
            events.stored_blocks - events.untold_blocks,
            "stored blocks hold the tokens of their request",
            "stored blocks hold other tokens than their request has",
        ),
        verdict(
            "kv_hits_stored",
            range(events.unnamed_hits),
            sum(row["kind"] in ("hit", "readmit") for row in events.rows) - events.untold_hits,
            "admissions with hits are on blocks that a recorded event stored",
            "admissions hit blocks that no recorded event stored",
        ),
        hashes_name_contents(recording),
    ]
