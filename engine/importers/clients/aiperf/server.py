"""The server's figures as AIPerf gathered them: statistics of the run, and slices or samples over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow.parquet as pq

from engine.importers.clients.aiperf.summary import csv_cells
from engine.importers.clients.aiperf.values import count, dig, mapping, text
from engine.importers.clients.reproduce import reported_rows
from engine.intake import BadRows, InputFile, json_rows
from engine.intake.rows import number

_NOT_LABELS = ("Endpoint", "Type", "Metric", "Unit", "Description")
_STATISTICS = (
    "avg",
    "min",
    "max",
    "std",
    "p1",
    "p5",
    "p10",
    "p25",
    "p50",
    "p75",
    "p90",
    "p95",
    "p99",
    "total",
    "rate",
    "rate_avg",
    "rate_min",
    "rate_max",
    "rate_std",
    "count",
    "sum",
)
_COLUMNS = (
    "endpoint_url",
    "metric_name",
    "metric_type",
    "unit",
    "description",
    "timestamp_ns",
    "value",
    "sum",
    "count",
    "bucket_le",
    "bucket_count",
)
_DEFINITION = "of the server, as scraped during the profile; pN_estimate is interpolated in the buckets"


def words_of(labels: Mapping[str, Any]) -> str | None:
    """Labels as one text: ``engine=0, model_name=m``."""
    return ", ".join(f"{name}={value}" for name, value in sorted(labels.items()) if value not in (None, "")) or None


def server_rows(document: Any, source: str) -> Iterator[dict[str, Any]]:
    """Rows of ``reported`` from the JSON of the server metrics, or of one phase of them."""
    for phase, name, metric, series in _series(document):
        labels = mapping(series.get("labels")) | ({"phase": phase} if phase else {})
        yield from reported_rows(
            "server",
            name,
            mapping(series.get("stats")) or series,
            source,
            unit=text(metric.get("unit")),
            labels=words_of(labels),
            definition=_DEFINITION,
        )


def server_slices(document: Any) -> Iterator[dict[str, Any]]:
    """Rows of ``telemetry`` from the slices of the JSON: a gauge's mean, a counter's rate, at the start of each."""
    for _, name, metric, series in _series(document):
        unit = text(metric.get("unit"))
        labels, endpoint = words_of(mapping(series.get("labels"))), text(series.get("endpoint_url"))
        slices = series.get("timeslices")
        for entry in slices if isinstance(slices, list) else ():
            time, mean, rate = count(dig(entry, "start_ns")), number(dig(entry, "avg")), number(dig(entry, "rate"))
            value = rate if mean is None else mean
            if time is None or value is None:
                continue
            gauge = mean is not None
            yield {
                "time_ns": time,
                "kind": "server",
                "endpoint": endpoint,
                "name": name if gauge else f"{name} rate",
                "labels": labels,
                "unit": unit if gauge else f"{unit or '1'}/s",
                "value": value,
            }


def server_units(document: Any) -> dict[str, str]:
    """Units by name."""
    metrics = mapping(dig(document, "metrics"))
    return {name: unit for name, metric in metrics.items() if (unit := text(dig(metric, "unit")))}


def _series(document: Any) -> Iterator[tuple[str | None, str, dict[str, Any], dict[str, Any]]]:
    groups: list[tuple[str | None, Any]] = [
        (None, dig(document, "metrics")),
        ("warmup", dig(document, "warmup_metrics")),
    ]
    endpoints = mapping(dig(document, "data", "endpoint_summaries"))
    groups += [(None, dig(endpoint, "metrics")) for endpoint in endpoints.values()]
    for phase, metrics in groups:
        for name, metric in mapping(metrics).items():
            entries = dig(metric, "series")
            for entry in entries if isinstance(entries, list) else ():
                if isinstance(entry, dict):
                    yield phase, name, mapping(metric), entry


def server_csv_rows(file: InputFile) -> Iterator[dict[str, Any]]:
    """Rows of ``reported`` from the CSV: a section per type of figure, each with a head of its own."""
    head: list[str] = []
    for cells in csv_cells(file):
        if cells[:2] == ["Endpoint", "Type"]:
            head = cells
            continue
        if not head or len(cells) != len(head):
            continue
        row = dict(zip(head, cells, strict=True))
        told = {name: value for name, cell in row.items() if _is_statistic(name) and (value := _cell(cell)) is not None}
        labels = {n: v for n, v in row.items() if n not in _NOT_LABELS and not _is_statistic(n)}
        yield from reported_rows(
            "server",
            row["Metric"],
            told,
            file.name,
            unit=row.get("Unit") or None,
            labels=words_of(labels),
            definition=_DEFINITION,
        )


def _is_statistic(name: str) -> bool:
    return name in _STATISTICS or name.endswith("_estimate")


def _cell(cell: str) -> float | None:
    try:
        return number(float(cell))
    except ValueError:
        return None


def scrapes(file: InputFile, bad: BadRows, units: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Rows of ``telemetry`` from the samples, a scrape a line. Of a histogram, its sum and count."""
    for line, row in json_rows(file, bad):
        time, endpoint = count(row.get("timestamp_ns")), text(row.get("endpoint_url"))
        if time is None:
            bad.add(f"{file.name} line {line}", "timestamp_ns is no whole number of nanoseconds")
            continue
        for name, entries in mapping(row.get("metrics")).items():
            for entry in entries if isinstance(entries, list) else ():
                labels = words_of(mapping(dig(entry, "labels")))
                for suffix, key in (("", "value"), ("_sum", "sum"), ("_count", "count")):
                    value = number(dig(entry, key))
                    if value is not None:
                        yield {
                            "time_ns": time,
                            "kind": "server",
                            "endpoint": endpoint,
                            "name": name + suffix,
                            "labels": labels,
                            "unit": units.get(name) if suffix != "_count" else None,
                            "value": value,
                        }


def parquet_scrapes(file: InputFile) -> Iterator[dict[str, Any]]:
    """The same from the columns of the Parquet file, whose counters count from the start of the profile."""
    opened = pq.ParquetFile(file.path)
    for batch in opened.iter_batches(batch_size=10_000):
        for row in batch.to_pylist():
            time, name = count(row.get("timestamp_ns")), text(row.get("metric_name"))
            if time is None or name is None or row.get("bucket_le") is not None:
                continue
            labels = words_of({n: v for n, v in row.items() if n not in _COLUMNS})
            for suffix, key in (("", "value"), ("_sum", "sum"), ("_count", "count")):
                value = number(row.get(key))
                if value is not None:
                    yield {
                        "time_ns": time,
                        "kind": "server",
                        "endpoint": text(row.get("endpoint_url")),
                        "name": name + suffix,
                        "labels": labels,
                        "unit": text(row.get("unit")),
                        "value": value,
                    }
