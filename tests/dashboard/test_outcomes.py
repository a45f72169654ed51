"""Outcome classes, counted by hand on a small run."""

from __future__ import annotations

from pathlib import Path

from small_runs import S, identity, request, write

from dashboard.queries.outcomes import OUTCOMES, outcomes
from dashboard.store import Store
from engine.bundle import BundleWriter

NOTHING = {"first_visible_ns": None, "last_visible_ns": None, "output_tokens": None}


def test_each_class_is_counted_apart(tmp_path: Path) -> None:
    rows = [
        request("warm", at=-S, phase="warmup"),
        request("a", tool_status="success", flags=None),
        request("b", tool_status="success", flags="several tokens a chunk"),
        request("empty", tool_status="error", flags="zero output", **NOTHING | {"output_tokens": 0}),
        request("counted", tool_status="success", **NOTHING | {"output_tokens": 0}),
        request("cut", tool_status="success", flags="unfinished stream; several tokens a chunk"),
        request("cut_empty", tool_status="success", flags="unfinished stream", **NOTHING | {"output_tokens": 0}),
        request("bad", status="error", tool_status="error", flags="unfinished stream", error_type="429", **NOTHING),
        request("gone", status="canceled", error_type="no record", **NOTHING),
        request("stayed", status="in_flight", error_type="no record", **NOTHING),
        request("refused", status="rejected", error_type="429", **NOTHING),
    ]
    found = outcomes(Store([tmp_path]), write(tmp_path, "m", rows, never_issued=4))
    counts = {name: found.count(name) for name in OUTCOMES}
    assert counts == {
        "ok": 2,
        "zero_output": 2,
        "unfinished": 2,
        "error": 1,
        "rejected": 1,
        "canceled": 1,
        "in_flight": 1,
    }
    assert found.phases == ("warmup", "profile")
    assert found.count("ok", "warmup") == found.attempted("warmup") == 1
    assert found.attempted() == 10
    assert found.successes() == 6
    assert found.without_record() == 2
    assert found.never_issued == 4
    words = {row.outcome: (row.tool_words, row.error_types) for row in found.rows if row.phase == "profile"}
    assert words["zero_output"] == ("error, success", "")
    assert words["error"] == ("error", "429")
    assert words["canceled"] == ("", "")


def test_a_run_without_requests_has_no_classes(tmp_path: Path) -> None:
    with BundleWriter(tmp_path, "imported_summary", "s", "s", identity()) as writer:
        run_id = writer.seal()
    found = outcomes(Store([tmp_path]), run_id)
    assert found.rows == ()
    assert found.attempted() == 0
    assert "Not recorded" in str(found.result.not_recorded)
