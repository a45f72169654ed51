"""Charts of a run's cache: hit ratio, events, pool, what was computed again, and what events could be joined with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dashboard.charts import figures
from dashboard.charts.answer import Answer, Column, stack, together
from dashboard.charts.comparison.number_table import number_rows, table
from dashboard.charts.figures import Axis, Figure, Series
from dashboard.charts.phases import TIME, shaded
from dashboard.compare.numbers import Key
from dashboard.frame import Frame, Side
from dashboard.queries import cache
from dashboard.queries.passes import ranks
from dashboard.queries.ranges import Span, capture_span
from dashboard.store import Result, Store

KINDS = ("hit", "store", "evict", "preempt")
RESTORE = "restore (host)"
X = Axis(TIME)
TURN = Axis("turn (the last holds all later ones)")
BEGIN = Column("time_s", "Bin from (s)", "%.2f")
NUMBERS = (
    "hit_ratio.tokens",
    "hit_ratio.reusable",
    "preemptions.requests",
    "preemptions.capture",
    "ttft.mean",
    "ttft.p90",
)
"""Reuse is never shown without preemptions and latency."""

USES = {
    "computed_first": "computed for the first time",
    "computed_lost": "computed again after its eviction",
    "computed_preempted": "computed again by a preempted request",
    "computed_elsewhere": "computed again, held by another rank",
    "computed_held": "computed although it was held",
    "reuse_first": "reused, computed once",
    "reuse_again": "reused, computed more than once",
    "reuse_unseen": "reused, stored before the recording",
    "reuse_restored": "reused, loaded from host memory",
    "unnamed": "a block without a hash",
}
"""What a computed or reused block is to the run: docs/metrics.md."""
_WHOLE = {
    "computed": "all blocks computed",
    "reuse": "all blocks reused",
    "unnamed": "all blocks computed, or all reused",
}


def numbers(frame: Frame, store: Store, n: Mapping[str, int | None]) -> Answer:
    """Reuse on every side with gap and noise, and preemptions and latency beside it."""
    return table(frame, store, number_rows(frame, store, [Key.parse(name) for name in NUMBERS]), n)


def hit_ratio(frame: Frame, store: Store, n: dict[str, int | None]) -> tuple[Answer, Figure]:
    """Hit ratio over time and by turn of the conversation."""
    span = capture_span(store, *(side.run_id for side in frame.sides))
    over_time = [(side, cache.hit_ratio_time(store, side.run_id, span)) for side in frame.sides]
    by_turn = [(side, cache.hit_ratio_turn(store, side.run_id, frame.population_of(side))) for side in frame.sides]
    y = Axis("token hit ratio", percent=True, range=(0, 1.02))
    panels = []
    for title, results, column, scale, x in (
        ("over time, all successes", over_time, "time_ns", 1e-9, X),
        (
            "by turn of the conversation, population",
            by_turn,
            "turn_index",
            1.0,
            TURN,
        ),
    ):
        series = [
            Series(side.role, side.name, r.array(column) * scale, r.array("hit_ratio").astype(np.float64))
            for side, r in results
            if not r.not_recorded and len(r)
        ]
        panels.append((title, figures.lines(series, x, y, dark=frame.dark, markers=column == "turn_index")))
    columns = [
        Column("turn_index", "Turn", "%d"),
        Column("requests", "Requests", "%d"),
        Column("hit_ratio", "Hit ratio", "percent"),
        Column("reusable_hit_ratio", "Hit ratio of whole blocks", "percent"),
        Column("cached_tokens", "Cached tokens", "%d"),
        Column("prompt_tokens", "Prompt tokens", "%d"),
    ]
    words = (
        "Reused prompt tokens / prompt tokens over successful requests, first admissions only. Whole blocks: over the "
        "tokens that whole blocks can serve, which takes out the effect of the last block."
    )
    told = stack(by_turn, columns, n, words)
    told = together([("by turn", told), ("over time", stack(over_time, [BEGIN, *columns[1:3], *columns[4:]]))])
    return told, shaded(frame, figures.small_multiples(panels, columns=2, height=260))


def events(frame: Frame, store: Store) -> tuple[Answer, Figure]:
    """Blocks per second that were hit, stored and evicted, and preemptions, over the whole capture."""
    span, bins = capture_span(store, *(side.run_id for side in frame.sides)), 100
    results = [(side, cache.event_timeline(store, side.run_id, span, bins)) for side in frame.sides]
    panels = []
    shown = [kind for _, result in results if not result.not_recorded for kind in result.table["kind"].to_pylist()]
    for kind in (*KINDS, *((RESTORE,) if RESTORE in shown else ())):
        title = "preemptions per s" if kind == "preempt" else f"blocks {_past(kind)} per s"
        column = "events" if kind == "preempt" else "blocks"
        panels.append((title, _rates(frame, results, span, bins, column, title, kind)))
    totals = [(side, cache.event_totals(store, side.run_id)) for side in frame.sides]
    columns = [
        Column("kind", "Kind"),
        Column("reason", "Reason"),
        Column("events", "Events", "%d"),
        Column("blocks", "Blocks", "%d"),
        Column("p50_age_ms", "Median age (ms)", "%.0f", "time since the block was last used"),
    ]
    n = {s.run_id: None if r.not_recorded else sum(row["events"] for row in r.rows()) for s, r in totals}
    told = together(
        [
            ("whole capture", stack(totals, columns, n)),
            ("over time", stack(results, [columns[0], BEGIN, *columns[2:4]], None, _width_words(span, bins))),
        ]
    )
    return told, shaded(frame, figures.small_multiples(panels, columns=2, height=190))


def _past(kind: str) -> str:
    return {"hit": "hit", "store": "stored", "evict": "evicted", RESTORE: "loaded from the host"}[kind]


def pool(frame: Frame, store: Store) -> tuple[Answer, Figure]:
    """Blocks that requests refer to, distinct contents held, and blocks that no request refers to.

    Of a run with several pools, the mean over the passes of all.
    """
    span = capture_span(store, *(side.run_id for side in frame.sides))
    results = [(side, cache.pool_occupancy(store, side.run_id, span, 150)) for side in frame.sides]
    of = ", mean pool" if any(len(ranks(store, side.run_id)) > 1 for side in frame.sides) else ""
    panels = []
    for column, title in (
        ("used_blocks", "blocks in use"),
        ("cached_blocks", "contents held"),
        ("free_blocks", "blocks no request uses"),
    ):
        series = [
            Series(side.role, side.name, r.array("time_ns") / 1e9, r.array(column).astype(np.float64))
            for side, r in results
            if not r.not_recorded and len(r)
        ]
        panels.append((title + of, figures.lines(series, X, Axis("blocks"), dark=frame.dark)))
    n = {side.run_id: side.bundle.rows("passes") for side in frame.sides}
    return stack(results, n=n), shaded(frame, figures.small_multiples(panels, height=210))


def links(frame: Frame, store: Store) -> Answer:
    """By what rule the blocks of events were joined with pass and request, and what stays unidentified and why."""
    results = [(side, cache.event_links(store, side.run_id)) for side in frame.sides]
    columns = [
        Column("kind", "Event"),
        Column("identified", "Identified"),
        Column("joined_by", "Joined by, or why not"),
        Column("blocks", "Blocks", "%d"),
        Column("share", "Share", "percent"),
    ]
    words = (
        "event: pass and request stand in the event. members: the pass does; the blocks that its members filled, in "
        "scheduling order, name the request. time: the pass that ran at the time of the event. admission: the one of "
        "the pass with as many reused blocks. only allocation: one request of the pass took blocks, so it caused the "
        "evictions. order: between which stores of the pass an eviction stands leaves one request that took blocks "
        "there, or leaves no doubt which of the blocks taken was evicted for whom. Everything else stays unidentified. "
        "n: blocks."
    )
    return stack(results, columns, _blocks(results), words)


def recompute_totals(frame: Frame, store: Store) -> Answer:
    """What was computed and reused in the whole recording, by what it is to the run."""
    results = [(side, cache.recompute_totals(store, side.run_id)) for side in frame.sides]
    columns = [
        Column("use", "Block"),
        Column("blocks", "Blocks", "%d"),
        Column("tokens", "Tokens", "%d"),
        Column(
            "share", "Share of its kind", "percent", "computed rows: of all blocks computed; reused rows: of all reused"
        ),
        Column("of", "Share of"),
    ]
    words = (
        "A block is computed when it is stored. Recompute without reuse: its content had been computed before and was "
        "evicted meanwhile. Reuse without recompute: its content was computed once only. Tokens: whole blocks; tokens "
        "of a block that never filled are in none. n: blocks."
    )
    found = stack(results, columns, _blocks(results), words)
    if "use" not in found.rows.column_names:
        return found
    uses = found.rows.column("use").to_pylist()
    of = pa.array([_WHOLE[use.partition("_")[0]] for use in uses], pa.string())
    rows = found.rows.set_column(found.rows.column_names.index("use"), "use", pa.array([USES[use] for use in uses]))
    return replace(found, rows=rows.append_column("of", of))


def recompute(frame: Frame, store: Store, n: Mapping[str, int | None]) -> tuple[Answer, Figure]:
    """Recompute without reuse and reuse without recompute over time and by turn, with preemptions and TTFT."""
    span, bins = capture_span(store, *(side.run_id for side in frame.sides)), 60
    over_time = [(side, cache.recompute_time(store, side.run_id, span, bins)) for side in frame.sides]
    events_ = [(side, cache.event_timeline(store, side.run_id, span, bins)) for side in frame.sides]
    by_turn = [(side, cache.recompute_turn(store, side.run_id, frame.population_of(side))) for side in frame.sides]
    lost, once, gone = "computed again, blocks per s", "reused, computed once, blocks per s", "preemptions per s"
    panels = [
        (lost, _rates(frame, over_time, span, bins, "lost_blocks", lost)),
        (once, _rates(frame, over_time, span, bins, "reused_once_blocks", once)),
        (gone, _rates(frame, events_, span, bins, "events", gone, "preempt")),
    ]
    for column, title, axis, scale in (
        ("lost_share", "computed again, of the blocks computed", Axis("share", percent=True), 1.0),
        ("reused_once_share", "computed once, of the blocks reused", Axis("share", percent=True), 1.0),
        ("mean_ttft_ns", "mean TTFT", Axis("TTFT, ms"), 1e-6),
    ):
        series = [
            Series(side.role, side.name, r.array("turn_index"), r.array(column).astype(np.float64) * scale)
            for side, r in by_turn
            if not r.not_recorded and len(r)
        ]
        panels.append((f"{title}, by turn", figures.lines(series, TURN, axis, dark=frame.dark, markers=True)))
    columns = [
        Column("turn_index", "Turn", "%d"),
        Column("requests", "Requests", "%d"),
        Column("computed_blocks", "Computed (blocks)", "%d"),
        Column("lost_blocks", "Again after eviction (blocks)", "%d"),
        Column("lost_tokens", "The same (tokens)", "%d"),
        Column("lost_share", "Of those computed", "percent"),
        Column("reused_blocks", "Reused (blocks)", "%d"),
        Column("reused_once_blocks", "Computed once (blocks)", "%d"),
        Column("reused_once_share", "Of those reused", "percent"),
        Column("preemptions", "Preemptions", "%d"),
        Column("mean_ttft_ms", "Mean TTFT (ms)", "%.1f"),
    ]
    words = (
        "Computed again: stored content that had been stored before and was evicted since (recompute without reuse). "
        "Computed once: reused content that had been stored one time only (reuse without recompute). By turn: blocks "
        "of the requests of the population, whatever became of them; blocks without a request are left out. TTFT: of "
        "those that succeeded."
    )
    moved = [BEGIN, *(column for column in columns if column.name.endswith("_blocks"))]
    preempted = [(side, _only(result, "preempt")) for side, result in events_]
    told = together(
        [
            ("by turn", stack(by_turn, columns, n, words)),
            ("over time", stack(over_time, moved, None, _width_words(span, bins))),
            ("preemptions over time", stack(preempted, [BEGIN, Column("events", "Preemptions", "%d")])),
        ]
    )
    return told, shaded(frame, figures.small_multiples(panels, columns=3, height=220))


def _only(result: Result, kind: str) -> Result:
    """The events of one kind."""
    if result.not_recorded:
        return result
    return replace(result, table=result.table.filter(pc.equal(result.table["kind"], kind)))


def _width_words(span: Span, bins: int) -> str:
    """How long a bin is over which counts become rates."""
    return f"Over time: counts in bins of {span.length_ns / bins / 1e9:.4g} s; the chart shows them per second."


def _rates(
    frame: Frame,
    results: list[tuple[Side, Result]],
    span: Span,
    bins: int,
    column: str,
    title: str,
    kind: str | None = None,
) -> Figure:
    """A count per bin as a rate; bins that a query leaves out hold nothing."""
    width_s = max(span.length_ns / bins / 1e9, 1e-9)
    edges = span.start_ns / 1e9 + np.arange(bins) * width_s
    series = []
    for side, result in results:
        if result.not_recorded:
            continue
        rows = [row for row in result.rows() if kind is None or row["kind"] == kind]
        at = [min(int((row["time_ns"] - span.start_ns) / 1e9 / width_s + 0.5), bins - 1) for row in rows]
        values = np.bincount(np.array(at, dtype=np.int64), [row[column] or 0 for row in rows], minlength=bins)
        series.append(Series(side.role, side.name, edges, values / width_s))
    return figures.lines(series, X, Axis(title.rpartition(", ")[2]), dark=frame.dark, step=True)


def _blocks(results: list[tuple[Side, Result]]) -> dict[str, int | None]:
    return {side.run_id: None if r.not_recorded else sum(row["blocks"] for row in r.rows()) for side, r in results}
