"""The checks that every imported run gets, on rows that are counted by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.bundle import Phase, Spool, spooled
from engine.bundle import spool as spools
from engine.importers.clients.checks import standard_checks
from engine.intake import BadRows

MS, S = 1_000_000, 1_000_000_000
ORIGIN = 1_700_000_000 * S + 1
"""Nanoseconds since 1970 that a float cannot hold."""
PHASES = [Phase("warmup", -2 * S, 0), Phase("profile", 0, 10 * S), Phase("grace", 10 * S, 12 * S)]
NAMES = (
    "rows_used",
    "requests_succeeded",
    "times_in_order",
    "latencies_plausible",
    "outputs_explained",
    "inside_phases",
)


def request(name: str, at: int = S, **values: Any) -> dict[str, Any]:
    """Dispatched at 1 s, first visible after 100 ms, last after 300 ms, closed after 301 ms; 20 tokens."""
    start = ORIGIN + at
    row = {
        "request_id": name,
        "phase": "profile",
        "status": "ok",
        "scheduled_ns": start,
        "dispatched_ns": start,
        "first_visible_ns": start + 100 * MS,
        "last_visible_ns": start + 300 * MS,
        "end_ns": start + 301 * MS,
        "output_tokens": 20,
        "flags": None,
    }
    return row | values


def durations(name: str, **values: Any) -> dict[str, Any]:
    """The same of a tool that keeps durations alone."""
    row = {
        "request_id": name,
        "phase": "profile",
        "status": "ok",
        "dispatched_ns": None,
        "first_visible_after_ns": 100 * MS,
        "last_visible_after_ns": 300 * MS,
        "end_after_ns": 301 * MS,
        "output_tokens": 20,
    }
    return row | values


def failure(name: str, status: str = "error") -> dict[str, Any]:
    nothing = dict.fromkeys(("first_visible_ns", "last_visible_ns", "output_tokens"))
    return request(name, status=status, **nothing)


def found(folder: Path, rows: list[dict[str, Any]], phases: list[Phase] = PHASES) -> dict[str, tuple[str, str]]:
    columns = sorted({column for row in rows for column in row} | {"request_id", "status", "phase"})
    spool = spooled("requests", rows, columns, folder)
    return {check.check: (check.verdict, check.detail) for check in standard_checks(spool, phases, ORIGIN, BadRows())}


def test_a_sound_run_passes_them_all(tmp_path: Path) -> None:
    told = found(tmp_path, [request("a"), request("b", at=9 * S), request("w", at=-S, phase="warmup"), failure("e")])
    assert tuple(told) == NAMES
    assert {verdict for verdict, _ in told.values()} == {"pass"}
    assert told["requests_succeeded"][1] == "3 of 4 requests succeeded; 1 error (25.0 %)"
    assert told["times_in_order"][1].startswith("4 requests with times:")
    assert told["latencies_plausible"][1].startswith("3 successes with a latency:")
    assert told["inside_phases"][1].startswith("4 requests with a time of dispatch:")


def test_times_that_are_out_of_order_are_counted_pair_by_pair(tmp_path: Path) -> None:
    at = ORIGIN + S
    rows = [
        request("early", first_visible_ns=at - 1),  # one nanosecond before its dispatch
        request("sent", scheduled_ns=at + 1),
        request("back", first_visible_ns=at + 400 * MS),
        request("closed", end_ns=at + 299 * MS),
        request("sound"),
    ]
    verdict, detail = found(tmp_path, rows)["times_in_order"]
    assert verdict == "fail"
    assert detail.startswith("5 requests with times: ")
    assert set(detail.partition(": ")[2].split("; ")) == {
        "1 of first visible before dispatched",
        "1 of dispatched before scheduled",
        "1 of last visible before first visible",
        "1 of end before last visible",
    }


def test_durations_are_times_since_dispatch(tmp_path: Path) -> None:
    rows = [durations("a"), durations("b", first_visible_after_ns=-1), durations("c", end_after_ns=299 * MS)]
    told = found(tmp_path, rows)
    assert told["times_in_order"] == (
        "fail",
        "3 requests with times: 1 of first visible before dispatched; 1 of end before last visible",
    )
    assert told["latencies_plausible"][0] == "pass"
    assert told["inside_phases"][0] == "unknown"


def test_units_that_cannot_be_true(tmp_path: Path) -> None:
    day = 86_400 * S
    rows = [
        durations("zero", first_visible_after_ns=0),
        durations("day", last_visible_after_ns=day + 1, end_after_ns=day + 2),
        durations(
            "ms", last_visible_after_ns=3 * MS, first_visible_after_ns=MS, end_after_ns=3 * MS, output_tokens=2000
        ),
        durations("short", last_visible_after_ns=MS, first_visible_after_ns=MS, end_after_ns=MS, output_tokens=15),
        durations("edge", last_visible_after_ns=2 * MS, first_visible_after_ns=MS, end_after_ns=2 * MS),
        durations("error", first_visible_after_ns=0, status="error"),
    ]
    verdict, detail = found(tmp_path, rows)["latencies_plausible"]
    assert verdict == "fail"
    assert detail.startswith("5 successes with a latency: 1 with a TTFT of exactly 0; 1 longer than a day")
    assert "1 with tokens faster than 100 us each" in detail


def test_a_success_without_tokens_needs_a_reason(tmp_path: Path) -> None:
    nothing = {"first_visible_ns": None, "last_visible_ns": None}
    rows = [
        request("a"),
        request("told", output_tokens=0, flags="zero output", **nothing),
        request("uncounted", output_tokens=None, flags="output tokens not counted"),
        request("silent", output_tokens=0, **nothing),
        request("lost", output_tokens=None),
    ]
    verdict, detail = found(tmp_path, rows)["outputs_explained"]
    assert verdict == "fail"
    assert detail == "5 successes, 2 of them without output; 2 have no output tokens, and nothing says why"
    none = found(tmp_path, [request("a", output_tokens=None)])
    assert none["outputs_explained"][0] == "unknown"


def test_requests_lie_inside_their_phases(tmp_path: Path) -> None:
    rows = [
        request("a"),
        request("w", at=S, phase="warmup"),  # sent in profile
        request("late", at=11 * S),  # sent in grace
        request("ends", at=9 * S, end_ns=ORIGIN + 12 * S + 1, last_visible_ns=None, first_visible_ns=None),
    ]
    verdict, detail = found(tmp_path, rows)["inside_phases"]
    assert verdict == "fail"
    assert detail == (
        "4 requests with a time of dispatch: 2 were sent outside the phase that they are of; 1 ended after the last "
        "phase"
    )
    assert found(tmp_path, [request("a")], phases=[])["inside_phases"][0] == "unknown"


def test_nothing_and_nothing_but_failures(tmp_path: Path) -> None:
    told = found(tmp_path, [])
    assert told["requests_succeeded"] == ("fail", "the files hold no request at all")
    assert {told[name][0] for name in NAMES[2:]} == {"unknown"}
    failed = found(tmp_path, [failure("a"), failure("b"), failure("c", "canceled")])
    assert failed["requests_succeeded"] == (
        "fail",
        "0 of 3 requests succeeded; 1 canceled (33.3 %), 2 error (66.7 %)",
    )
    assert failed["latencies_plausible"][0] == failed["outputs_explained"][0] == "unknown"


def test_a_run_without_rows_is_asked_for_its_rows_only() -> None:
    assert [check.check for check in standard_checks(None, PHASES, 0, BadRows())] == ["rows_used"]


def test_counts_add_up_over_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spools, "CHUNK", 3)
    rows = [request(f"r{i}", at=i * MS, first_visible_ns=ORIGIN if i % 2 else None) for i in range(1, 9)]
    spool = spooled("requests", rows, list(rows[0]), tmp_path)
    assert isinstance(spool, Spool)
    assert [piece.num_rows for piece in spool.pieces(("status", "end_ns", "unknown"))] == [3, 3, 2]
    assert {tuple(piece.schema.names) for piece in spool.pieces(("end_ns", "status"))} == {("status", "end_ns")}
    told = {check.check: check.detail for check in standard_checks(spool, PHASES, ORIGIN, BadRows())}
    assert told["times_in_order"] == "8 requests with times: 4 of first visible before dispatched"
