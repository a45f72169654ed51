"""Terms outside passes, estimated from requests whose latencies are known."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from timing_fakes import FakeBundle

from engine.timing import FitSource
from engine.timing.host import host_terms, request_latency

MS = 1_000_000


def run() -> FakeBundle:
    """Passes of 20 ms back to back; requests that take 5 ms to the engine and whose chunks take 10 ms back."""
    starts = [20 * MS * i for i in range(200)]
    members: list[list[dict[str, object]]] = [[] for _ in starts]
    requests, chunks = [], []
    for n in range(40):
        scheduled = int(n * 71.3 * MS)
        dispatched = scheduled + 2 * MS
        reached = dispatched + 5 * MS
        first = -(-reached // (20 * MS))  # taken before the first pass that starts after it came
        name = f"r{n}"
        for k in range(3):
            members[first + k].append({"request_id": name, "computed_before": 0, "scheduled_tokens": 1})
            chunks.append((name, k, starts[first + k] + 20 * MS + 10 * MS, 1))
        requests.append((name, "warmup" if n < 30 else "profile", "ok", scheduled, dispatched, starts[first], 3))
    requests.append(("bad", "warmup", "canceled", 0, 900 * MS, 901 * MS, 1))  # not a successful one: left out
    names = ("request_id", "phase", "status", "scheduled_ns", "dispatched_ns", "received_ns", "output_tokens")
    tables = {
        "requests": pa.table(dict(zip(names, map(list, zip(*requests, strict=True)), strict=True))),
        "passes": pa.table({"start_ns": starts, "end_ns": [s + 20 * MS for s in starts], "members": members}),
        "chunks": pa.table(
            dict(zip(("request_id", "ordinal", "time_ns", "tokens"), map(list, zip(*chunks, strict=True)), strict=True))
        ),
    }
    return FakeBundle("run", "measured", tables)


def test_terms_of_a_run():
    terms = host_terms([FitSource(run())])
    assert terms["dispatch_lag_ms"] == {"value": 2.0, "n": 40, "median": 2.0}
    assert terms["response_latency_ms"] == {"value": 10.0, "n": 120, "median": 10.0}
    told = terms["request_latency_ms"]
    assert told["n"] == told["explained"] == 40
    assert told["value"] == pytest.approx(5.0, abs=0.5)


def test_only_the_named_phases_count():
    terms = host_terms([FitSource(run(), ("warmup",))])
    assert terms["dispatch_lag_ms"]["n"] == 30
    assert terms["response_latency_ms"]["n"] == 90


def test_what_was_not_recorded_is_absent():
    bare = run()
    del bare.tables_["chunks"]
    assert set(host_terms([FitSource(bare)])) == {"dispatch_lag_ms", "request_latency_ms"}
    del bare.tables_["requests"]
    assert host_terms([FitSource(bare)]) == {}
    sweep = run()
    sweep.kind = "sweep"
    assert host_terms([FitSource(sweep)]) == {}


def test_one_stall_is_no_latency():
    stalled = run()
    requests = stalled.tables_["requests"]
    lags = requests["dispatched_ns"].to_pylist()
    assert len(lags) == 41
    many = pa.concat_tables([requests] * 5)
    dispatched = many["dispatched_ns"].to_pylist()
    dispatched[0] += 1000 * MS
    stalled.tables_["requests"] = many.set_column(4, "dispatched_ns", pa.array(dispatched))
    assert host_terms([FitSource(stalled)])["dispatch_lag_ms"]["value"] == 2.0


def test_request_latency_is_the_middle_of_what_most_requests_allow():
    # five allow 3..7, one of them 4..7; one was held up by something else
    windows = np.array([[0.0, 7.0], [3.0, 30.0], [0.0, 9.0], [4.0, 20.0], [1.0, 8.0], [50.0, 60.0]])
    assert request_latency(windows) == {"value": 5.5, "n": 6, "explained": 5}
