"""What importing long files costs: seconds, rows a second, and memory at its highest, against what is asked for.

``passes`` is a recorder's JSON Lines of forward pass metrics (590,000 records, 340 MB), ``requests`` AIPerf's
``profile_export.jsonl`` of a run in which some requests fail (700,000 records, a gigabyte). Both are made up from the
number of each row, so every run imports the same bytes. Each way of handing them over (plain, gzip, zstd) is imported
in a process of its own, whose peak of resident memory is told; one more import is canceled half-way, and must leave
nothing. The exit code is 1 where a figure is not met.
"""

from __future__ import annotations

import argparse
import gzip
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from benchmarks.import_rows import pass_record, request_record
from engine.bundle import open_bundle
from engine.importers import Canceled, import_any

WAYS = ("plain", "gzip", "zstd")
_BLOCK = 2_000  # rows


@dataclass(frozen=True)
class Load:
    """Rows to import, and what their import may cost (None: no figure is asked for)."""

    record: Callable[[int], dict[str, Any]]
    rows: int
    table: str
    limit_s: float | None
    limit_mib: int | None


LOADS = {
    "passes": Load(pass_record, 590_000, "passes", 15.0, 500),
    "requests": Load(request_record, 700_000, "requests", None, None),
}


def blocks(record: Callable[[int], dict[str, Any]], rows: int) -> Iterator[bytes]:
    """The file in pieces."""
    for start in range(0, rows, _BLOCK):
        lines = (orjson.dumps(record(number)) for number in range(start, min(start + _BLOCK, rows)))
        yield b"".join(line + b"\n" for line in lines)


def write(path: Path, load: Load, rows: int, way: str) -> int:
    """Write ``rows`` records; returns their bytes before compression."""
    size = 0
    with path.open("wb") as plain:
        out: Any = plain
        if way == "gzip":
            out = gzip.GzipFile(fileobj=plain, mode="wb", compresslevel=1)
        elif way == "zstd":
            out = pa.CompressedOutputStream(pa.PythonFile(plain, "w"), "zstd")
        for block in blocks(load.record, rows):
            size += len(block)
            out.write(block)
        if out is not plain:
            out.close()
    return size


def _import(path: Path, store: Path, table: str) -> None:
    began, spent = time.perf_counter(), time.process_time()
    run_id = import_any(path, store)[0]
    seconds, cpu = time.perf_counter() - began, time.process_time() - spent
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(seconds, cpu, peak, open_bundle(store / run_id).rows(table))


def _judge(load: Load, rows: int, said: str) -> bool:
    seconds, cpu, peak, held = float((f := said.split())[0]), float(f[1]), int(f[2]), int(f[3])
    met = held == rows
    for figure, limit in ((seconds, load.limit_s), (peak, load.limit_mib)):
        met &= limit is None or figure <= limit
    asked = f" (asked for: {load.limit_s:.0f} s, {load.limit_mib} MiB)" if load.limit_s else ""
    print(f"  {seconds:.1f} s, {cpu:.1f} s CPU, {rows / seconds:,.0f} rows a second, {peak} MiB at most{asked}")
    print(f"  {held:,} rows in the run: {'pass' if met else 'FAIL'}")
    return met


def _cancel(path: Path, store: Path, rows: int) -> None:
    asked = 0

    def enough() -> bool:
        nonlocal asked
        asked += 1
        return asked > rows // 40_000

    try:
        import_any(path, store, cancel=enough)
    except Canceled as said:
        left = list(store.rglob("*")) if store.exists() else []
        print(f"  canceled: {said} Left behind: {len(left)}")


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loads", nargs="*", choices=(*LOADS, []), help="which (default: every)")
    parser.add_argument("--rows", type=int, help="how many (default: as many as asked for)")
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS))
    parser.add_argument("--folder", type=Path, help="where to write (default: the system's temporary folder)")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        path, store, table = arguments.one
        _import(Path(path), Path(store), table)
        return 0
    met = True
    with tempfile.TemporaryDirectory(dir=arguments.folder) as held:
        for name in arguments.loads or LOADS:
            load = LOADS[name]
            rows = arguments.rows or load.rows
            for way in arguments.ways:
                path = Path(held) / f"{name}-{way}"
                size = write(path, load, rows, way)
                print(
                    f"{name}, {way}: {rows:,} rows, {size / 1e6:,.0f} MB, {path.stat().st_size / 1e6:,.0f} MB on disk"
                )
                store = Path(held) / f"store-{name}-{way}"
                child = [sys.executable, "-m", "benchmarks.import_speed", "--one", str(path), str(store), load.table]
                said = subprocess.run(child, check=True, capture_output=True, text=True).stdout
                met &= _judge(load, rows, said)
                if way == "plain":
                    _cancel(path, Path(held) / f"canceled-{name}", rows)
                path.unlink()
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
