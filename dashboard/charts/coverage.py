"""Charts of coverage: what the replay's pass times rest on, and who was touched by the rest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from dashboard.charts import figures, style
from dashboard.charts.answer import Answer, Column, answer
from dashboard.charts.figures import Axis, Figure
from dashboard.charts.passes import cell_name
from dashboard.frame import Frame, Side
from dashboard.queries import coverage, passes
from dashboard.store import Store

OF = {"queries": "timing queries", "passes": "passes", "time": "modelled time"}


def shares(frame: Frame, store: Store, replay: Side) -> tuple[Answer, Figure]:
    """Shares by resolution of queries, passes and modelled time."""
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
    words = "Queries are counted with repetition; a pass counts as its worst query."
    return Answer(table, sql, columns, {replay.run_id: found.n_queries}, words, found.not_recorded), figure


def domain_map(frame: Frame, store: Store, replay: Side, pass_class: str) -> tuple[Answer, Figure, str]:
    """The measured domain (shaded) under the queries (marks, larger with more modelled time); and how it was found."""
    queries = coverage.query_map(store, replay.run_id, pass_class)
    x_axis, y_axis = passes.CLASS_AXES[pass_class]
    measured: dict[tuple[int, int], int] = {}
    absent, used = [], []
    held = {entry.run_id for entry in store.catalogue() if entry.state == "ok"}
    for fitted in replay.bundle.lineage.get("fitted_on") or []:
        run_id, phases = fitted.get("run_id", ""), tuple(fitted.get("phases") or ())
        if run_id not in held:
            absent.append(run_id)
            continue
        used.append(run_id + (f" ({', '.join(phases)})" if phases else ""))
        result = coverage.domain(store, run_id, pass_class, phases)
        for row in [] if result.not_recorded else result.rows():
            key = (row["x_cell"], row["y_cell"])
            measured[key] = measured.get(key, 0) + row["passes"]
    words = (
        f"Shaded: passes of {', '.join(used)}, on which the model was fitted."
        if used
        else ("The lineage of this replay names no measured passes: no domain is shaded.")
    )
    if absent:
        words += f" Not in this store, and not shaded: {', '.join(absent)}."
    figure: Figure = {"data": [], "layout": {}}
    if not queries.not_recorded and len(queries):
        rows = queries.rows()
        xs = sorted({row["x_cell"] for row in rows} | {x for x, _ in measured})
        ys = sorted({row["y_cell"] for row in rows} | {y for _, y in measured})
        z = np.full((len(ys), len(xs)), np.nan, dtype=np.float32)
        for (x, y), count in measured.items():
            z[ys.index(y), xs.index(x)] = np.log10(count)
        names_x, names_y = [cell_name(x) for x in xs], [cell_name(y) for y in ys]
        figure = figures.heat(
            names_x, names_y, z, Axis(passes.AXES[x_axis]), Axis(passes.AXES[y_axis]),
            legend="measured passes (log10)", dark=frame.dark, height=400,
        )  # fmt: skip
        total = sum(row["modelled_ns"] for row in rows) or 1
        inside = [row for row in rows if (row["inside_share"] or 0) >= 0.5]
        outside = [row for row in rows if (row["inside_share"] or 0) < 0.5]
        for name, part, resolution in (("mostly inside", inside, "exact"), ("mostly outside", outside, "extrapolated")):
            figure["data"].append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": f"queries {name}",
                    "x": [cell_name(row["x_cell"]) for row in part],
                    "y": [cell_name(row["y_cell"]) for row in part],
                    "text": [
                        f"{row['queries']:,} queries, {100 * row['modelled_ns'] / total:.1f} % of the class's time, "
                        f"{100 * (row['inside_share'] or 0):.0f} % of it inside"
                        for row in part
                    ],
                    "hovertemplate": "%{x}, %{y}<br>%{text}<extra></extra>",
                    "marker": {
                        "size": np.array(
                            [5 + 22 * (row["modelled_ns"] / total) ** 0.5 for row in part], dtype=np.float32
                        ),
                        "color": style.pick(("#101418", "#FFFFFF"), frame.dark)
                        if part is inside
                        else style.pick(style.RESOLUTION[resolution], frame.dark),
                        "symbol": "circle-open" if part is inside else "x",
                        "line": {"width": 2},
                    },
                }
            )
        figure["layout"]["showlegend"] = True
    columns = [
        Column("x_cell", f"Cell of {passes.AXES[x_axis]}", "%d"),
        Column("y_cell", f"Cell of {passes.AXES[y_axis]}", "%d"),
        Column("queries", "Queries", "%d"),
        Column("modelled_ms", "Modelled time (ms)", "%.1f"),
        Column("inside_share", "Share inside", "percent"),
    ]
    n = {replay.run_id: 0 if queries.not_recorded else sum(row["queries"] for row in queries.rows())}
    return answer(queries, columns, n, "Cells are half octaves; inside: exact or interpolated."), figure, words


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


def touched(store: Store, replay: Side) -> Answer:
    """Requests that took part in passes answered from outside the measured domain."""
    result = coverage.requests_touched(store, replay.run_id)
    columns = [
        Column("conversation_id", "Conversation"),
        Column("turn_index", "Turn", "%d"),
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
