"""The recordings' own summary, computed anew from a bundle's tables, under its own names and definitions.

They are not the definitions of this product (docs/metrics.md): TPOT runs from the first to the last *chunk*, request
latency to the *end* of the response, the rate counts successes of any phase that *ended* inside the profile window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from engine.bundle import Phase

Tables = Callable[[str], pa.Table | None]
Floats = npt.NDArray[np.float64]

_DIGITS = {  # decimals of the summary, by the start of a figure's path; the longest match counts
    "": 3,
    "throughput.requests_per_s": 4,
    "input_tokens": 1,
    "output_tokens": 1,
    "cached_tokens": 1,
    "cache_hit_ratio": 4,
    "iterations.busy_fraction": 4,
    "cpu_contention": 4,
    "running": 2,
    "waiting_after_schedule": 2,
    "kv_blocks_used": 1,
}
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def native_metrics(tables: Tables, profile: Phase) -> dict[str, Any]:
    """The summary's figures, unrounded; those that need what a bundle does not keep are left out."""
    requests, passes = _needed(tables, "requests"), _needed(tables, "passes")
    population = requests.filter(pc.equal(_text(requests, "phase"), "profile"))
    ok = population.filter(pc.equal(_text(population, "status"), "ok"))
    window = passes.filter(
        pc.and_(
            pc.and_(
                pc.greater_equal(passes["start_ns"], profile.start_ns), pc.less(passes["start_ns"], profile.end_ns)
            ),
            pc.greater(pc.add(passes["num_prefill_requests"], passes["num_decode_requests"]), 0),
        )
    )
    span_s = (profile.end_ns - profile.start_ns) / 1e9
    done = _ended_inside(requests, profile)
    status = _text(population, "status")
    metrics: dict[str, Any] = {
        "requests": {
            "profile": len(population),
            **{name: pc.sum(pc.equal(status, name)).as_py() or 0 for name in ("ok", "canceled", "error")},
            "warmup": pc.sum(pc.equal(_text(requests, "phase"), "warmup")).as_py() or 0,
            "one_token": int((_column(ok, "requested_output_tokens") == 1).sum()),
            "children": int((_column(ok, "agent_depth") > 0).sum()),
        },
        "throughput": {
            "requests_per_s": len(done) / span_s,
            "output_tokens_per_s": _column(done, "output_tokens").sum() / span_s,
            "input_tokens_per_s": _column(done, "input_tokens").sum() / span_s,
            "computed_prefill_tokens_per_s": _column(window, "sum_prefill_tokens").sum() / span_s,
        },
        "ttft_visible_ms": _spread(_between_ms(ok, "dispatched_ns", "first_visible_ns")),
        "request_latency_ms": _spread(_between_ms(ok, "dispatched_ns", "end_ns")),
        "engine_queue_wait_ms": _spread(_between_ms(ok, "received_ns", "first_admit_ns")),
        "client_to_engine_ms": _spread(_between_ms(ok, "dispatched_ns", "received_ns")),
        "dispatch_lateness_ms": _spread(_between_ms(ok, "scheduled_ns", "dispatched_ns")),
        **{name: _spread(_column(ok, name)) for name in ("input_tokens", "output_tokens", "cached_tokens")},
        "cache_hit_ratio": _column(ok, "cached_tokens").sum() / max(1.0, _column(ok, "input_tokens").sum()),
        **_chunk_metrics(_needed(tables, "chunks"), ok),
        **_pass_metrics(window, span_s),
    }
    events = tables("kv_events")
    if events is not None:
        metrics["kv_events"] = _event_metrics(events)
    return metrics


def rate_windows(requests: pa.Table, profile: Phase) -> dict[str, dict[str, float | None]]:
    """Request and output-token rates in the three windows that a rate can mean.

    ``observed_span`` and ``fixed`` count requests dispatched in profile that succeeded, over their earliest
    dispatch to latest visible end, or over the profile window; ``completions`` counts successes of any phase that
    ended inside the window.
    """
    ok = requests.filter(
        pc.and_(pc.equal(_text(requests, "phase"), "profile"), pc.equal(_text(requests, "status"), "ok"))
    )
    done = _ended_inside(requests, profile)
    seen = ok["last_visible_ns"].drop_null()
    span = (pc.max(seen).as_py() - pc.min(ok["dispatched_ns"]).as_py()) / 1e9 if len(seen) else 0.0
    fixed = (profile.end_ns - profile.start_ns) / 1e9

    def rate(rows: pa.Table, seconds: float) -> dict[str, float | None]:
        if not seconds > 0:
            return {"requests_per_s": None, "output_tokens_per_s": None}
        tokens = float(_column(rows, "output_tokens").sum())
        return {"requests_per_s": len(rows) / seconds, "output_tokens_per_s": tokens / seconds}

    return {"observed_span": rate(ok, span), "fixed": rate(ok, fixed), "completions": rate(done, fixed)}


