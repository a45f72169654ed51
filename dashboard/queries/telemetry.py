"""Figures over time: samples of the server and the GPUs, and the tool's own time slices."""

from __future__ import annotations

from dashboard.store import Result, Store

BINS = 400
MOST_SERIES = 8
SLICE = "slice: "


def names(store: Store, run_id: str) -> dict[str, str]:
    """Unit of every figure that has values over time, by its name in a link."""
    found: dict[str, str] = {}
    for table, question in (("telemetry", "telemetry_names"), ("reported", "slice_names")):
        if table in store.tables(run_id):
            for row in store.query(question, runs={"run": run_id}, row_cap=None).rows():
                found[row["series"]] = row["unit"] or ""
    return found


def series(store: Store, run_id: str, name: str) -> Result:
    """One figure over time: columns time_ns, value, samples; of sampled ones also place and labels."""
    params = {"series": name, "bins": BINS}
    if name.startswith(SLICE):
        return store.query("slice_series", params, runs={"run": run_id})
    return store.query("telemetry_series", {**params, "most": MOST_SERIES}, runs={"run": run_id})
