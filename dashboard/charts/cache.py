"""Charts of reuse: hit ratio, changes per source-turn, cache events, pool occupancy."""

from __future__ import annotations

import numpy as np

from dashboard.charts import figures
from dashboard.charts.answer import Answer, Column, answer, stack
from dashboard.charts.figures import Axis, Figure, Series
from dashboard.frame import Frame, Side
from dashboard.queries import cache
from dashboard.queries.ranges import capture_span
from dashboard.store import ROW_CAP, Store

KINDS = ("hit", "store", "evict", "preempt")
X = Axis("s from profile start")


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
            Axis("turn (the last holds all later ones)"),
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
    return stack(by_turn, columns, n, words), figures.small_multiples(panels, columns=2, height=260)


def reuse(frame: Frame, store: Store, replay: Side) -> tuple[Answer, str]:
    """Reused tokens of each shared source-turn, largest change first; and the whole in a sentence."""
    found = cache.reuse_summary(store, frame.measured.run_id, replay.run_id, frame.population)
    changes = cache.reuse_change(store, frame.measured.run_id, replay.run_id, frame.population, ROW_CAP)
    words, n = "", None
    if not found.not_recorded:
        row = found.one()
        n = row["turns"]
        saved, again = row["reuse_without_recompute_tokens"] or 0, row["recompute_without_reuse_tokens"] or 0
        words = (
            f"{row['equal_turns']:,} of {n:,} shared source-turns reuse the same number of tokens. The replay reuses "
            f"more in {row['more_reuse_turns']:,} ({saved:,} tokens that the measured run recomputed) and less in "
            f"{row['less_reuse_turns']:,} ({again:,} tokens that it recomputed alone)."
        )
    columns = [
        Column("conversation_id", "Conversation", pinned=True),
        Column("turn_index", "Turn", "%d"),
        Column("measured_input_tokens", "Input (tokens)", "%d"),
        Column("measured_cached_tokens", "Cached, measured (tokens)", "%d"),
        Column("replay_cached_tokens", "Cached, replay (tokens)", "%d"),
        Column("change_tokens", "Change (tokens)", "%+d"),
        Column("measured_preemptions", "Preemptions, measured", "%d"),
        Column("replay_preemptions", "Preemptions, replay", "%d"),
        Column("measured_ttft_ms", "TTFT, measured (ms)", "%.1f"),
        Column("replay_ttft_ms", "TTFT, replay (ms)", "%.1f"),
    ]
    return answer(changes, columns, {frame.measured.run_id: n, replay.run_id: n}), words


def events(frame: Frame, store: Store) -> tuple[Answer, Figure]:
    """Blocks per second that were hit, stored and evicted, and preemptions, over the whole capture."""
    span, bins = capture_span(store, *(side.run_id for side in frame.sides)), 100
    results = [(side, cache.event_timeline(store, side.run_id, span, bins)) for side in frame.sides]
    width_s = max(span.length_ns / bins / 1e9, 1e-9)
    edges = span.start_ns / 1e9 + np.arange(bins) * width_s
    panels = []
    for kind in KINDS:
        series = []
        for side, result in results:
            if result.not_recorded:
                continue
            values = np.zeros(bins)
            for row in result.rows():
                if row["kind"] == kind:
                    index = min(int((row["time_ns"] - span.start_ns) / 1e9 / width_s + 0.5), bins - 1)
                    values[index] += (row["events"] if kind == "preempt" else row["blocks"]) / width_s
            series.append(Series(side.role, side.name, edges, values))
        title = "preemptions per s" if kind == "preempt" else f"blocks {_past(kind)} per s"
        panels.append((title, figures.lines(series, X, Axis(title), dark=frame.dark, step=True)))
    totals = [(side, cache.event_totals(store, side.run_id)) for side in frame.sides]
    columns = [
        Column("kind", "Kind"),
        Column("reason", "Reason"),
        Column("events", "Events", "%d"),
        Column("blocks", "Blocks", "%d"),
        Column("p50_age_ms", "Median age (ms)", "%.0f", "time since the block was last used"),
    ]
    n = {s.run_id: None if r.not_recorded else sum(row["events"] for row in r.rows()) for s, r in totals}
    return stack(totals, columns, n), figures.small_multiples(panels, columns=2, height=190)


