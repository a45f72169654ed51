"""Charts of who took part: the ledger, requests over time, lanes, and what only one side finished."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from dashboard.charts import figures, phases, style
from dashboard.charts.answer import Answer, Column, answer, stack
from dashboard.charts.comparison.number_table import number_rows, table
from dashboard.charts.figures import Axis, Figure, Series
from dashboard.compare.numbers import Key
from dashboard.frame import Frame, Side
from dashboard.queries import cohort, outcomes
from dashboard.queries.ranges import Span, capture_span, few_ends, without_end
from dashboard.queries.totals import totals
from dashboard.store import Result, Store

MOST_SPANS = 1_600
"""Requests that a chart of lanes draws, of all sides together: a browser draws more of them with a pause."""
_LEDGER = ("attempted", "ok", "error", "rejected", "canceled", "in_flight")


def successes(frame: Frame, store: Store) -> dict[str, int | None]:
    """Successful requests of the population on each side: the ``n`` of request charts."""
    return {
        side.run_id: totals(store, side.run_id, frame.population_of(side)).total("ok")
        for side in frame.sides
        if "requests" in side.bundle.tables
    }


def ledger(frame: Frame, store: Store) -> tuple[Answer, list[str]]:
    """The ledger of every side by phase, and what does not balance."""
    rows, problems, sql = [], [], []
    for side in frame.sides:
        found = cohort.ledger(store, side.run_id)
        problems += [f"{side.role.name} {side.run_id}: {problem}" for problem in found.problems]
        sql.append(f"-- {side.role.name}\n{found.result.sql}")
        for row in found.rows:
            rows.append({"side": side.role.name, "phase": row.phase, **{name: getattr(row, name) for name in _LEDGER}})
        rows.append(
            {
                "side": side.role.name,
                "phase": "total",
                **{name: sum(getattr(row, name) for row in found.rows) for name in _LEDGER},
                "never_issued": found.never_issued,
                "in_graph": found.in_graph,
            }
        )
    names = ("side", "phase", *_LEDGER, "never_issued", "in_graph")
    counted = pa.table({name: [row.get(name) for row in rows] for name in names})
    columns = [Column("side", "Side", pinned=True), Column("phase", "Phase of dispatch", pinned=True)]
    columns += [Column(name, name.replace("_", " "), "%d") for name in names[2:]]
    n = {side.run_id: side.bundle.rows("requests") for side in frame.sides}
    words = "attempted = ok + error + rejected + canceled + in flight; in graph = attempted + never issued"
    return Answer(counted, "\n\n".join(sql), columns, n, words), problems


def not_ok(frame: Frame, store: Store) -> Answer:
    """Requests dispatched in the phase that are no plain successes, one by one, on every side."""
    results = [(side, outcomes.not_ok(store, side.run_id, frame.population.phase)) for side in frame.sides]
    columns = [
        Column("turn", "Source-turn", pinned=True),
        Column("outcome", "Outcome"),
        Column("error_type", "Error"),
        Column("tool_status", "The tool's word"),
        Column("phase", "Phase"),
        Column("agent_depth", "Depth", "%d"),
        Column("lane", "Lane", "%d"),
        Column("dispatched_s", "Dispatched (s)", "%.2f"),
        Column("took_ms", "Took (ms)", "%.0f"),
        Column("input_tokens", "Input (tokens)", "%d"),
        Column("requested_output_tokens", "Output asked for (tokens)", "%d"),
        Column("output_tokens", "Output (tokens)", "%d"),
        Column("request_id", "Request"),
    ]
    told = stack(results, columns, _rows(results), "Every class but plain successes; n: rows listed.")
    full = [side.role.name for side, r in results if len(r) == outcomes.MOST_LISTED]
    said = f"Of {', '.join(full)} the first {outcomes.MOST_LISTED} by dispatch are listed." if full else ""
    return replace(
        told,
        empty="Every request dispatched in this phase succeeded, with content, on every side.",
        partly=f"{told.partly} {said}".strip(),
    )


def over_time(frame: Frame, store: Store, bins: int = 80) -> tuple[Answer, Figure]:
    """Requests in flight, dispatches and completions over the whole capture."""
    span = capture_span(store, *(side.run_id for side in frame.sides))
    results = [(side, cohort.in_flight(store, side.run_id, span, bins)) for side in frame.sides]
    width_s = max(span.length_ns / bins / 1e9, 1e-9)
    panels = []
    for column, title, scale in (
        ("in_flight", "requests in flight", 1.0),
        ("dispatched", "dispatches per s", 1 / width_s),
        ("completed", "completions per s", 1 / width_s),
    ):
        series = [
            Series(side.role, side.name, result.array("time_ns") / 1e9, result.array(column) * scale)
            for side, result in results
            if not result.not_recorded and not (column == "in_flight" and result.table[column].null_count)
        ]
        x, y = Axis(phases.TIME), Axis(title)
        panels.append((title, figures.lines(series, x, y, dark=frame.dark, step=True)))
    n = {side.run_id: None if r.not_recorded else side.bundle.rows("requests") for side, r in results}
    rows = stack(results, n=n)
    said = [f"{side.role.name}: {words}" for side, result in results if (words := _without_end(result))]
    figure = phases.shaded(frame, figures.small_multiples(panels))
    return replace(rows, partly=" ".join([rows.partly, *said]).strip()), figure


def _without_end(result: Result) -> str:
    """What the curve of requests in flight leaves out, or why it is not there; empty where every end is known."""
    if result.not_recorded:
        return ""
    unknown = int(result.array("without_end").sum())
    if result.table["in_flight"].null_count:
        return few_ends(unknown, int(result.array("dispatched").sum()))
    return without_end(unknown, "curve") + "." if unknown else ""


def sizes(frame: Frame, store: Store, n: dict[str, int | None]) -> Answer:
    """Rates in the chosen window and requests in flight on every side, with gap, noise and state."""
    keys = [Key(name, frame.window.value) for name in ("request_rate", "output_rate", "total_rate")]
    return table(frame, store, number_rows(frame, store, [*keys, Key("in_flight", "observed")]), n)


def lane_spans(frame: Frame, store: Store, start_s: float, length_s: float) -> tuple[Answer, Figure]:
    """What each lane does in a window; the gaps between spans are think time and idling."""
    span = Span(int(start_s * 1e9), int((start_s + length_s) * 1e9))
    most = MOST_SPANS // len(frame.sides)
    results = [(side, cohort.lanes(store, side.run_id, span, row_cap=most)) for side in frame.sides]
    spans = []
    for side, result in results:
        if result.not_recorded or not len(result):
            continue
        lane = result.array("lane").astype(float)
        spans.append((side.role, side.name, lane, result.array("dispatched_ns") / 1e9, result.array("until_ns") / 1e9))
    x = Axis(phases.TIME, range=(start_s, start_s + length_s))
    figure = figures.gantt(spans, x, Axis("lane"), dark=frame.dark)
    figure["layout"]["yaxis"] |= {"dtick": 1, "showgrid": False}
    phases.shaded(frame, figure)
    return stack(results, n=_rows(results)), figure


def _rows(results: Sequence[tuple[object, Result]]) -> dict[str, int | None]:
    return {side.run_id: None if r.not_recorded else len(r) for side, r in results}  # type: ignore[attr-defined]


def one_sided(frame: Frame, store: Store, replay: str) -> Answer:
    """Source-turns that succeeded in the phase on one side only; ``n`` counts their successes."""
    result = cohort.one_sided(store, frame.measured.run_id, replay, frame.population)
    columns = [
        Column("finished_on", "Finished on", pinned=True),
        Column("conversation_id", "Conversation"),
        Column("turn_index", "Turn", "%d"),
        Column("measured_status", "Measured"),
        Column("replay_status", "Replay"),
        Column("measured_phase", "Phase, measured"),
        Column("replay_phase", "Phase, replay"),
        Column("measured_dispatched_s", "Dispatched, measured (s)", "%.2f"),
        Column("replay_dispatched_s", "Dispatched, replay (s)", "%.2f"),
        Column("input_tokens", "Input (tokens)", "%d"),
        Column("output_tokens", "Output (tokens)", "%d"),
    ]
    n = {frame.measured.run_id: 0, replay: 0}
    for row in result.rows():
        n[frame.measured.run_id if row["finished_on"] == "measured" else replay] += row["requests"]
    words = "Every source-turn that succeeded in this phase on one side succeeded in it on the other as well."
    return replace(answer(result, columns, n), empty=words)


def shared(frame: Frame, store: Store, side: Side, lone: Answer) -> str:
    """What the two sides share and what remains of either, in words; ``lone`` are the rows of :func:`one_sided`."""
    if lone.not_recorded:
        return lone.not_recorded
    subset = cohort.matched_subset(store, frame.measured.run_id, side.run_id, frame.population)
    words = [f"{subset.matched:,} {subset.rule}."]
    unpaired = []
    for name, run_id, attempted, ok, remainder in (
        (
            frame.measured.role.name.capitalize(),
            frame.measured.run_id,
            subset.measured_attempted,
            subset.measured_ok,
            subset.measured_remainder,
        ),
        (side.role.name.capitalize(), side.run_id, subset.replay_attempted, subset.replay_ok, subset.replay_remainder),
    ):
        share = style.percent(subset.matched / max(ok, 1))
        words.append(f"{name}: {share} of {ok:,} successes of {attempted:,} attempted, {remainder:,} remain.")
        rest = remainder - (lone.n[run_id] or 0)
        unpaired += [f"{rest:,} {name.lower()}"] if rest else []
    if unpaired:
        words.append(
            f"Not in the table below are {' and '.join(unpaired)}: their source-turns succeeded on both sides, but "
            "were sent more than once or differ in length, and make no pair."
        )
    return " ".join(words)
