"""What importing a gigabyte of one client's records costs: rows a second, and memory at its highest.

The records are AIPerf's, made up as they are read about: ``profile_export.jsonl`` of a run in which some requests fail.
Each way of handing them over (plain, gzip, zstd) is imported in a process of its own, whose peak of resident memory is
told; one more is canceled half-way, and must leave nothing.
"""

from __future__ import annotations

import argparse
import gzip
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from engine.bundle import open_bundle
from engine.importers import Canceled, import_any

WAYS = ("plain", "gzip", "zstd")
START_NS = 1_780_000_000_000_000_000
_BLOCK = 2_000  # rows


def record(number: int) -> dict[str, Any]:
    """The ``number``-th record: 200 requests a second that take 2 to 5 s; every 50th failed."""
    start = START_NS + number * 5_000_000 + number * 7919 % 1_000_000
    tokens = 5 + number * 31 % 11
    gap_ms = 20 + number * 17 % 97 / 10
    ttft_ms = 150 + number * 13 % 1_009
    e2e_ms = ttft_ms + gap_ms * (tokens - 1)
    metadata = {
        "session_num": number,
        "x_request_id": f"{number * 2654435761 % 2**32:08x}-{number:012x}",
        "x_correlation_id": f"{number // 4:032x}",
        "conversation_id": f"session_{number // 4:06}",
        "turn_index": number % 4,
        "credit_issued_ns": start - 90_000,
        "request_start_ns": start,
        "request_ack_ns": start + 30_000_000,
        "request_end_ns": start + round(e2e_ms * 1e6) + 2_000_000,
        "worker_id": f"worker_{number % 8:08x}",
        "record_processor_id": f"record_processor_{number % 4:08x}",
        "benchmark_phase": "profiling",
        "was_cancelled": False,
    }
    if number % 50 == 49:
        error = {"code": 500, "type": "Internal Server Error", "message": "the engine is gone"}
        return {"metadata": metadata, "metrics": {"error_isl": _value(900, "tokens")}, "error": error}
    isl = 500 + number * 97 % 8_000
    metrics = {
        "time_to_first_token": _value(ttft_ms, "ms"),
        "time_to_second_token": _value(gap_ms, "ms"),
        "time_to_first_output_token": _value(ttft_ms, "ms"),
        "request_latency": _value(e2e_ms, "ms"),
        "inter_token_latency": _value(gap_ms, "ms"),
        "inter_chunk_latency": _value([gap_ms] * (tokens - 1), "ms"),
        "input_sequence_length": _value(isl, "tokens"),
        "output_sequence_length": _value(tokens, "tokens"),
        "output_token_count": _value(tokens, "tokens"),
        "usage_prompt_tokens": _value(isl, "tokens"),
        "usage_completion_tokens": _value(tokens, "tokens"),
        "usage_total_tokens": _value(isl + tokens, "tokens"),
        "usage_prompt_cache_read_tokens": _value(isl // 32 * 16, "tokens"),
        "output_token_throughput_per_user": _value(1000 / gap_ms, "tokens/sec/user"),
        "prefill_throughput_per_user": _value(isl / ttft_ms * 1000, "tokens/sec/user"),
        "http_req_duration": _value(e2e_ms, "ms"),
    }
    return {"metadata": metadata, "metrics": metrics, "error": None}


def _value(value: Any, unit: str) -> dict[str, Any]:
    return {"value": value, "unit": unit}


def blocks(rows: int) -> Iterator[bytes]:
    """The file in pieces."""
    for start in range(0, rows, _BLOCK):
        lines = (orjson.dumps(record(number)) for number in range(start, min(start + _BLOCK, rows)))
        yield b"".join(line + b"\n" for line in lines)


def write(path: Path, rows: int, way: str) -> int:
    """Write ``rows`` records; returns their bytes before compression."""
    size = 0
    with path.open("wb") as plain:
        out: Any = plain
        if way == "gzip":
            out = gzip.GzipFile(fileobj=plain, mode="wb", compresslevel=1)
        elif way == "zstd":
            out = pa.CompressedOutputStream(pa.PythonFile(plain, "w"), "zstd")
        for block in blocks(rows):
            size += len(block)
            out.write(block)
        if out is not plain:
            out.close()
    return size


def _import(path: Path, store: Path) -> None:
    began = time.process_time()
    run_id = import_any(path, store)[0]
    seconds = time.process_time() - began
    rows = open_bundle(store / run_id).manifest["ledger"]["total"]["attempted"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(
        f"{seconds:7.1f} s CPU, {rows / seconds:,.0f} rows a second, {peak} MiB at most; {rows:,} requests in the run"
    )


def _cancel(path: Path, store: Path, rows: int) -> None:
    asked = 0

    def enough() -> bool:
        nonlocal asked
        asked += 1
        return asked > rows // 4_000

    try:
        import_any(path, store, cancel=enough)
    except Canceled as said:
        left = list(store.rglob("*")) if store.exists() else []
        print(f"canceled: {said} Left behind: {len(left)}")


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=700_000)
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS))
    parser.add_argument("--folder", type=Path, help="where to write (default: the system's temporary folder)")
    parser.add_argument("--one", nargs=2, type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        _import(*arguments.one)
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as held:
        for way in arguments.ways:
            path = Path(held) / f"records-{way}"
            size = write(path, arguments.rows, way)
            print(
                f"{way}: {arguments.rows:,} records, {size / 1e6:,.0f} MB, {path.stat().st_size / 1e6:,.0f} MB on disk"
            )
            child = [sys.executable, "-m", "benchmarks.import_records", "--one", path, Path(held) / f"store-{way}"]
            subprocess.run([str(part) for part in child], check=True)
            if way == "plain":
                _cancel(path, Path(held) / "canceled", arguments.rows)
            path.unlink()


if __name__ == "__main__":
    main()
