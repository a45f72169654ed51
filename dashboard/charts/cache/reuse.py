"""Charts of reuse per source-turn: how far it differs on the two sides, and what had become of the missing blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from dashboard.charts import figures
from dashboard.charts.answer import Answer, Column, answer, in_units
from dashboard.charts.figures import Axis, Figure
from dashboard.frame import Frame, Side, header
from dashboard.queries import reuse as queries
from dashboard.store import ROW_CAP, Store

REASONS = {
    "evicted": "evicted before",
    "not_stored": "not stored before",
    "diverged": "other content than in the turn before",
    "held": "held, but not reused",
    "no_block": "its prompt has no such whole block",
    "cleared": "cleared before",
    "elsewhere": "held by another rank",
    "unknown": "blocks not recorded",
}
"""What had become of the first block that only the other side reused: docs/metrics.md."""
NOTHING_SHARED = "No source-turn that both sides share has its reused tokens recorded on both, so none can be compared."


def change(frame: Frame, store: Store, replay: Side) -> tuple[Answer, Figure, str]:
    """Reused tokens of each shared source-turn: cells of both sides, a histogram of the change, and words."""
    pair = (frame.measured.run_id, replay.run_id)
    rows = queries.change(store, *pair, frame.population, ROW_CAP)
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
    if rows.not_recorded:
        return answer(rows, columns), {"data": [], "layout": {}}, ""
    total = queries.summary(store, *pair, frame.population)
    n = dict.fromkeys(pair, total.turns)
    if not total.turns:
        return replace(answer(rows, columns, n), empty=NOTHING_SHARED), {"data": [], "layout": {}}, ""
    words = (
        f"{total.equal_turns:,} of {total.turns:,} shared source-turns reuse the same number of tokens. "
        f"{replay.called[0].upper()}{replay.called[1:]} reuses more in {total.more_turns:,} "
        f"({total.measured_missed_tokens:,} tokens that the {frame.measured.role.name} run computed) "
        f"and less in {total.less_turns:,} ({total.replay_missed_tokens:,} tokens that it computed alone)."
    )
    panels = [("cached tokens, larger marks: more turns", _cells(frame, store, replay))]
    if total.equal_turns < total.turns:
        title = "turns by change of cached tokens, equal ones left out"
        panels.append((title, _histogram(frame, store, replay)))
    figure = figures.small_multiples(panels, columns=2, height=280)
    return answer(rows, columns, n), figure, words


def _cells(frame: Frame, store: Store, replay: Side) -> Figure:
    found = queries.bins(store, frame.measured.run_id, replay.run_id, frame.population)
    x, y = found.array("measured_tokens"), found.array("replay_tokens")
    axes = (Axis(f"{frame.measured.role.name}, tokens"), Axis(f"{replay.role.name}, tokens"))
    figure = figures.cloud(
        [(replay.role, replay.name, x, y, found.array("turns"))] if len(found) else [], [], *axes, dark=frame.dark
    )
    ends = np.array([0.0, max(x.max(initial=1), y.max(initial=1))])
    figure["data"].insert(0, figures.reference_line("equal", ends, ends, dark=frame.dark))
    return figure


def _histogram(frame: Frame, store: Store, replay: Side) -> Figure:
    found = queries.histogram(store, frame.measured.run_id, replay.run_id, frame.population)
    rows = [row for row in found.rows() if row["from_tokens"]]
    width = max(abs(row["to_tokens"] - row["from_tokens"]) + 1 for row in rows)
    trace = {
        "type": "bar",
        "name": replay.name,
        "x": np.array([(row["from_tokens"] + row["to_tokens"]) / 2 for row in rows], dtype=np.float32),
        "y": np.array([row["turns"] for row in rows], dtype=np.float32),
        "width": width * 0.9,
        "text": [f"{row['from_tokens']:+,} to {row['to_tokens']:+,} tokens" for row in rows],
        "textposition": "none",
        "hovertemplate": "%{text}: %{y} turns<extra></extra>",
        "marker": {"color": replay.role.colour(frame.dark)},
    }
    axes = (Axis(header(frame, "cached tokens, replay less measured")), Axis("source-turns"))
    return figures.compose([trace], *axes, dark=frame.dark)


def reasons(frame: Frame, store: Store, replay: Side) -> tuple[Answer, str]:
    """Source-turns whose reuse differs, largest change first, with what became of the blocks; the whole in words."""
    pair = (frame.measured.run_id, replay.run_id)
    names = {"measured": frame.measured.role.name, "replay": replay.role.name}
    results: dict[str, queries.Missing] = {
        "measured": queries.missing(store, *pair, frame.population, "measured"),
        "replay": queries.missing(store, *pair, frame.population, "replay"),
    }
    columns = [
        Column("turn", "Source-turn", pinned=True),
        Column("less", "Less reuse"),
        Column("measured_cached_tokens", "Cached, measured (tokens)", "%d"),
        Column("replay_cached_tokens", "Cached, replay (tokens)", "%d"),
        Column("change_tokens", "Change (tokens)", "%+d"),
        Column("why", "What became of the first block that only the other side reused", width=430),
        Column("missing_blocks", "Missing (blocks)", "%d"),
        Column("evicted_blocks", "Evicted (blocks)", "%d"),
        Column("unstored_blocks", "Not stored (blocks)", "%d"),
        Column("held_blocks", "Held (blocks)", "%d", "behind a block that is missing, reuse cannot go on"),
        Column("measured_preemptions", "Preemptions, measured", "%d"),
        Column("replay_preemptions", "Preemptions, replay", "%d"),
        Column("measured_ttft_ms", "TTFT, measured (ms)", "%.1f"),
        Column("replay_ttft_ms", "TTFT, replay (ms)", "%.1f"),
    ]
    said = " ".join(dict.fromkeys(result.not_recorded for result in results.values() if result.not_recorded))
    sql = "\n\n".join(f"-- less reuse: {names[less]}\n{result.sql}" for less, result in results.items())
    told = [row for result in results.values() for row in result.rows]
    if said and not told:
        return Answer(pa.table({}), sql, columns, not_recorded=said), ""
    told.sort(key=lambda row: (-abs(row["change_tokens"]), row["conversation_id"] or "", row["turn_index"] or 0))
    rows = [row | {"less": names[row["less"]], "why": why(row)} for row in told]
    words = "A block is looked for among the events of the side that reused less, up to its first admission."
    shared = queries.summary(store, *pair, frame.population).turns
    n = dict.fromkeys(pair, shared)
    words += " n: shared source-turns that were compared; the rows are those whose reuse differs."
    empty = "Every shared source-turn reuses the same number of tokens on both sides." if shared else NOTHING_SHARED
    cut = any(result.truncated for result in results.values())
    table = in_units(pa.Table.from_pylist(rows))
    return Answer(table, sql, columns, n, words, None, cut, empty), " ".join([*_counts(told, names), said])


def why(row: Mapping[str, Any]) -> str:
    """What had become of the block at which reuse ended, in words."""
    said = f"block {row['first_block']}: {REASONS[row['reason']]}"
    by = "itself" if row["by_itself"] else row["by_turn"]
    if row["reason"] == "evicted":
        before = row["evicted_before_ns"]
        said += f", {before / 1e9:.2f} s earlier" if before else ", in the same pass"
        said += f", by {by} ({row['by_rule']})" if by else f"; by whom is not known: {row['by_rule']}"
    elif row["reason"] == "not_stored" and by:
        said += f"; first by {by}" + (f", {row['stored_after_ns'] / 1e9:.2f} s later" if by != "itself" else "")
    if row["origin"]:
        said += f". On the other side {row['origin']} had stored it, which here was: {row['origin_state']}"
    return said


def _counts(told: list[dict[str, Any]], names: Mapping[str, str]) -> list[str]:
    """Turns and tokens by reason, a sentence per side."""
    found = []
    for less, name in names.items():
        rows = [row for row in told if row["less"] == less]
        by_reason: dict[str, list[int]] = {}
        for row in rows:
            by_reason.setdefault(REASONS[row["reason"]], []).append(abs(row["change_tokens"]))
        if rows:
            parts = [f"{reason} in {len(t):,} ({sum(t):,} tokens)" for reason, t in sorted(by_reason.items())]
            found.append(f"Less reuse in the {name} run: the first missing block was {'; '.join(parts)}.")
    return found
