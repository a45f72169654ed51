"""What came of a what-if: which candidate has the knobs on screen, and the candidates beside the measured run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import streamlit as st

from dashboard import widgets
from dashboard.charts.answer import Answer, Column
from dashboard.charts.comparison import contract, number_table
from dashboard.charts.comparison.cohort import successes
from dashboard.charts.draw import draw
from dashboard.charts.panel.tables import column_config
from dashboard.charts.timing import timing_regime
from dashboard.compare.gates import Gate, judge
from dashboard.compare.numbers import Key
from dashboard.frame import Frame, escape
from dashboard.jobs import what_if
from dashboard.store import Store
from engine.bundle import Bundle
from engine.timing.anchors import AxisRow

SHOWN = (("ttft", "mean"), ("ttft", "p90"), ("tpot", "mean"), ("e2e", "mean"), ("hit_ratio", "tokens"))


def staleness(shown: Mapping[str, Mapping[str, Any]], changed: Mapping[str, Any]) -> tuple[str, bool]:
    """What the candidates show of the knobs on screen, as a sentence, and whether that is something else.

    Args:
        shown: the candidates that were made from the base run, each with what it changed.
        changed: what the knobs on screen change.
    """
    for place, own in shown.items():
        if dict(own) == dict(changed):
            return f"Shown: {place} is the replay with the knobs on screen.", False
    if not shown:
        return "", False
    place, own = list(shown.items())[-1]
    words = what_if.words(own)
    return f"Stale. Shown: the replay {words} ({place}); the knobs on screen were not run yet.", True


def made_from(frame: Frame, base: Bundle, now: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """The candidates that replay the base run, by their place, each with the knobs that it changed."""
    found = {}
    for side in frame.replays:
        lineage = side.bundle.lineage
        origin = lineage.get("parent_run") or lineage.get("like")
        if side.bundle.kind == "replay" and base.run_id in (origin, side.run_id):
            found[side.role.name] = what_if.changed_by(side.bundle, now, changed)
    return found


def effect(frame: Frame, store: Store, gates: Sequence[Gate]) -> None:
    """The headline numbers of every candidate beside the measured run, and whether they hold the contract."""
    keys = [*(Key(*one) for one in SHOWN), Key("output_rate", frame.window.value)]
    found = number_table.number_rows(frame, store, keys)
    n = successes(frame, store)
    draw(frame, "effect", "Candidates beside the measured run", number_table.table(frame, store, found, n), height=300)
    if gates:
        draw(frame, "contract", "Acceptance contract by candidate", by_candidate(frame, store, gates))


def by_candidate(frame: Frame, store: Store, gates: Sequence[Gate]) -> Answer:
    """Every gate with its verdict on every candidate."""
    rows = []
    for gate in gates:
        row: dict[str, Any] = {"gate": gate.text, "population": gate.population.words}
        for index, side in enumerate(frame.replays):
            result = judge(store, frame.measured.run_id, side.run_id, gate, frame.estimator)
            row[f"verdict_{index}"] = f"{result.verdict}: {result.reason}"
        rows.append(row)
    columns = [Column("gate", "Gate", pinned=True)]
    columns += [Column(f"verdict_{index}", side.role.name.capitalize()) for index, side in enumerate(frame.replays)]
    return Answer(
        pa.Table.from_pylist(rows),
        "",
        [*columns, Column("population", "Population")],
        definition="Each gate on unrounded values; a number that is missing on a side fails its gate.",
    )


def axes(rows: Sequence[AxisRow]) -> None:
    """The regime of a refused anchor and of what it would stand for, axis by axis."""
    shown_columns = timing_regime.axis_columns("Anchor")
    st.dataframe(
        pa.Table.from_pylist([timing_regime.axis_row(row) for row in timing_regime.telling(rows)]),
        key="refused-axes",
        hide_index=True,
        placeholder="–",
        column_config=column_config(shown_columns),
        column_order=[one.name for one in shown_columns],
        alt="Regime of the anchor and of what it would stand for, axis by axis",
    )


def result(base: Bundle, now: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
    """The candidates of the pair bar in place, with what they say of the knobs on screen."""
    if not st.session_state.get("m") or not st.session_state.get("r"):
        st.caption("Choose a measured run and a replay in the bar above: candidates then stand beside each other here.")
        return
    frame, store = widgets.frame("what_if"), widgets.store()
    words, stale = staleness(made_from(frame, base, now, changed), changed)
    if words:
        (st.warning if stale else st.caption)(escape(words))
    with st.expander("Candidates and acceptance contract", expanded=True, key="result"):
        gates = contract.edit()
        if frame.replays and all("requests" in store.tables(side.run_id) for side in frame.sides):
            effect(frame, store, gates)
        elif not frame.replays:
            st.info("No candidate stands in the bar above yet: run the replay, or choose one.")
        else:
            st.info("One of the runs in the bar above has no requests: there is nothing to compare.")


def start(known: Sequence[str], restart: Callable[[], None]) -> tuple[Bundle, list[str]]:
    """The controls of the run to start from and of the passes to fit its timing on; the run, and those passes."""
    entries, store = widgets.entries(), widgets.store()
    in_pair = [one for one in (*(st.session_state.get("r") or ()), st.session_state.get("m")) if one in known]
    left, right = st.columns([1, 1])
    with left:
        base_id = widgets.control("base", options=known, default=(in_pair or known)[0], on_change=restart)
        if place := next((entry.place for entry in entries if entry.run_id == base_id), ""):
            took = (
                ""
                if next(e.point for e in entries if e.run_id == base_id)
                else ", what it took from the measurement is not"
            )
            st.caption(f"This run is {escape(place)}: its knobs are kept{took}.")
    base = store.bundle(base_id)
    with right:
        fit = widgets.control(
            "fit", options=what_if.fit_choices(entries), default=what_if.default_fit(store, base, entries)
        )
        if not fit:
            st.caption(
                "The timing model of the run to start from is used."
                if what_if.holds_model(base)
                else "This run holds no timing model: choose measured passes to fit one on, or set timing to fixed."
            )
    return base, fit


def onward(base: str, changed: str) -> None:
    """Links to the pages that play the same run many times, with the changed knobs as they are."""
    query = {"base": base, "swp_with": changed.replace(", ", " ")}
    with st.container(horizontal=True, gap="small"):
        for page, label, said in (
            ("sweep", "Sweep a knob from here", "One knob or two, with these changes at every point"),
            ("sensitivity", "Which knob moves the gap?", "Each knob one step down and up, from these changes"),
        ):
            st.page_link(widgets.PAGES_FOLDER / f"{page}.py", label=label, query_params=query, help=said)
