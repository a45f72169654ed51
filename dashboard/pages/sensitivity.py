"""Sensitivity: which knob moves this gap? Each one step down and up, one at a time."""

from functools import partial

import streamlit as st

from dashboard import widgets
from dashboard.charts.draw import draw
from dashboard.charts.replays import sweeping, tornado
from dashboard.charts.style import noise_note
from dashboard.frame import escape
from dashboard.metrics import SWEEP_NUMBERS
from dashboard.sweeps.effects import effect
from dashboard.sweeps.numbers import played
from dashboard.sweeps.plan import MOST_POINTS, point
from dashboard.sweeps.steps import RULE, USUAL, steps
from dashboard.sweeps.windows import other_window

frame, store = widgets.frame("sensitivity"), widgets.store()
begun = sweeping.start()
left, right = st.columns([1, 3], vertical_alignment="bottom")
with left:
    name = widgets.control("sens_number")
with right:
    knobs = widgets.control("sens_knobs", placeholder="the usual ones") or USUAL
st.caption(f"{escape(RULE)} One knob at a time, all else as in the base: what two knobs do together is not in it.")

found = steps(knobs, begun.now, begun.fixed)
origin = point((), begun.fixed, begun.now)
plan = [origin, *(step.point for step in found.steps)]
if len(plan) > MOST_POINTS:
    st.error(f"These knobs make {len(plan)} points: expected at most {MOST_POINTS}; choose fewer knobs.")
    st.stop()
known = sweeping.run(begun, plan, f"sensitivity of {begun.base.run_id.rpartition('-')[0]}", "sensitivity")

scope, sides = sweeping.scope(frame), sweeping.sides(frame, begun)
first, *others = played(store, known, begun.base.run_id, begun.fit, plan, scope, [name])
measured, noise, apart = sweeping.beside(frame, begun, name)
if apart:
    st.info(escape(apart))
elif other := other_window(store, frame.measured.run_id, begun.base.run_id, plan):
    st.warning(escape(other))
target, base = measured.value if measured else None, first.value(name)
unlike = any(side.regime for side in sides) and not frame.acknowledged
if unlike:
    st.info("These runs are not like for like: what becomes of the gap is withheld until that is acknowledged above.")
    target = None
effects = [
    effect(step, one.run_id, one.value(name), base, target, noise)
    for step, one in zip(found.steps, others, strict=True)
]
table = tornado.table(effects, found.skipped, scope, name)
if base is not None:
    gap = None if target is None else base - target
    spread = None if noise is None or target is None else noise.less(target)
    figure = tornado.bars(effects, scope, name, spread, gap, frame.dark)
    title = f"What one step of each knob does to {SWEEP_NUMBERS[name]}"
    note = f"{noise_note(frame.measured.role.name)} Dotted: the change that closes the gap. Click a bar for its run."
    draw(frame, "tornado", title, table, figure, note=note, sides=sides, on_select=partial(sweeping.chosen, "tornado"))
draw(frame, "steps", "Steps, one by one", table, sides=sides, height=420)
