"""AIPerf recordings of ours, and small ones written by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from engine.importers import import_any

DATA = Path(__file__).resolve().parents[1] / "data" / "aiperf"
SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND


class Run:
    """An imported run as plain rows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest: dict[str, Any] = json.loads((folder / "run.json").read_text())

    def table(self, name: str) -> list[dict[str, Any]]:
        """Rows of a table; none where the run has no such table."""
        path = self.folder / f"{name}.parquet"
        return pq.read_table(path).to_pylist() if path.exists() else []

    @property
    def requests(self) -> dict[str, dict[str, Any]]:
        """Requests by id."""
        return {row["request_id"]: row for row in self.table("requests")}

    def check(self, name: str) -> tuple[str, str]:
        """Verdict and detail of a check."""
        found = [c for c in self.manifest["qualification"] if c["check"] == name]
        assert len(found) == 1, (name, [c["check"] for c in self.manifest["qualification"]])
        return found[0]["verdict"], found[0]["detail"]

    def identity(self, group: str, field: str) -> Any:
        """Value of an identity field, None where it is unknown."""
        return self.manifest["identity"].get(group, {}).get(field, {}).get("value")

    def phase(self, name: str) -> tuple[int, int]:
        """Start and end of a phase."""
        (found,) = [p for p in self.manifest["phases"] if p["name"] == name]
        return found["start_ns"], found["end_ns"]


def imported(path: Path, store: Path, **options: Any) -> list[Run]:
    """Every run that importing ``path`` makes."""
    return [Run(store / run_id) for run_id in import_any(path, store, **options)]


def record(number: int, phase: str = "profiling", **changes: Any) -> dict[str, Any]:
    """A record that went well: sent ``number`` s after START, four tokens from 100 to 400 ms."""
    start = START + number * SECOND
    metadata = {
        "session_num": number,
        "x_request_id": f"r{number}",
        "x_correlation_id": f"c{number}",
        "conversation_id": f"session_{number}",
        "turn_index": 0,
        "credit_issued_ns": start - 1_000_000,
        "request_start_ns": start,
        "request_ack_ns": start + 50_000_000,
        "request_end_ns": start + 410_000_000,
        "worker_id": "worker_1",
        "record_processor_id": "processor_1",
        "benchmark_phase": phase,
        "was_cancelled": False,
    }
    metrics = {
        "time_to_first_token": {"value": 100.0, "unit": "ms"},
        "request_latency": {"value": 400.0, "unit": "ms"},
        "inter_token_latency": {"value": 100.0, "unit": "ms"},
        "inter_chunk_latency": {"value": [100.0, 100.0, 100.0], "unit": "ms"},
        "output_sequence_length": {"value": 4, "unit": "tokens"},
        "input_sequence_length": {"value": 50, "unit": "tokens"},
    }
    row: dict[str, Any] = {"metadata": metadata, "metrics": metrics}
    for key, value in changes.items():
        place = metadata if key in metadata or key.startswith("meta_") else metrics if key in metrics else row
        place[key.removeprefix("meta_")] = value
    return row


def failed(number: int, kind: str = "Internal Server Error", code: int | None = 500) -> dict[str, Any]:
    """A record of a failed request."""
    row = record(number)
    row["metrics"] = {"error_isl": {"value": 50, "unit": "tokens"}}
    row["error"] = {"code": code, "type": kind, "message": "broken"}
    return row


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """JSON Lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_json(path: Path, document: Any) -> Path:
    """One JSON document."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path
