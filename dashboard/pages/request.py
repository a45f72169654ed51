"""Request: one source-turn on both sides, over the passes it took part in, with its neighbours, blocks and tokens."""

import streamlit as st

from dashboard import widgets
from dashboard.charts.draw import draw
from dashboard.charts.requests import request, request_blocks, request_time, traces
from dashboard.frame import escape
from dashboard.pairs import shorten

ALL_BOUNDARIES = 36 * (1 + len(request.BOUNDARIES))
"""Height of a table that shows every boundary without scrolling, in pixels."""

frame, store = widgets.frame("request"), widgets.store()

with st.container(horizontal=True, vertical_alignment="bottom"):
    place = st.container(width=300)
    by = widgets.control("turn_by", flat=False, width=220)
    frame = widgets.led(frame, "turn_of")
listed = request.turns(frame, store, by)
names = request.names(listed)
if not names:
    st.info(escape(listed.not_recorded or "Neither side dispatched a request of this population and phase."))
    st.stop()
with place:
    turn = widgets.control("turn", options=names, default=names[0], accept_new_options=True) or names[0]
chosen = request.choose(frame, store, turn)

if not chosen.sides:
    name, example = escape(shorten(turn)), escape(names[0])
    st.info(f"None of these runs has a source-turn {name}. Its name is conversation/turn, as in {example}.")
else:
    for sentence in [*request.states(chosen), *request_time.silences(store, chosen)]:
        st.info(escape(sentence), icon=":material/info:")
    sides = tuple(side for side, _ in chosen.sides)
    draw(
        frame,
        "timeline",
        f"Source-turn {turn} over the passes it took part in, ms from its dispatch",
        *request_time.timeline(frame, store, chosen),
        note=request.summary(chosen),
        sides=sides,
    )
    traces.trace_buttons(sides, requests=[one.request_id for _, one in chosen.sides])
    told = request.boundaries(frame, store, chosen)
    draw(frame, "boundaries", "Boundaries, ms from dispatch", told, sides=sides, height=ALL_BOUNDARIES)
    draw(frame, "facts", "Facts", request.facts(store, chosen), sides=sides)
    draw(frame, "tokens", "Output tokens received", *request_time.tokens(frame, store, chosen), sides=sides)
    others, words = request.neighbours(frame, store, chosen)
    draw(
        frame,
        "neighbours",
        "Who shared its passes",
        others,
        note=f"{words} Click a row to turn to it.".strip(),
        sides=sides[:2],
        height=260,
        on_select=widgets.turn_chooser("neighbours", request.names(others)),
    )
    blocks, figure, counted = request_blocks.blocks(frame, store, chosen)
    draw(frame, "blocks", "Blocks of its prompt at the first admission", blocks, figure, note=counted, sides=sides)

draw(
    frame,
    "turns",
    "Source-turns by their difference",
    listed,
    note="Successes of both sides first, the largest difference in front. Click a row to turn to it.",
    sides=frame.sides[:2],
    height=260,
    on_select=widgets.turn_chooser("turns", names),
)
