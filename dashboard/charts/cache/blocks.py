"""The blocks of one conversation over time on both sides: who stored, reused and evicted them, and how long after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dashboard.charts import figures, style
from dashboard.charts.answer import Answer, Column, stack
from dashboard.charts.figures import Axis, Figure
from dashboard.charts.phases import TIME, shaded
from dashboard.frame import Frame
from dashboard.queries import cache, reuse
from dashboard.queries.ranges import capture_span
from dashboard.store import Store

EVENTS: dict[str, tuple[str, tuple[str, str], str]] = {
    "store": ("stored", ("#4A9A8A", "#7FCFC0"), "circle"),
    "hit": ("reused", ("#0B4A75", "#9AD3F5"), "diamond"),
    "readmit": ("reused after a preemption", ("#8C7AA9", "#B7A5D6"), "triangle-up"),
    "restore": ("loaded from the host", ("#2F8F83", "#B5E3D8"), "triangle-down"),
    "evict": ("evicted", ("#D0702C", "#E89B4F"), "x"),
}
"""Word, colour and mark of what happens to a block; the side is told by the panel."""
UNNAMED = "No event moved a block of these prompts, or the runs do not say which blocks the prompts have."
MOST_MOVES = 1_500
"""Moves of blocks that are drawn, of all sides together: a browser draws more of them with a pause."""
HELD = ("#C9C9CF", "#55555C")


def conversations(frame: Frame, store: Store) -> list[str]:
    """Conversations, the one whose reuse differs most on the two sides first; of one run: most computed again first."""
    if frame.replay is not None:
        pair = (frame.measured.run_id, frame.replay.run_id)
        found = reuse.conversations(store, *pair, frame.population)
    else:
        found = cache.recompute_conversations(store, frame.measured.run_id, frame.population_of(frame.measured))
    return [] if found.not_recorded else list(found.table.column("conversation_id").to_pylist())


def history(frame: Frame, store: Store, conversation: str) -> tuple[Answer, Figure]:
    """What happened to each block of a conversation's prompts over time, a panel per side; a mark names who did it."""
    most = MOST_MOVES // len(frame.sides)
    results = [(side, cache.block_history(store, side.run_id, conversation, most)) for side in frame.sides]
    span = capture_span(store, *(side.run_id for side in frame.sides))
    found = [(side, result.rows()) for side, result in results if not result.not_recorded and len(result)]
    x = Axis(TIME, range=_shown([rows for _, rows in found]))
    panels = []
    for side, rows in found:
        held = cache.block_lives(store, side.run_id, conversation).rows()
        traces = [_held(held, span.end_ns, frame.dark), *_marks(rows, frame.dark)]
        panels.append((side.role.name, figures.compose(traces, x, Axis("block of the prompt"), dark=frame.dark)))
    figure = figures.small_multiples(panels, columns=1, height=250) if panels else {"data": [], "layout": {}}
    shaded(frame, figure)
    columns = [
        Column("time_s", "Time (s)", "%.3f"),
        Column("kind", "Event"),
        Column("first_block", "First block", "%d"),
        Column("last_block", "Last block", "%d"),
        Column("blocks", "Blocks", "%d"),
        Column("turn", "By"),
        Column("rule", "Known from"),
        Column("since_last_from_ms", "Since last use, least (ms)", "%.0f"),
        Column("since_last_to_ms", "Since last use, most (ms)", "%.0f"),
        Column("again", "Computed before"),
        Column("reason", "Reason"),
    ]
    n = {side.run_id: None if r.not_recorded else len(r) for side, r in results}
    words = (
        "Blocks are named by content, and neighbours that one request moved at one time are one row. What other "
        "conversations reused is counted in the table below. Times are those of the scheduling. Age of an eviction: as "
        "recorded, else since the last request that used the block was released. n: rows."
    )
    return replace(stack(results, columns, n, words), empty=UNNAMED), figure


def _shown(sides: Sequence[Sequence[dict[str, Any]]]) -> tuple[float, float] | None:
    """Seconds from the conversation's own first event to the last of its blocks; what came before is left of it."""
    own = [row["time_ns"] / 1e9 for rows in sides for row in rows if row["own"]]
    if not own:
        return None
    last = max(row["time_ns"] / 1e9 for rows in sides for row in rows)
    margin = 0.05 * max(last - min(own), 1.0)
    return min(own) - margin, last + margin


