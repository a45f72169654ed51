"""Scheduler parity as the bundle of a teacher-forced replay tells it: checks, and the passes where batches differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dashboard.store import Result, Store


def checks(store: Store, run_id: str) -> dict[str, Mapping[str, Any]]:
    """The summary of each check of the run's ladder, by name; empty where none was made."""
    found = (store.bundle(run_id).lineage.get("ladder") or {}).get("parity") or {}
    return {str(name): summary for name, summary in found.items() if isinstance(summary, Mapping)}


def divergences(store: Store, run_id: str, check: str) -> Result:
    """Columns ``check, pass_index, cause, explanation``, sizes of both batches and queues, free blocks."""
    return store.query("divergences", {"check": check}, runs={"run": run_id})


def batches(store: Store, run_id: str, check: str, pass_index: int) -> Result:
    """Members of both batches: place, tokens computed before and scheduled on either side, and how they differ."""
    return store.query("divergence_batches", {"check": check, "pass": pass_index}, runs={"run": run_id})


def queues(store: Store, run_id: str, check: str, pass_index: int) -> Result:
    """Waiting requests with their place on either side, after scheduling."""
    return store.query("divergence_queues", {"check": check, "pass": pass_index}, runs={"run": run_id})
