"""What a file of AIPerf is, told by its first bytes."""

from __future__ import annotations

import re
from enum import StrEnum

import pyarrow as pa
import pyarrow.parquet as pq

from engine.importers.clients.outline import outline
from engine.intake import InputFile


class Kind(StrEnum):
    """Kinds of files, in the words of a plan."""

    RECORDS = "a row per finished request"
    RAW = "the request and response of each record, with the times of the single chunks"
    SUMMARY = "the tool's own summary"
    SUMMARY_CSV = "the tool's own summary, rounded"
    SLICES = "statistics by time slice"
    SLICES_CSV = "statistics by time slice, rounded"
    MANIFEST = "start and end of each phase"
    SERVER = "figures of the server"
    SERVER_CSV = "figures of the server, rounded"
    PHASE_SERVER = "figures of the server in one phase"
    SCRAPES = "samples of the server's figures"
    SCRAPES_PARQUET = "samples of the server's figures, in columns"
    GPU = "samples of the GPUs' figures"
    NETWORK = "times of the network probe"
    INPUTS = "payloads by session"
    OUTPUTS = "the text of the responses"
    READY = "the marker of a finished run"
    RUN_CONFIG = "the resolved configuration"
    AGGREGATE = "statistics across repeated runs"
    AGGREGATE_CSV = "statistics across repeated runs, rounded"
    COLLATED = "statistics of repeated runs, pooled and run by run"
    LOG = "the log: requests sent, completed, canceled and in flight"
    CONSOLE = "the printed tables"
    COMMAND = "the command line of the client"
    ENGINE_COMMAND = "the command line of the engine"
    WORKLOAD = "lengths of the requests as printed"
    IDENTITY = "engine, model and scheduler of the server"


_ID_KEYS = {"x_request_id", "worker_id", "x_correlation_id", "record_processor_id"}
_KNOWN_TAGS = {
    "request_latency",
    "request_count",
    "request_throughput",
    "error_request_count",
    "benchmark_duration",
    "time_to_first_token",
    "ttft",
    "output_token_throughput",
    "min_request_timestamp",
}
_LOG = re.compile(
    rb"Starting AIPerf System|PhaseRunner - |Phase \S+ (?:\(\w+\) )?(?:started|sending complete|complete) \|"
)
_COMMAND = re.compile(rb"(?:^|[\s/'\"])aiperf(?:\.exe)?\s+profile\s")
_ENGINE = re.compile(rb"(?:^|[\s/])vllm\s+serve\s|vllm\.entrypoints|sglang\.launch_server|(?:^|[\s/])sglang\s+serve\s")
_TEXT_BYTES = 4096


def kind_of(file: InputFile) -> Kind | None:
    """The kind of a file, None where AIPerf did not write it and nothing beside AIPerf's files is like it."""
    head = file.head
    if head.startswith(b"PAR1"):
        return _parquet(file)
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start.startswith(b"{"):
        return _json(head)
    return _text(start)


def _json(head: bytes) -> Kind | None:
    keys = outline(head)
    below = keys.get("metadata", frozenset())
    if below & _ID_KEYS:
        if keys.keys() & {"start_perf_ns", "responses", "request_headers", "payload"}:
            return Kind.RAW
        return Kind.RECORDS
    if "aggregation_type" in below and "metrics" in keys:
        return Kind.AGGREGATE
    return next((kind for kind, fits in _DOCUMENTS if fits(keys)), None)


_DOCUMENTS = (
    (Kind.SLICES, lambda k: "timeslices" in k and bool(k.keys() & {"input_config"} or _tagged(k["timeslices"]))),
    (Kind.SERVER, lambda k: "metrics" in k and "endpoints_configured" in k.get("summary", ())),
    (Kind.PHASE_SERVER, lambda k: "endpoint_summaries" in k.get("data", ())),
    (Kind.SCRAPES, lambda k: {"endpoint_url", "timestamp_ns", "metrics"} <= k.keys()),
    (Kind.GPU, lambda k: {"gpu_index", "timestamp_ns", "telemetry_data"} <= k.keys()),
    (Kind.NETWORK, lambda k: {"rtt_ns", "timestamp_ns", "target_url"} <= k.keys()),
    (Kind.INPUTS, lambda k: {"session_id", "payloads"} <= k.get("data", frozenset())),
    (Kind.OUTPUTS, lambda k: {"session_num", "response_text"} <= k.get("data", frozenset())),
    (Kind.MANIFEST, lambda k: {"phase_kind", "phase_name"} <= k.get("phases", frozenset())),
    (Kind.READY, lambda k: {"ready", "was_cancelled", "partial"} <= k.keys()),
    (Kind.RUN_CONFIG, lambda k: "benchmark_id" in k and {"cfg", "cli_command"} <= k.keys()),
    (Kind.COLLATED, lambda k: {"combined", "per_run"} <= k.keys()),
    (Kind.IDENTITY, lambda k: "schema" in k and {"name", "benchmark_id"} <= k.get("client", frozenset())),
    (Kind.SUMMARY, lambda k: _summary(k)),
)


def _tagged(below: frozenset[str]) -> bool:
    return bool(below & _KNOWN_TAGS)


def _summary(keys: dict[str, frozenset[str]]) -> bool:
    if "metrics" in keys or "config" in keys:
        return False
    tags = [tag for tag in keys.keys() & _KNOWN_TAGS if {"unit", "avg"} <= keys[tag]]
    return (
        bool(tags)
        or bool(keys.get("records", frozenset()) & _KNOWN_TAGS)
        or {"aiperf_version", "input_config"} <= keys.keys()
    )


def _text(start: bytes) -> Kind | None:
    line = start.split(b"\n", 1)[0].rstrip(b"\r")
    beginning = start[:_TEXT_BYTES]
    if line.startswith(b"# AIPerf Server Metrics"):
        return Kind.SERVER_CSV
    if line.startswith(b"Metric,avg,min,max") or (line == b"Metric,Value" and b"\nRequest Throughput (" in beginning):
        return Kind.SUMMARY_CSV
    if line.startswith(b"Timeslice,") and b"Metric" in line and b"Stat" in line:
        return Kind.SLICES_CSV
    if b"ci_low" in beginning and b"t_critical" in beginning:
        return Kind.AGGREGATE_CSV
    if b"NVIDIA AIPerf |" in beginning:
        return Kind.CONSOLE
    if b"BENCHMARK WORKLOAD DISTRIBUTION" in beginning:
        return Kind.WORKLOAD
    if _LOG.search(start):
        return Kind.LOG
    if _COMMAND.search(beginning):
        return Kind.COMMAND
    return Kind.ENGINE_COMMAND if _ENGINE.search(beginning) else None


def _parquet(file: InputFile) -> Kind | None:
    try:
        metadata = pq.read_schema(file.path).metadata or {}
    except (OSError, pa.ArrowException):
        return None
    return Kind.SCRAPES_PARQUET if b"aiperf.version" in metadata else None