def differences(metrics: Mapping[str, Any], summary: Mapping[str, Any], path: str = "") -> tuple[int, list[str]]:
    """How many figures of ``metrics`` the summary has, and in words those that differ at its printed precision."""
    compared = 0
    words: list[str] = []
    for name, ours in metrics.items():
        theirs = summary.get(name)
        where = f"{path}.{name}" if path else name
        if isinstance(ours, Mapping):
            if isinstance(theirs, Mapping):
                more, found = differences(ours, theirs, where)
                compared, words = compared + more, words + found
        elif isinstance(theirs, int | float) and not isinstance(theirs, bool):
            compared += 1
            digits = _DIGITS[max((p for p in _DIGITS if where.startswith(p)), key=len)]
            if ours is None or abs(ours - theirs) > 0.5 * 10.0**-digits * (1 + 1e-6):
                words.append(f"{where} is {ours}, the summary says {theirs}")
    return compared, words


def _chunk_metrics(chunks: pa.Table, ok: pa.Table) -> dict[str, Any]:
    ids = _text(ok, "request_id")
    mine = chunks.filter(pc.is_in(_text(chunks, "request_id"), value_set=ids.combine_chunks()))
    owner = pc.index_in(_text(mine, "request_id"), value_set=ids.combine_chunks()).to_numpy()
    times, ordinal = _column(mine, "time_ns"), _column(mine, "ordinal")
    order = np.lexsort((ordinal, owner))
    owner, times = owner[order], times[order]
    same = owner[1:] == owner[:-1]
    first = np.full(len(ok), np.nan)
    last = np.full(len(ok), np.nan)
    last[owner] = times
    first[owner[::-1]] = times[::-1]
    tokens = _column(ok, "output_tokens")
    several = tokens > 1
    tpot = (last[several] - first[several]) / 1e6 / (tokens[several] - 1)
    return {"tpot_ms": _spread(tpot), "inter_chunk_ms": _spread(np.diff(times)[same] / 1e6)}


def _pass_metrics(window: pa.Table, span_s: float) -> dict[str, Any]:
    step = _column(window, "duration_ns") / 1e6
    prefill, decode = _column(window, "num_prefill_requests") > 0, _column(window, "num_decode_requests") > 0
    classes = {"prefill_only": prefill & ~decode, "decode_only": ~prefill, "mixed": prefill & decode}
    waited = _column(window, "contention_ns") / 1e6
    blocks = _column(window, "kv_blocks_total")
    metrics: dict[str, Any] = {
        "iterations": {
            "n": len(window),
            **{name: int(mask.sum()) for name, mask in classes.items()},
            "busy_fraction": float(step.sum()) / 1e3 / span_s,
        },
        "step_ms": {"all": _spread(step), **{name: _spread(step[mask]) for name, mask in classes.items()}},
        "schedule_ms": _spread(_column(window, "schedule_ns") / 1e6),
        "between_steps_ms": _spread(_column(window, "period_ns") / 1e6 - step),
        "running": _spread(_column(window, "num_running")),
        "waiting_after_schedule": _spread(_column(window, "num_waiting")),
        "kv_blocks_used": _spread(_column(window, "kv_blocks_used")),
        "kv_blocks_total": float(blocks.max()) if len(blocks) else None,
        "preemptions": int(_column(window, "num_preempted").sum()),
    }
    if len(step) and not np.isnan(waited).any():
        metrics["cpu_contention"] = {
            "worker_runq_wait_frac_of_wall": float(waited.sum() / step.sum()),
            "iterations_with_over_5pct_worker_wait": float((waited > 0.05 * step).mean()),
        }
    return metrics


def _event_metrics(events: pa.Table) -> dict[str, Any]:
    kind, blocks = _text(events, "kind"), events["num_blocks"]

    def count(name: str) -> int:
        return int(pc.sum(blocks.filter(pc.equal(kind, name))).as_py() or 0)

    published = pc.sum(pc.is_in(kind, value_set=pa.array(["store", "evict", "clear"]))).as_py() or 0
    return {"events": int(published), "blocks_stored": count("store"), "blocks_removed": count("evict")}


def _ended_inside(requests: pa.Table, window: Phase) -> pa.Table:
    end = requests["end_ns"]
    inside = pc.and_(pc.greater_equal(end, window.start_ns), pc.less(end, window.end_ns))
    return requests.filter(pc.and_(pc.equal(_text(requests, "status"), "ok"), inside))


def _spread(values: Floats) -> dict[str, float | int | None]:
    """Count, mean, linear percentiles and extremes of the values that are known."""
    values = values[~np.isnan(values)]
    if not len(values):
        return {"n": 0}
    quantiles: Sequence[float] = np.quantile(values, list(_QUANTILES.values())).tolist()
    return {
        "n": len(values),
        "mean": float(values.mean()),
        **dict(zip(_QUANTILES, quantiles, strict=True)),
        "min": float(values.min()),
        "max": float(values.max()),
    }


def _between_ms(table: pa.Table, start: str, end: str) -> Floats:
    return (_column(table, end) - _column(table, start)) / 1e6


def _column(table: pa.Table, name: str) -> Floats:
    """A column as floats, NaN where NULL."""
    return np.asarray(table[name].cast(pa.float64()).to_numpy(), np.float64)


def _text(table: pa.Table, name: str) -> pa.ChunkedArray:
    return table[name].cast(pa.string())


def _needed(tables: Tables, name: str) -> pa.Table:
    table = tables(name)
    if table is None:
        raise ValueError(f"the recording's own figures need the table {name}")
    return table
