"""Time outside passes: what the host adds between passes, and on the way from and to the client.

All terms are means without the largest hundredth (a stall is not a latency), in the unit their name ends in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.timing.frontend import Delays, fit_frontend, mean_without_stalls
from engine.timing.rows import PRIMER, FitSource, Floats, PassRows

Term = dict[str, Any]
WARMUP = "warmup"
"""The phase on which the host model is fitted, whatever else is."""


def between_passes(rows: PassRows, runs: set[int]) -> Term:
    """Host time from the end of a pass to the start of the next, where both were busy (period less duration).

    From the runs where they recorded it, else from the sweeps; 0 with n = 0 where nobody did.
    """
    known = np.isfinite(rows.between_ns) & (rows.between_ns >= 0)
    from_runs = known & np.isin(rows.source, sorted(runs))
    values = rows.between_ns[from_runs if from_runs.any() else known]
    if not len(values):
        return {"value_ns": 0, "median_ns": None, "n": 0}
    return {
        "value_ns": round(mean_without_stalls(values)),
        "median_ns": round(float(np.median(values))),
        "n": len(values),
    }


def host_terms(sources: Sequence[FitSource]) -> dict[str, Any]:
    """``dispatch_lag_ms``, ``request_latency_ms`` and ``response_latency_ms`` as far as the runs recorded them.

    Keys are the names of the knobs whose defaults they are. Only requests dispatched in the source's phases count.
    ``frontend`` holds the terms of the host model, fitted on the warm-up of the runs whatever their phases are: what
    is predicted with it is never what it was fitted on.
    """
    lag: list[Floats] = []
    windows: list[Floats] = []
    out: list[Floats] = []
    warmup: dict[str, Delays] = {}
    for source in sources:
        if source.bundle.kind == "sweep":
            continue
        requests = _requests(source)
        if requests is None:
            continue
        named = requests["named"]
        lag.append((requests["dispatched_ns"] - requests["scheduled_ns"])[named] / 1e6)
        windows.append(_latency_windows(source, requests))
        delays = _response_delays(source, requests)
        out += [ms for ms, is_named in zip(delays, named, strict=True) if is_named]
        found = _of_warmup(requests, delays)
        if found is not None:
            warmup[source.bundle.run_id] = found
    terms: dict[str, Any] = {}
    for name, values in (("dispatch_lag_ms", lag), ("response_latency_ms", out)):
        known = np.concatenate(values) if values else np.empty(0)
        known = known[np.isfinite(known) & (known >= 0)]
        if len(known):
            value = mean_without_stalls(known)
            terms[name] = {"value": _round(value), "n": len(known), "median": _round(float(np.median(known)))}
    all_windows = np.concatenate(windows) if windows else np.empty((0, 2))
    if len(all_windows):
        terms["request_latency_ms"] = request_latency(all_windows)
    frontend = fit_frontend(list(warmup.values()))
    if frontend is not None:
        terms["frontend"] = {"phase": WARMUP, "runs": list(warmup), **frontend}
    return terms


def request_latency(windows: Floats) -> Term:
    """The latency that explains best by which pass each request was taken.

    The way to the engine hides behind the running pass: a request that reaches it meanwhile is taken when that
    pass ends. So each request only bounds the latency: long enough to have missed the boundary before, short
    enough to have made the one that took it. ``windows`` is n x 2 of such bounds in ms; the answer is the middle of
    the widest range that satisfies the most of them.
    """
    edges = np.unique(np.concatenate([[0.0], windows.ravel()]))
    middles = (edges[:-1] + edges[1:]) / 2
    if not len(middles):
        return {"value": _round(float(edges[0])), "n": len(windows), "explained": len(windows)}
    low, high = np.sort(windows[:, 0]), np.sort(windows[:, 1])
    held = np.searchsorted(low, middles, side="right") - np.searchsorted(high, middles, side="left")
    best = held == held.max()
    starts = np.flatnonzero(best & ~np.concatenate([[False], best[:-1]]))
    ends = np.flatnonzero(best & ~np.concatenate([best[1:], [False]]))
    widest = int(np.argmax(edges[ends + 1] - edges[starts]))
    value = (edges[starts[widest]] + edges[ends[widest] + 1]) / 2
    return {"value": _round(float(value)), "n": len(windows), "explained": int(held.max())}


def _requests(source: FitSource) -> dict[str, Any] | None:
    """The successful requests of the source's phases (those are ``named``) and of the warm-up, as columns."""
    numbers = ("scheduled_ns", "dispatched_ns", "received_ns", "output_tokens", "input_tokens", "cached_tokens")
    table = source.bundle.table("requests", columns=["request_id", "phase", "status", *numbers])
    if table is None:
        return None
    table = table.filter(np.asarray(table["status"].to_pylist(), dtype=object) == "ok")
    phase = np.asarray(table["phase"].to_pylist(), dtype=object)
    named = phase != PRIMER if source.phases is None else np.isin(phase, list(source.phases))
    keep = named | (phase == WARMUP)
    table, phase, named = table.filter(keep), phase[keep], named[keep]
    columns: dict[str, Any] = {"request_id": table["request_id"].to_pylist(), "phase": phase, "named": named}
    for name in numbers:
        columns[name] = np.asarray(table[name].to_numpy(zero_copy_only=False), dtype=np.float64)
    return columns


