"""Whether rows reach the end of a load: a killed server, an idle one, and one that goes on all write no last row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.recording.clocks import S, ServerClock
from engine.recording.ending import cut_short
from engine.recording.rows import read_series

LOAD_END_S = 200


def request(name: str, end_s: float, status: str = "ok", error: str | None = None) -> dict[str, Any]:
    return {"request_id": name, "end_s": end_s, "status": status, "error": error}


def call(number: int, at_s: float, came: list[str], gone: list[str]) -> dict[str, Any]:
    return {
        "kind": "iter",
        "iter": number,
        "t_start_ns": int(at_s * S),
        "t_end_ns": int(at_s * S) + 1000,
        "arrivals": [[name, int(at_s * S) - 10, 8, 1] for name in came],
        "finished_before": [],
        "finished": [[name, "FINISHED_STOPPED", 8, 1, 0, int(at_s * S) + 900] for name in gone],
    }


def clock_row(at_s: float) -> dict[str, Any]:
    return {"kind": "clock", "mono_ns": int(at_s * S), "wall_ns": 0}


END = {"kind": "end", "rows": 1, "lost": 0, "mono_ns": 10 * S}
GONE = request("b", 60.5, "error", "connection: refused")


@pytest.mark.parametrize(
    ("rows", "requests", "lost", "unsure"),
    [
        pytest.param([call(0, 150, ["a"], ["a"])], [request("a", 151)], "", "", id="idle, within its minute"),
        pytest.param([call(0, 10, ["a"], ["a"]), clock_row(190)], [request("a", 11)], "", "", id="idle for long"),
        pytest.param(
            [call(0, 10, ["a"], ["a"])], [request("a", 11)], "end 190.0 s before the load", "", id="silent for long"
        ),
        pytest.param([call(0, 199, ["a", "x"], ["a"])], [request("a", 199.5)], "", "", id="goes on for somebody else"),
        pytest.param(
            [call(0, 150, ["a"], [])],
            [request("a", 151, "error", "cut off")],
            "1 requests are never let go (a)",
            "",
            id="killed in a pass",
        ),
        pytest.param(
            [call(0, 199, ["a"], [])], [request("a", 200, "canceled")], "", "canceled requests", id="canceled"
        ),
        pytest.param(
            [call(0, 60, ["a"], ["a"])],
            [request("a", 60.1), GONE],
            "the rows end 60.0 s after the start",
            "",
            id="killed between passes",
        ),
        pytest.param(
            [call(0, 60, ["a"], ["a"]), clock_row(120)], [request("a", 60.1), GONE], "", "", id="a fault on the way"
        ),
        pytest.param([call(0, 60, ["a"], []), END], [request("a", 61), GONE], "", "", id="stopped in order"),
    ],
)
def test_rows_that_stop(
    tmp_path: Path, rows: list[dict[str, Any]], requests: list[dict[str, Any]], lost: str, unsure: str
) -> None:
    meta = {"kind": "meta", "schema": "gapscope-passes/1", "exact_batches": True, "dp_rank": 0, "first_iter": 0}
    lines = [{**meta, "mono_ns": 1, "wall_ns": 1}, *rows]
    (tmp_path / "passes-dp0-1-0000.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    series = read_series(tmp_path, 0, (LOAD_END_S + 1) * S)
    clock = ServerClock(0, 0, "one machine", series[0].clock)
    found = cut_short(series, [clock], requests, lambda name: name, 0, LOAD_END_S * S)
    for words, sentences in zip((lost, unsure), found, strict=True):
        assert len(sentences) == bool(words), sentences
        assert all(words in sentence for sentence in sentences)
