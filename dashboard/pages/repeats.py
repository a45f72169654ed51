"""Repeats: by how much does a run differ from itself when nothing is changed, and where does the replay stand?"""

from dataclasses import replace

import streamlit as st

from dashboard import widgets
from dashboard.catalogue import KIND_WORDS
from dashboard.charts.comparison import history, repeats
from dashboard.charts.comparison.cohort import successes
from dashboard.charts.draw import draw
from dashboard.charts.style import REPEAT
from dashboard.compare.history import history as history_of
from dashboard.compare.numbers import Key
from dashboard.compare.repeats import repeat_rows, standings
from dashboard.frame import escape
from dashboard.queries.history import kept_out
from dashboard.queries.identity import failed_checks, failed_repeats, near_repeats
from dashboard.queries.identity import repeats as repeats_of

frame, store = widgets.frame("repeats"), widgets.store()
run = frame.measured.run_id
if frame.measured.bundle.kind != "measured":
    st.info(
        "A replay has no repeats: the same inputs give the same run. Choose a recording as the measured run."
        if frame.measured.bundle.kind == "replay"
        else f"Run {run} has no requests, it is a {KIND_WORDS[frame.measured.bundle.kind]}: choose a recording as the "
        "measured run."
    )
    st.stop()

choice = (frame.population, frame.estimator, frame.window)
placed = {side.run_id: side for side in frame.replays}
found = [
    (placed.get(other) or widgets.side(run, other, REPEAT), repeat_rows(store, run, other, *choice))
    for other in repeats_of(store, run)
]
others = tuple(side.run_id for side, _ in found)
replays = [side for side in frame.replays if side.bundle.kind == "replay"]

if found:
    st.markdown(
        f"{len(found)} repeat{'s' if len(found) > 1 else ''} of {escape(run)}: measured runs with an equal identity. "
        "What differs here is what differs when nothing is changed."
    )
else:
    st.info("The store holds no repeat of this run: what may change by itself is a bootstrap over its lanes alone.")
for other in failed_repeats(store, run):
    checks = ", ".join(failed_checks(store, other))
    st.warning(escape(f"{other} has an equal identity but failed its checks ({checks}): it counts as no repeat."))
if frame.population.matched:
    st.info(
        "Source-turns are matched pair by pair, so a replay is placed against the repeats for whole populations only."
    )
    replays = []
standing = [(side, standings(store, run, side.run_id, others, *choice)) for side in replays]
liked = [(side, rows) for side, rows in standing if frame.acknowledged or not side.regime]

if found:
    shown = replace(frame, replays=(*(side for side, _ in found), *(side for side, _ in liked)))
    first = replace(frame, replays=(found[0][0],))
    draw(
        shown,
        "run-to-run",
        f"Difference from the run, %: its repeats{' and the replay' if liked else ''}",
        repeats.repeat_table(first, store, found[0][0], found[0][1], successes(shown, store)),
        repeats.gaps(frame, found, liked),
        note="Grey: the bootstrap of the run. A repeat that leaves it says that the bootstrap is too narrow."
        + (
            f" Of {len(shown.replays)} runs the first {repeats.MOST_BARS} are drawn."
            * (len(shown.replays) > repeats.MOST_BARS)
        ),
    )
for side, rows in found:
    pair = replace(frame, replays=(side,))
    draw(
        pair,
        f"repeat-{side.run_id}",
        f"Run and repeat {side.run_id}, number by number",
        repeats.repeat_table(pair, store, side, rows, successes(pair, store)),
        height=420,
    )
    st.button(
        "Compare with this repeat on every page",
        icon=":material/repeat:",
        key=f"compare-{side.run_id}",
        on_click=widgets.compare_first,
        args=(side.run_id,),
        disabled=[side.run_id] == [one.run_id for one in frame.replays[:1]],
    )
for side, places in standing:
    pair = replace(frame, replays=(side,))
    draw(
        pair,
        f"standing-{side.role.name}",
        f"Where {side.role.name} stands against the repeats and the bootstrap",
        repeats.standing_table(pair, store, side, places, successes(pair, store)),
        height=420,
    )
number = Key.parse(widgets.control("hist", flat=False, width=220))
alone = replace(frame, replays=(), population=frame.population.whole())
draw(
    alone,
    "history",
    f"{number.label} {number.statistic} of this experiment over time, {number.unit}",
    *history.history(alone, number, history_of(store, run, number, alone.population, frame.estimator)),
    note=history.kept_out(kept_out(store, run)),
)
draw(
    frame,
    "near",
    "Measured runs that are no repeats, and the identity fields in the way",
    repeats.near_table(near_repeats(store, run)),
)