def _marks(rows: Sequence[dict[str, Any]], dark: bool) -> list[dict[str, Any]]:
    """A bar over the blocks that one request moved at one time, and a mark: filled where the conversation did it."""
    traces: list[dict[str, Any]] = []
    for kind, (word, colours, symbol) in EVENTS.items():
        part = [row for row in rows if row["kind"] == kind]
        if not part:
            continue
        colour = style.pick(colours, dark)
        first = np.array([row["first_block"] for row in part], dtype=np.float32)
        last = np.array([row["last_block"] for row in part], dtype=np.float32)
        bars = np.stack([first - 0.4, (first + last) / 2, last + 0.4, np.full(len(part), np.nan)], axis=1)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": word,
                "x": np.repeat(np.array([row["time_ns"] / 1e9 for row in part], dtype=np.float32), 4),
                "y": bars.astype(np.float32).ravel(),
                "customdata": [row["turn"] or "" for row in part for _ in range(4)],
                "text": [said for row in part for said in [_said(row, word)] * 4],
                "hovertemplate": "%{text}<extra></extra>",
                "connectgaps": False,
                "line": {"color": colour, "width": 3},
                "marker": {
                    "symbol": [symbol if row["own"] else f"{symbol}-open" for row in part for _ in range(4)],
                    "size": [0, 9, 0, 0] * len(part),
                    "opacity": 1,
                    "color": colour,
                    "line": {"width": 1.5, "color": colour},
                },
            }
        )
    return traces


def _said(row: dict[str, Any], word: str) -> str:
    by = f"by {row['turn']}" if row["turn"] else f"by whom is not known: {row['rule']}"
    low, high = row["since_last_from_ns"], row["since_last_to_ns"]
    first, last = row["first_block"], row["last_block"]
    which = f"block {first}" if first == last else f"blocks {first} to {last}"
    text = f"{which} {word} at {row['time_ns'] / 1e9:.2f} s {by}"
    if low is not None:
        text += f", {low / 1e9:.2f}{f' to {high / 1e9:.2f}' if high > low else ''} s after its last use"
    return text


def _held(lives: Sequence[dict[str, Any]], end_ns: int, dark: bool) -> dict[str, Any]:
    """A thin line from store to eviction for each copy that the pool held."""
    shown = [life for life in lives if life["stored_time_ns"] is not None]
    xs = np.full(3 * len(shown), np.nan, dtype=np.float32)
    ys = np.full(3 * len(shown), np.nan, dtype=np.float32)
    xs[0::3] = [life["stored_time_ns"] / 1e9 for life in shown]
    xs[1::3] = [(end_ns if life["gone_time_ns"] is None else life["gone_time_ns"]) / 1e9 for life in shown]
    ys[0::3] = ys[1::3] = [life["block_index"] for life in shown]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "held",
        "x": xs,
        "y": ys,
        "line": {"color": style.pick(HELD, dark), "width": 2},
        "hoverinfo": "skip",
        "connectgaps": False,
    }


def lives(frame: Frame, store: Store, conversation: str) -> Answer:
    """Block by block: every copy that the pool held, who stored it, used it last and evicted it, and how long after."""
    results = [(side, cache.block_lives(store, side.run_id, conversation)) for side in frame.sides]
    columns = [
        Column("block_index", "Block", "%d", pinned=True),
        Column("first_turn", "First turn that has it", "%d"),
        Column("copy", "Copy", "%d", "the second one was computed after the first was evicted"),
        Column("stored_time_s", "Stored (s)", "%.2f"),
        Column("stored_by", "Stored by"),
        Column("own_hits", "Reused by itself", "%d"),
        Column("other_hits", "Reused by others", "%d"),
        Column("last_used_time_s", "Last used (s)", "%.2f"),
        Column("last_used_by", "Last used by"),
        Column("became", "What became of it"),
        Column("gone_time_s", "Gone (s)", "%.2f"),
        Column("evicted_by", "Evicted by"),
        Column("evicted_rule", "Known from"),
        Column("age_ms", "Since last use (ms)", "%.0f"),
    ]
    n = {side.run_id: None if r.not_recorded else len(r) for side, r in results}
    words = (
        "A row is a copy that the pool held. It is last used when the last request that stored or reused it is "
        "released. Evicted by: the request whose allocation took the block. n: rows."
    )
    return replace(stack(results, columns, n, words), empty=UNNAMED)
