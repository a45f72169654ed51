"""Sweep: a number along one knob or over two, and which settings no other one beats."""

from functools import partial

import streamlit as st

from dashboard import widgets
from dashboard.charts.comparison import contract
from dashboard.charts.draw import draw
from dashboard.charts.replays import sweeping, sweeps
from dashboard.frame import escape
from dashboard.jobs import what_if
from dashboard.metrics import SWEEP_NUMBERS
from dashboard.sweeps.numbers import played
from dashboard.sweeps.plan import parse_axis, points, usual
from dashboard.sweeps.windows import other_window
from engine.errors import GapscopeError

frame, store = widgets.frame("sweep"), widgets.store()
begun = sweeping.start()
axes, plan = [], []
row = st.columns(4, vertical_alignment="bottom")
try:
    for at, (knob, values) in enumerate((("swp_x", "swp_x_at"), ("swp_y", "swp_y_at"))):
        with row[2 * at]:
            name = widgets.control(knob, flat=False)
        if name:
            around = usual(name, {**begun.now, **begun.fixed}[name])
            with row[2 * at + 1]:
                text = widgets.control(values, placeholder=around or "e.g. 1,2,4")
            axes.append(parse_axis(name, text or around))
    plan = points(axes, begun.now, begun.fixed)
except GapscopeError as error:
    st.error(escape(str(error)))
    st.stop()
names = " x ".join(axis.knob for axis in axes)
known = sweeping.run(begun, plan, f"sweep of {names} from {begun.base.run_id.rpartition('-')[0]}", "sweep")

gates = contract.edit()
with st.container(horizontal=True, vertical_alignment="bottom"):
    number = widgets.control("swp_number", width=220)
    rate = widgets.control("swp_rate", width=240, flat=False)
    tail = widgets.control("swp_tail", width=160)
scope, sides = sweeping.scope(frame), sweeping.sides(frame, begun)
wanted = list(dict.fromkeys((number, rate, tail)))
found = played(store, known, begun.base.run_id, begun.fit, plan, scope, wanted, gates)
measured, noise, apart = sweeping.beside(frame, begun, number)
if apart:
    st.info(escape(apart))
elif other := other_window(store, frame.measured.run_id, begun.base.run_id, plan):
    st.warning(escape(other))
n = {frame.measured.run_id: measured.n if measured else None}
table = sweeps.table(found, axes, scope, wanted, n)
value = measured.value if measured else None
if any(one.run_id for one in found):
    if gates:
        holding = sum(one.holds is True for one in found)
        st.markdown(f"{holding} of {sum(one.run_id is not None for one in found)} played points hold the contract.")
    if len(axes) == 1:
        own = what_if.base_values(frame.measured.bundle)[axes[0].knob]
        figure = sweeps.curve(found, axes[0], scope, number, (own, value, noise), frame.dark)
        title = f"{SWEEP_NUMBERS[number]} along {axes[0].knob}"
        note = (
            "Band: noise of the measured run; the light one: how far redrawing reaches beyond one or two repeats. Open "
            "marks fail the contract. Click a mark for its run as a candidate."
        )
        draw(frame, "curve", title, table, figure, note=note, sides=sides, on_select=partial(sweeping.chosen, "curve"))
    else:
        title = f"{SWEEP_NUMBERS[number]} over {names}"
        note = "A cross fails the contract. Click a cell for its run as a candidate."
        figure = sweeps.grid(found, axes, scope, number, frame.dark)
        draw(frame, "grid", title, table, figure, note=note, sides=sides, on_select=partial(sweeping.chosen, "grid"))
    beside = sweeping.value_beside(frame, begun, rate), sweeping.value_beside(frame, begun, tail)
    figure = sweeps.pareto(found, scope, (rate, tail), beside, frame.dark)
    title = f"Throughput against {SWEEP_NUMBERS[tail]}: the Pareto front"
    note = "No point has more throughput and less latency than one on the front. A cross fails the contract."
    draw(frame, "pareto", title, table, figure, note=note, sides=sides, on_select=partial(sweeping.chosen, "pareto"))
draw(frame, "points", "Points of the sweep", table, sides=sides, height=420)
