"""Cache events: what was reused, stored and evicted on both sides, with preemptions and latency beside it."""

import streamlit as st

from dashboard import widgets
from dashboard.charts import cache
from dashboard.charts.cohort import successes
from dashboard.charts.draw import draw

frame, store = widgets.frame("cache_events"), widgets.store()

draw(frame, "hit-ratio", "Token hit ratio", *cache.hit_ratio(frame, store, successes(frame, store)))

for side in frame.replays:
    rows, words = cache.reuse(frame, store, side)
    draw(
        frame,
        f"reuse-{side.role.name}",
        f"Reuse per source-turn, largest change first: measured and {side.role.name}",
        rows,
        note=words,
        sides=(frame.measured, side),
        height=260,
    )

draw(frame, "events", "Cache events over time", *cache.events(frame, store))
draw(frame, "pool", "KV pool over time", *cache.pool(frame, store))

known = cache.conversations(frame, store)
if known:
    conversation = widgets.control("conv", options=known, default=known[0], width=260)
    draw(
        frame,
        "history",
        f"Blocks of the prompts of {conversation}: stored, hit, evicted",
        *cache.history(frame, store, conversation),
    )
else:
    st.caption("The history of a conversation's blocks needs a replay that shares source-turns with the measured run.")
