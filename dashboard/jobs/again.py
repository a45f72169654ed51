"""Playing a replay again as a job: what it asks for, the work, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dashboard import jobs
from engine.bundle import find_bundle
from engine.replay.again import Again, TableAgain, replay_again

DOES = "again"


def spec(replay: str, stores: Sequence[Path]) -> dict[str, Any]:
    """The job that plays a replay again and compares."""
    return {
        "do": DOES,
        "replay": replay,
        "title": f"{replay.rpartition('-')[0]} again",
        "stores": [str(store.resolve()) for store in stores],
    }


def run(folder: Path, spec: Mapping[str, Any], store: Path) -> dict[str, Any]:
    """Do it; no run is written."""
    stores = [Path(text) for text in spec["stores"]]
    bundle = find_bundle(stores, spec["replay"])
    bundle.require_intact()

    def progress(now_ns: int, wall_s: float, passes: int, requests: int) -> None:
        words = f"{now_ns / 1e9:,.0f} s simulated in {wall_s:.0f} s, {passes:,} passes, {requests:,} requests"
        jobs.write_json(folder / "progress.json", {"words": words, "share": None})

    found = replay_again(bundle, stores, progress)
    first = found.first
    message = "the same tables"
    if first is not None:
        message = "; ".join((*found.causes, f"table {first.name} differs: {first.difference}"))
    return {"played": asdict(found), "message": message}


def result(store: Path, replay: str) -> Again | None:
    """What came of the latest job that played this replay again to its end; None where none did."""
    for job in jobs.jobs_about(store, do=DOES, replay=replay):
        played = job.result.get("played")
        if job.state == "done" and isinstance(played, Mapping):
            tables = tuple(TableAgain(**table) for table in played["tables"])
            return Again(
                played["run_id"], played["recorded_by"], played["made_by"], tables, tuple(played.get("causes", ()))
            )
    return None
