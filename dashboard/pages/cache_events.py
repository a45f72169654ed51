"""Cache events: what was reused, computed again, stored and evicted on both sides, with preemptions and latency."""

from typing import Any

import streamlit as st

from dashboard import widgets
from dashboard.charts import phases
from dashboard.charts.answer import Answer
from dashboard.charts.cache import blocks, cache, reuse
from dashboard.charts.comparison.cohort import successes
from dashboard.charts.draw import draw

frame, store = widgets.frame("cache_events"), widgets.store()
n = successes(frame, store)


def chosen(selection: Any, answer: Answer | None = None) -> str:
    """The source-turn of a selected mark, or of a selected row of a table."""
    if not selection:
        return ""
    if answer is None:
        points = selection["selection"]["points"]
        key = points[0].get("customdata", "") if points else ""
        return str(key[0] if isinstance(key, list) else key)
    rows = selection["selection"]["rows"]
    return str(answer.rows.column("turn")[rows[0]].as_py()) if rows else ""


bands = phases.said(frame)
draw(
    frame, "hit-ratio", "Token hit ratio", *cache.hit_ratio(frame, store, n), note=f"Over time: whole capture. {bands}"
)
if frame.replays:
    draw(
        frame,
        "numbers",
        "Reuse, preemptions and latency, side by side",
        cache.numbers(frame, store, n),
        height=260,
    )

for side in frame.replays:
    rows, figure, words = reuse.change(frame, store, side)
    title = f"Reuse per source-turn: {frame.measured.role.name} and {side.role.name}, tokens"
    draw(frame, f"reuse-{side.role.name}", title, rows, figure, note=words, sides=(frame.measured, side))
if frame.replays:
    side = widgets.candidate(frame, "reuse_of")
    rows, words = reuse.reasons(frame, store, side)
    title = f"Why reuse differs, largest change first: {frame.measured.role.name} and {side.role.name}"
    pair = (frame.measured, side)
    found = draw(frame, "reasons", title, rows, note=words, sides=pair, height=280, on_select="rerun")
    if turn := chosen(found, rows):
        widgets.request_link(turn, f"{turn} on the Request page")

draw(
    frame,
    "recompute",
    "Recompute without reuse, reuse without recompute",
    *cache.recompute(frame, store, n),
    note=f"Above: over the whole recording. Below: requests of the population. {bands}",
)
title = "Blocks computed and reused, whole recording"
draw(frame, "recompute-totals", title, cache.recompute_totals(frame, store), height=330)
draw(frame, "events", "Cache events over time, whole capture", *cache.events(frame, store), note=bands)
draw(frame, "pool", "KV pool over time, whole capture", *cache.pool(frame, store), note=bands)
draw(frame, "links", "Blocks of events, and who moved them, whole capture", cache.links(frame, store), height=260)

known = blocks.conversations(frame, store)
if known:
    conversation = widgets.control("conv", options=known, default=known[0], width=260, accept_new_options=True)
    found = draw(
        frame,
        "history",
        f"Blocks of the prompts of {conversation}: stored, reused, evicted",
        *blocks.history(frame, store, conversation),
        note="Filled marks: by this conversation; open ones: by another. Click a mark for the request behind it. What "
        "happened to shared blocks before the conversation began is to the left: drag the axis.",
        on_select="rerun",
    )
    if turn := chosen(found):
        widgets.request_link(turn, f"{turn} on the Request page")
    copies = blocks.lives(frame, store, conversation)
    if copies.rows.num_rows:  # else the chart has said why there are none
        title = f"Blocks of the prompts of {conversation}, copy by copy"
        draw(frame, "lives", title, copies, height=360)
else:
    st.caption("No conversation has blocks to follow: none is named, or no source-turn succeeded on both sides.")
