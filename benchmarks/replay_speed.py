"""What a replay costs, part by part, and in pairs with NVIDIA Dynamo's replay where that is installed.

All figures are CPU seconds of one warm process. *rows* are the tables of passes and requests; *events* what every
cache event adds, in the replay and as rows; *bundle* is writing and sealing the files of a run, events included.
In a pair, our side is parse + replay + rows; theirs is the call of ``run_mocker_trace_replay``, which parses the same
file, replays it and returns a summary.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

from benchmarks.workloads import WORKLOADS, Workload, trace_file
from engine import knobs as knob_table
from engine.bundle import find_bundle
from engine.replay import knobs_from_run, simulate, write
from engine.replay.result import ReplayResult
from engine.replay.tables import Tables
from engine.timing import build_timing
from engine.traces import find_trace, load_trace

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = ROOT / "sample_runs"
SAMPLE_RUNS = ("ample8", "tight8")
PARTS = ("parse", "replay", "rows", "events", "bundle")


@dataclass
class Costs:
    """CPU seconds of each part of one replay, and what was replayed."""

    parts: dict[str, float]
    result: ReplayResult

    @property
    def plain(self) -> float:
        """A replay with its passes and requests as rows."""
        return sum(self.parts[name] for name in ("parse", "replay", "rows"))

    @property
    def with_events(self) -> float:
        """The same with every cache event as a row."""
        return self.plain + self.parts["events"]


class Clock:
    """CPU seconds since the last look."""

    def __init__(self) -> None:
        self._last = time.process_time()

    def lap(self) -> float:
        now = time.process_time()
        spent, self._last = now - self._last, now
        return spent


def measure(path: Path, knobs: Mapping[str, Any], store: Path | None) -> Costs:
    """One replay of the trace at ``path``, with and without cache events; bundles go to ``store``."""
    without = knob_table.resolve({**knobs, "record_events": False})
    parts: dict[str, float] = {}
    gc.collect()
    clock = Clock()
    trace = load_trace(path)
    parts["parse"] = clock.lap()
    result = simulate(trace, without, build_timing(without, None))
    parts["replay"] = clock.lap()
    make_rows(result, events=False)
    parts["rows"] = clock.lap()
    if store is not None:
        with_all = knob_table.resolve({**knobs, "record_events": True})
        gc.collect()
        clock.lap()
        result = simulate(trace, with_all, build_timing(with_all, None))
        replayed = clock.lap()
        make_rows(result, events=True)
        parts["events"] = replayed + clock.lap() - parts["replay"] - parts["rows"]
        write(result, None, store)
        parts["bundle"] = clock.lap()
    return Costs(parts, result)


def make_rows(result: ReplayResult, events: bool) -> int:
    """The tables of passes and requests, and of cache events; returns how many rows they have.

    Passes without their members: who was in each batch is as many rows again as there are tokens.
    """
    tables = Tables(replace(result, knobs={**result.knobs, "record_members": False}))
    made = [tables.requests, tables.passes, *([tables.kv_events] if events else [])]
    return sum(sum(len(batch) for batch in _batches(table())) for table in made)


def _batches(rows: pa.Table | Iterator[pa.RecordBatch]) -> Iterator[pa.Table | pa.RecordBatch]:
    return iter([rows]) if isinstance(rows, pa.Table) else rows


def workload_knobs(workload: Workload) -> dict[str, Any]:
    """The deployment of a synthetic workload: one replica, sessions from a shared cursor, constant pass costs."""
    return {
        "lanes": workload.clients,
        "lane_assignment": "cursor",
        "kv_blocks": workload.kv_tokens // workload.block_size + 1,
        "block_size": workload.block_size,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 2048,
        "timing": "fixed",
    }


def sample(name: str) -> tuple[Path, dict[str, Any]]:
    """The trace of a sample run, and the knobs of its deployment with constant pass costs."""
    bundle = find_bundle([SAMPLES], name)
    digest = bundle.identity.value("trace", "digest")
    return find_trace([SAMPLES], digest), {**knobs_from_run(bundle), "timing": "fixed"}


class Dynamo:
    """NVIDIA Dynamo's replay in an interpreter of its own, kept warm."""

    def __init__(self, python: str) -> None:
        script = Path(__file__).with_name("dynamo_call.py")
        self._process = subprocess.Popen(
            [python, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def call(self, path: Path, workload: Workload) -> dict[str, Any]:
        """Replay a trace; what it answered."""
        assert self._process.stdin
        assert self._process.stdout
        question = {
            "path": str(path),
            "block_size": workload.block_size,
            "clients": workload.clients,
            "kv_tokens": workload.kv_tokens,
            "hash_tokens": workload.hash_tokens or workload.block_size,
        }
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:  # it may log as well
            if line.startswith("answer "):
                answer: dict[str, Any] = json.loads(line.removeprefix("answer "))
                return answer
        sys.exit("Dynamo's replay ended without an answer: does the interpreter have ai-dynamo and ai-dynamo-runtime?")

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def report_costs(name: str, repeat: int, run: Callable[[Path | None], Costs]) -> None:
    """Print the median cost of each part of a workload."""
    with tempfile.TemporaryDirectory() as folder:
        costs = [run(Path(folder) / str(turn)) for turn in range(repeat)]
    parts = {part: median(c.parts[part] for c in costs) for part in PARTS}
    ratio = median(c.with_events / c.plain for c in costs)
    result = costs[-1].result
    figures = " ".join(f"{parts[part]:8.3f}" for part in PARTS)
    print(f"{name:<10} {result.num_requests:>8} {result.num_passes:>8} {figures} {ratio:11.2f}", flush=True)


def report_pairs(name: str, workload: Workload, folder: Path, pairs: int, dynamo: Dynamo) -> None:
    """Print the median ratio of interleaved pairs, ours to theirs, after one unmeasured pair."""
    path, knobs = trace_file(workload, folder), workload_knobs(workload)
    ours, theirs = [], []
    for turn in range(pairs + 1):
        cost, answer = measure(path, knobs, None), dynamo.call(path, workload)
        if turn:
            ours.append(cost.plain)
            theirs.append(answer["cpu_s"])
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    record = cost.result.record.requests
    prompts = sum(turn.prompt_tokens or 0 for play in cost.result.trace.plays for turn in play.conversations[0].turns)
    print(
        f"{name:<10} {median(ours):8.3f} {median(theirs):8.3f} {median(ratios):7.2f} {ratios[0]:6.2f} {ratios[-1]:6.2f}"
        f" {record['cached_tokens'].sum() / prompts:9.5f} {answer['reuse']:9.5f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*WORKLOADS, *SAMPLE_RUNS]
    parser.add_argument("workloads", nargs="*", help=f"any of {', '.join(names)}; all of them by default")
    parser.add_argument("--folder", type=Path, default=None, help="where the traces are kept (a temporary folder)")
    parser.add_argument("--repeat", type=int, default=3, help="measurements per workload; the median is shown")
    parser.add_argument("--pairs", type=int, default=5, help="interleaved pairs per workload")
    parser.add_argument("--dynamo-python", metavar="PATH", help="an interpreter with ai-dynamo, for pairs")
    parser.add_argument("--only-pairs", action="store_true", help="leave out the costs part by part")
    asked = parser.parse_args()
    chosen = asked.workloads or names
    if unknown := sorted(set(chosen) - set(names)):
        parser.error(f"unknown workload {unknown[0]}: expected one of {', '.join(names)}")

    print(f"CPython {platform.python_version()}, CPU seconds, medians of {asked.repeat}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.folder or Path(temporary)
        if not asked.only_pairs:
            print(f"{'workload':<10} requests   passes " + " ".join(f"{p:>8}" for p in PARTS) + " with events")
            for name in chosen:
                if name in WORKLOADS:
                    path, knobs = trace_file(WORKLOADS[name], folder), workload_knobs(WORKLOADS[name])
                else:
                    path, knobs = sample(name)
                report_costs(name, asked.repeat, lambda store, p=path, k=knobs: measure(p, k, store))  # type: ignore[misc]
        if asked.dynamo_python:
            print(f"\n{asked.pairs} interleaved pairs: parse + replay + rows against Dynamo's call")
            print(f"{'workload':<10} {'ours':>8} {'dynamo':>8}   ratio    min    max     reuse and theirs")
            dynamo = Dynamo(asked.dynamo_python)
            for name in chosen:
                if name in WORKLOADS:
                    report_pairs(name, WORKLOADS[name], folder, asked.pairs, dynamo)
            dynamo.close()


if __name__ == "__main__":
    main()