def _past(kind: str) -> str:
    return {"hit": "hit", "store": "stored", "evict": "evicted"}[kind]


def pool(frame: Frame, store: Store) -> tuple[Answer, Figure]:
    """Blocks that requests refer to, distinct contents held, and blocks that no request refers to."""
    span = capture_span(store, *(side.run_id for side in frame.sides))
    results = [(side, cache.pool_occupancy(store, side.run_id, span, 150)) for side in frame.sides]
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
        panels.append((title, figures.lines(series, X, Axis("blocks"), dark=frame.dark)))
    n = {side.run_id: side.bundle.rows("passes") for side in frame.sides}
    return stack(results, n=n), figures.small_multiples(panels, height=210)


SYMBOLS = {"store": "circle", "hit": "line-ns-open", "evict": "x"}


def conversations(frame: Frame, store: Store) -> list[str]:
    """Conversations of the pair, the one whose reuse changed most first."""
    if frame.replay is None:
        return []
    measured, replay = frame.measured.run_id, frame.replay.run_id
    changes = cache.reuse_change(store, measured, replay, frame.population, ROW_CAP)
    if changes.not_recorded:
        return []
    return list(dict.fromkeys(changes.table.column("conversation_id").to_pylist()))


def history(frame: Frame, store: Store, conversation: str) -> tuple[Answer, Figure]:
    """What happened to each block of a conversation's prompts over time, a panel per side."""
    results = [(side, cache.block_history(store, side.run_id, conversation, ROW_CAP)) for side in frame.sides]
    panels = []
    for side, result in results:
        if result.not_recorded or not len(result):
            continue
        traces = []
        rows = [row for row in result.rows() if row["kind"] == "evict" or row["conversation_id"] == conversation]
        for kind, symbol in SYMBOLS.items():
            part = [row for row in rows if row["kind"] == kind]
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": f"{side.role.name} {kind}",
                    "x": np.array([row["time_ns"] / 1e9 for row in part], dtype=np.float32),
                    "y": np.array([row["block_index"] for row in part], dtype=np.float32),
                    "text": [f"turn {row['turn_index']}" if row["turn_index"] is not None else "" for row in part],
                    "hovertemplate": f"block %{{y}}: {kind} at %{{x:.2f}} s<br>%{{text}}<extra></extra>",
                    "marker": {"symbol": symbol, "size": 7, "color": side.role.colour(frame.dark), "opacity": 0.8},
                }
            )
        y = Axis("block of the prompt")
        panels.append(
            (
                f"{side.role.name}: {len(rows):,} of its own stores and hits, and evictions",
                figures.compose(traces, X, y, dark=frame.dark),
            )
        )
    figure = figures.small_multiples(panels, columns=1, height=230) if panels else {"data": [], "layout": {}}
    columns = [
        Column("block_index", "Block", "%d"),
        Column("first_turn", "First turn that has it", "%d"),
        Column("time_s", "Time (s)", "%.3f"),
        Column("kind", "Event"),
        Column("conversation_id", "By conversation"),
        Column("turn_index", "Turn", "%d"),
        Column("since_last_ms", "Since its last event (ms)", "%.0f"),
        Column("reason", "Reason"),
        Column("request_id", "Request"),
    ]
    n = {side.run_id: None if r.not_recorded else len(r) for side, r in results}
    words = (
        "Blocks are named by content. The chart leaves out what other conversations did with shared blocks; the rows "
        "hold all of it. n: rows."
    )
    return stack(results, columns, n, words), figure