def _latency_windows(source: FitSource, requests: dict[str, Any]) -> Floats:
    """Bounds in ms on the way from dispatch to the engine, per request that the engine took between two passes."""
    passes = source.bundle.table("passes", columns=["start_ns"])
    if passes is None:
        return np.empty((0, 2))
    starts = np.sort(np.asarray(passes["start_ns"].to_numpy(zero_copy_only=False), dtype=np.float64))
    known = requests["named"] & np.isfinite(requests["received_ns"]) & np.isfinite(requests["dispatched_ns"])
    received, dispatched = requests["received_ns"][known], requests["dispatched_ns"][known]
    taker = np.searchsorted(starts, received, side="left")  # the pass that could hold it first
    inside = (taker > 0) & (taker < len(starts))
    taker, dispatched = taker[inside], dispatched[inside]
    low = np.maximum(0.0, starts[taker - 1] - dispatched)
    high = np.maximum(low, starts[taker] - dispatched)
    return np.stack([low, high], axis=1) / 1e6


def _response_delays(source: FitSource, requests: dict[str, Any]) -> list[Floats]:
    """Per request, from the end of the pass that sampled each token to its chunk at the client, in ms.

    Empty where that cannot be told.
    """
    unknown = [np.empty(0) for _ in requests["request_id"]]
    passes = source.bundle.table("passes", columns=["end_ns", "members"])
    chunks = source.bundle.table("chunks", columns=["request_id", "ordinal", "time_ns", "tokens"])
    if passes is None or chunks is None or passes["members"].null_count == passes.num_rows:
        return unknown
    ends: dict[str, list[int]] = {}
    for end, members in zip(passes["end_ns"].to_pylist(), passes["members"].to_pylist(), strict=True):
        for member in members or ():
            ends.setdefault(member["request_id"], []).append(end)
    arrived: dict[str, list[tuple[int, int, int]]] = {}
    rows = zip(*(chunks[name].to_pylist() for name in ("request_id", "ordinal", "time_ns", "tokens")), strict=True)
    for request_id, ordinal, time_ns, tokens in rows:
        arrived.setdefault(request_id, []).append((ordinal, time_ns, tokens))
    delays = unknown
    for i, (request_id, outputs) in enumerate(zip(requests["request_id"], requests["output_tokens"], strict=True)):
        got = sorted(arrived.get(request_id, ()))
        sampled = ends.get(request_id, [])
        n = len(got)
        # One token per chunk, so the last n passes of the request sampled them (preemption adds earlier ones).
        if n == 0 or n != outputs or len(sampled) < n or any(tokens != 1 for _, _, tokens in got):
            continue
        times = [(time_ns - end) / 1e6 for (_, time_ns, _), end in zip(got, sampled[-n:], strict=True)]
        delays[i] = np.asarray(times, dtype=np.float64)
    return delays


def _of_warmup(requests: dict[str, Any], delays: list[Floats]) -> Delays | None:
    """The delays of the warm-up, in order of dispatch; None where there are none."""
    uncached = requests["input_tokens"] - requests["cached_tokens"]
    known = np.array([len(ms) > 0 for ms in delays], np.bool_) & (requests["phase"] == WARMUP) & np.isfinite(uncached)
    rows = np.flatnonzero(known)
    if not len(rows):
        return None
    rows = rows[np.argsort(requests["dispatched_ns"][rows], kind="stable")]
    return Delays(
        first_ms=np.array([delays[i][0] for i in rows]),
        later_ms=np.concatenate([delays[i][1:] for i in rows]),
        uncached=np.maximum(uncached[rows], 0),
    )


def _round(value: float) -> float:
    return round(value, 4)
