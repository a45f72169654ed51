"""Charts of coverage: what the replay's pass times rest on, and who was touched by the rest."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from dashboard.charts import figures, style
from dashboard.charts.answer import Answer, Column, answer
from dashboard.charts.figures import Axis, Figure
from dashboard.charts.passes.passes import cell_name
from dashboard.frame import Frame, Side
from dashboard.queries import coverage
from dashboard.store import Store

OF = {
    "geometries": "distinct queries",
    "queries": "timing queries",
    "passes": "passes",
    "time": "modelled time",
}


def shares(frame: Frame, store: Store, replay: Side) -> tuple[Answer, Figure]:
    """Shares by resolution of distinct queries, all queries, passes and modelled time."""
    found = coverage.shares(store, replay.run_id)
    per = {of: getattr(found, of) or {} for of in OF}
    names = [name for name in style.RESOLUTION if any(per[of].get(name) for of in OF)]
    order = list(OF)[::-1]
    parts = [
        (name, style.pick(style.RESOLUTION[name], frame.dark), [per[of].get(name, 0.0) for of in order])
        for name in names
    ]
    figure = figures.stacked_shares(
        [OF[of] for of in order], parts, Axis("share", percent=True, range=(0, 1)), dark=frame.dark
    )
    rows = [{"resolution": name, **{of: per[of].get(name) for of in OF}} for name in names]
    table = pa.table({name: [row[name] for row in rows] for name in ("resolution", *OF)})
    columns = [Column("resolution", "Resolution", pinned=True)]
    columns += [Column(of, f"Share of {words}", "percent") for of, words in OF.items()]
    sql = "\n\n".join(result.sql for result in found.results)
    words = "Timing queries are counted with repetition, distinct ones once; a pass counts as its worst query."
    return Answer(table, sql, columns, {replay.run_id: found.n_queries}, words, found.not_recorded), figure


def cells_outside(store: Store, replay: Side) -> Answer:
    """Distinct queries answered from outside the measured domain."""
    result = coverage.cells_outside(store, replay.run_id)
    columns = [
        Column("class", "Class"),
        Column("resolution", "Resolution"),
        Column("prefill_requests", "Prefill requests", "%d"),
        Column("new_tokens", "New tokens", "%d"),
        Column("prefill_kv_tokens", "Prefill KV (tokens)", "%d"),
        Column("decode_requests", "Decode requests", "%d"),
        Column("decode_kv_tokens", "Decode KV (tokens)", "%d"),
        Column("queries", "Queries", "%d"),
        Column("modelled_ms", "Modelled time (ms)", "%.1f"),
        Column("time_share", "Share of time", "percent"),
        Column("sites", "Read from"),
    ]
    told = answer(result, columns, {replay.run_id: None if result.not_recorded else len(result)})
    return replace(told, empty="Every query was answered from inside the measured domain.")


def cells(store: Store, replay: Side) -> Answer:
    """What share of queries and of modelled time rests on each cell of geometry, and from where it was answered."""
    result = coverage.cells(store, replay.run_id)
    columns = [
        Column("class", "Class", pinned=True),
        Column("prefill_requests", "Prefill requests", "%d"),
        Column("new", "New tokens"),
        Column("prefill_kv", "Prefill KV (tokens)"),
        Column("decode_requests", "Decode requests", "%d"),
        Column("decode_kv", "Decode KV (tokens)"),
        Column("geometries", "Distinct queries", "%d"),
        Column("queries", "Passes priced", "%d"),
        Column("query_share", "Share of passes", "percent"),
        Column("modelled_ms", "Modelled time (ms)", "%.1f"),
        Column("time_share", "Share of time", "percent"),
        Column("inside_share", "Time from inside", "percent"),
        Column("resolutions", "Resolutions"),
        Column("sources", "Answered by"),
    ]
    told = answer(result, columns, {}, "Cells are half octaves of token counts and exact numbers of requests.")
    if result.not_recorded or not len(result):
        return replace(told, n={replay.run_id: None if result.not_recorded else 0})
    rows = told.rows
    for name in ("new", "prefill_kv", "decode_kv"):
        names = [cell_name(one) for one in rows.column(f"{name}_cell").to_pylist()]
        rows = rows.append_column(name, pa.array(names, pa.string()))
    held = result.rows()
    left = held[0]["cells"] - len(held)
    rest = 1 - sum(row["time_share"] or 0.0 for row in held)
    partly = f"{left:,} further cells with {style.percent(rest, 2)} of the time are not listed."
    n = sum(row["queries"] for row in held)
    return replace(told, rows=rows, n={replay.run_id: n}, partly=partly if left else "")


def sources(store: Store, replay: Side) -> Answer:
    """Which source answered what, by class and resolution: of a chain, each link."""
    result = coverage.sources(store, replay.run_id)
    columns = [
        Column("source", "Source", pinned=True),
        Column("class", "Class"),
        Column("resolution", "Resolution"),
        Column("geometries", "Distinct queries", "%d"),
        Column("queries", "Queries", "%d"),
        Column("query_share", "Share of queries", "percent"),
        Column("modelled_ms", "Modelled time (ms)", "%.1f"),
        Column("time_share", "Share of time", "percent"),
    ]
    n = None if result.not_recorded else sum(row["queries"] for row in result.rows())
    return answer(result, columns, {replay.run_id: n}, "Each link of a chain is a source; none answers unseen.")


def ranks(store: Store, replay: Side) -> Answer | None:
    """Resolutions by worker and rank; None where the replay has one rank."""
    result = coverage.by_rank(store, replay.run_id)
    rows = [] if result.not_recorded else result.rows()
    if len({(row["worker_id"], row["dp_rank"]) for row in rows}) < 2:
        return None
    columns = [
        Column("worker_id", "Worker", pinned=True),
        Column("dp_rank", "Rank", "%d"),
        Column("resolution", "Resolution"),
        Column("passes", "Passes", "%d"),
        Column("pass_share", "Share of its passes", "percent"),
        Column("time_ms", "Time (ms)", "%.1f"),
        Column("time_share", "Share of its time", "percent"),
    ]
    words = "Each pass by its worst resolution; without the time that a rank waits for the slowest of its step."
    return answer(result, columns, {replay.run_id: sum(row["passes"] for row in rows)}, words)


def touched_by(store: Store, replay: Side) -> tuple[Answer, str]:
    """How many requests took part in passes outside the measured domain, by resolution; and in words."""
    result = coverage.touched(store, replay.run_id)
    columns = [
        Column("resolution", "Resolution", pinned=True),
        Column("requests", "Requests", "%d"),
        Column("request_share", "Share of requests", "percent"),
        Column("passes", "Passes", "%d"),
        Column("time_ms", "Time in them (ms)", "%.1f"),
    ]
    rows = [] if result.not_recorded else result.rows()
    told = answer(result, columns, {replay.run_id: rows[0]["of_requests"] if rows else None})
    words = "n: requests that took part in any pass. A request counts once in each row that it belongs to."
    told = replace(told, definition=words, empty="No pass was answered from outside the measured domain.")
    if not rows:
        return told, ""
    names = told.rows.column("resolution").to_pylist()
    at = told.rows.column_names.index("resolution")
    named = pa.array(["any of these" if name is None else name for name in names], pa.string())
    told = replace(told, rows=told.rows.set_column(at, "resolution", named))
    whole = rows[0]
    if whole["requests"] is None:
        return told, "Who was in a pass was not recorded (record_members), so the requests cannot be counted."
    said = f"{whole['requests']:,} of {whole['of_requests']:,} requests ({100 * whole['request_share']:.1f} %)"
    return told, f"{said} took part in {whole['passes']:,} such passes. Choose a row of the list below for a request."


def touched(store: Store, replay: Side) -> Answer:
    """Requests that took part in passes answered from outside the measured domain, most time in them first."""
    result = coverage.requests_touched(store, replay.run_id)
    columns = [
        Column("turn", "Source-turn", pinned=True),
        Column("phase", "Phase"),
        Column("status", "Status"),
        Column("passes", "Passes outside", "%d"),
        Column("time_ms", "Time in them (ms)", "%.1f"),
        Column("e2e_ms", "E2E (ms)", "%.1f"),
        Column("resolutions", "Resolutions"),
        Column("request_id", "Request"),
    ]
    rows = 0 if result.not_recorded or not len(result) else result.rows()[0]["requests_touched"]
    told = answer(result, columns, {replay.run_id: rows})
    return replace(told, empty="No request took part in a pass that was answered from outside the measured domain.")
