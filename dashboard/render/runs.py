"""The catalogue as text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dashboard.catalogue import RunEntry
from dashboard.render.tables import NOTHING, grid


def runs_text(entries: Sequence[RunEntry], form: str) -> str:
    """The catalogue as ``table``, ``markdown`` or ``json``."""
    if form == "json":
        return json.dumps([_run_json(entry) for entry in entries], indent=1, ensure_ascii=False)
    head = ("run", "kind", "requests", "profile s", "checks", "state")
    rows = [
        (
            entry.run_id,
            entry.kind or NOTHING,
            NOTHING if entry.requests is None else f"{entry.requests:,}",
            NOTHING if entry.duration_ns is None else f"{entry.duration_ns * 1e-9:,.1f}",
            entry.light,
            _state(entry),
        )
        for entry in entries
    ]
    return grid(head, rows, form == "markdown")


def _state(entry: RunEntry) -> str:
    """What became of a run, in words: its files first, then what failed of its checks."""
    if entry.problem or entry.state != "ok":
        return entry.problem or entry.state
    state = "ok" if entry.verified else "ok by size, digests not looked at"
    if not entry.failed:
        return state
    first, more = entry.failed[0], len(entry.failed) - 1
    return f"{state}; failed {first.check}: {first.detail}" + (f" (and {more} more)" if more else "")


def _run_json(entry: RunEntry) -> dict[str, Any]:
    return {
        "run_id": entry.run_id,
        "kind": entry.kind,
        "title": entry.title,
        "model": entry.model,
        "hardware": entry.hardware,
        "engine": entry.engine,
        "created_unix_ns": entry.created_unix_ns,
        "requests": entry.requests,
        "passes": entry.passes,
        "duration_ns": entry.duration_ns,
        "checks": entry.light,
        "failed_checks": [{"check": check.check, "detail": check.detail} for check in entry.failed],
        "state": entry.state,
        "verified": entry.verified,
        "problem": entry.problem,
    }
