"""Verdict: what this pair shows, what it does not, and by how much the numbers differ."""

import streamlit as st

from dashboard import widgets
from dashboard.charts import verdict, waterfall
from dashboard.charts.cohort import successes
from dashboard.charts.draw import draw
from dashboard.compare import compare
from dashboard.frame import escape
from dashboard.metrics import HEADLINE_METRICS

frame, store = widgets.frame("verdict"), widgets.store()
if not frame.replays:
    st.info("Choose a replay in the bar above: the verdict compares it with the measured run.")
    st.stop()
widgets.need_requests(frame)

contract = widgets.control(
    "gates", placeholder="e.g. ttft.mean<=10%  tpot.mean<=10%  ttft.p90<=15%  hit_ratio.tokens<=1pp"
)
gates = verdict.parse_gates(contract)
measured = frame.measured.run_id
found = [
    (side, compare(store, measured, side.run_id, frame.population, frame.estimator, frame.window, gates))
    for side in frame.replays
]
n = successes(frame, store)

for side, comparison in found:
    with st.container(border=True, key=f"claim-{side.role.name}", gap="xsmall"):
        st.markdown(f"**What this pair shows** :{side.role.word}[{side.role.glyph} {escape(side.run_id)}]")
        st.markdown("\n".join(f"- {escape(sentence)}" for sentence in comparison.claim))
        for warning in comparison.warnings:
            st.markdown(f":material/warning: {escape(warning.text)}")

if frame.like_for_like:
    names = [f"{metric}.{statistic}" for metric in HEADLINE_METRICS for statistic in ("mean", "p50", "p90", "p99")]
    names.append(f"request_rate.{frame.window}")
    draw(
        frame,
        "gaps",
        "Gap of the headline numbers, %",
        verdict.table(frame, store, found[0][0], [found[0][1].row(name) for name in names], n),
        verdict.gaps(frame, found, names),
        note="Grey: where the measured side itself may lie when nothing changes (repeats, else a bootstrap).",
    )

if frame.like_for_like:
    split = widgets.control("split")
    for side, comparison in found:
        mean = comparison.row(f"{split}.mean")
        parts = next(one for one in comparison.decompositions if one.metric == split)
        draw(
            frame,
            f"parts-{side.role.name}",
            f"What the gap of the mean {parts.label} is made of: {frame.measured.role.name} and {side.role.name}, ms",
            *waterfall.waterfall(frame, side, parts, mean),
            note=f"Parts of opposite sign can cancel in a mean that looks right. {parts.note}",
            sides=(frame.measured, side),
        )
        if parts.parts:
            draw(
                frame,
                f"parts-table-{side.role.name}",
                f"Parts of the gap of the mean {parts.label}, {side.role.name}",
                waterfall.table(frame, side, parts, mean),
                sides=(frame.measured, side),
            )

for side, comparison in found:
    pair = (frame.measured, side)
    if comparison.gates:
        held = sum(result.verdict == "pass" for result in comparison.gates)
        draw(
            frame,
            f"gates-{side.role.name}",
            f"Acceptance contract: {held} of {len(comparison.gates)} gates hold",
            verdict.gate_table(comparison),
            sides=pair,
        )
    draw(
        frame,
        f"numbers-{side.role.name}",
        f"{frame.measured.role.name.capitalize()} and {side.role.name}, number by number",
        verdict.table(frame, store, side, comparison.rows, n),
        sides=pair,
        height=560,
    )
    draw(
        frame,
        f"consistency-{side.role.name}",
        "Consistency: requests in flight by Little's law",
        verdict.consistency(frame, side, comparison),
        sides=pair,
        note="When these differ, look at admission and memory before kernels.",
    )
