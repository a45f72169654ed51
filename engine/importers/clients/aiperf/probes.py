"""Samples of the GPUs and of the network, as rows of ``telemetry``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engine.importers.clients.aiperf.server import words_of
from engine.importers.clients.aiperf.values import count, mapping, text
from engine.importers.clients.launch import Fact
from engine.intake import BadRows, InputFile, json_rows
from engine.intake.rows import number

# Units by the last words of a name; the vendor's prefix came with later versions.
_UNITS = {
    "power_usage": "W",
    "energy_consumption": "MJ",
    "utilization": "%",
    "memory_used": "GB",
    "memory_total": "GB",
    "memory_free": "GB",
    "temperature": "C",
    "power_limit": "W",
    "power_management_limit": "W",
}


class Gpus:
    """Samples of the GPUs; ``facts`` holds what they say of the hardware once the samples were read."""

    def __init__(self, file: InputFile, bad: BadRows) -> None:
        self._file = file
        self._bad = bad
        self._models: set[str] = set()
        self._parts: set[tuple[str | None, str | None]] = set()

    def rows(self) -> Iterator[dict[str, Any]]:
        """Rows of ``telemetry``."""
        for line, row in json_rows(self._file, self._bad):
            time = count(row.get("timestamp_ns"))
            if time is None:
                self._bad.add(f"{self._file.name} line {line}", "timestamp_ns is no whole number of nanoseconds")
                continue
            index, host = text(row.get("gpu_index")), text(row.get("hostname"))
            self._parts.add((host, text(row.get("gpu_uuid")) or index))
            if model := text(row.get("gpu_model_name")):
                self._models.add(model)
            labels = words_of({"gpu": index, "host": host, "pod": text(row.get("pod_name"))})
            for name, item in mapping(row.get("telemetry_data")).items():
                value = number(item)
                if value is not None:
                    yield {
                        "time_ns": time,
                        "kind": "gpu",
                        "endpoint": text(row.get("telemetry_source_url")) or text(row.get("dcgm_url")),
                        "name": name,
                        "labels": labels,
                        "unit": next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), None),
                        "value": value,
                    }

    @property
    def facts(self) -> list[Fact]:
        """Model and number of the GPUs that were sampled."""
        part = " and ".join(sorted(self._models)) or None
        return [("hardware", "part", part), ("hardware", "count", len(self._parts) or None)]


def network_rows(file: InputFile, bad: BadRows) -> Iterator[dict[str, Any]]:
    """Rows of ``telemetry`` from the network probe; failed probes have no time and are left out."""
    for line, row in json_rows(file, bad):
        time, value = count(row.get("timestamp_ns")), number(row.get("rtt_ns"))
        if time is None:
            bad.add(f"{file.name} line {line}", "timestamp_ns is no whole number of nanoseconds")
        elif value is not None and row.get("success") is not False:
            yield {
                "time_ns": time,
                "kind": "network",
                "endpoint": text(row.get("target_url")),
                "name": text(row.get("probe_type")) or "round trip",
                "labels": None,
                "unit": "ns",
                "value": value,
            }
