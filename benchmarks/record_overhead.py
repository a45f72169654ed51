"""What recording costs a server: pass time with the scheduler plug-in off, without statistics, and on, by turns.

A server of the toy model (``make record-demo`` installs it) decodes a batch that does not change; every 30 passes
another setting applies (``interleaved_scheduler``). Settings are compared within a round of the three, so that what
else the machine does falls on all of them alike.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from engine.recording.rows import read_series

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = ("off", "without statistics", "on")
SETTLING = 3
"""Passes after a change that do not count."""
START_S = 360.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    work = ROOT / "build" / "record-demo"
    parser.add_argument("--venv", type=Path, default=work / "venv", help="a virtual environment with vLLM")
    parser.add_argument("--model", type=Path, default=work / "toy-llama")
    parser.add_argument("--batch", type=int, default=8, help="requests that decode together")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--port", type=int, default=8124)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        with server(arguments, Path(folder)):
            load(arguments.port, arguments.batch, arguments.seconds)
        report(read_blocks(Path(folder) / "turns.jsonl"), arguments.batch)
        own(Path(folder) / "rows")


@contextmanager
def server(arguments: argparse.Namespace, folder: Path) -> Iterator[None]:
    """vLLM with the scheduler that takes turns."""
    plugins = f"{ROOT / 'engine/recording/server'}:{ROOT / 'benchmarks'}"
    environment = {
        **os.environ,
        "PLUGINS": plugins,
        "SCHEDULER": "interleaved_scheduler.InterleavedScheduler",
        "GAPSCOPE_RECORD": str(folder / "rows"),
        "GAPSCOPE_OVERHEAD": str(folder / "turns.jsonl"),
    }
    command = [ROOT / "scripts/record_demo/server.sh", arguments.venv, arguments.model]
    command += [arguments.port, arguments.port + 1000, 4096]
    with (folder / "server.log").open("w") as log:
        words = [str(word) for word in command]
        process = subprocess.Popen(words, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + START_S
        while not healthy(arguments.port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the server did not start:\n" + (folder / "server.log").read_text()[-2000:])
            time.sleep(1)
        yield
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def healthy(port: int) -> bool:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False


def load(port: int, batch: int, seconds: float) -> None:
    """``batch`` clients, each with one long answer after another."""
    until = time.monotonic() + seconds

    def client(number: int) -> None:
        while time.monotonic() < until:
            body = {"model": "toy-llama", "prompt": [300 + number] * 64, "max_tokens": 500, "ignore_eos": True}
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200:
                raise RuntimeError(answer.read())
            answer.read()

    clients = [threading.Thread(target=client, args=(number,)) for number in range(batch)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()


def read_blocks(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def report(blocks: Sequence[dict[str, Any]], batch: int) -> None:
    """Pass time by setting, and what a setting adds, from the median of each block within its round."""
    rounds = []
    every: dict[str, list[float]] = {setting: [] for setting in SETTINGS}
    for first in range(0, len(blocks) - len(SETTINGS) + 1, len(SETTINGS)):
        medians = {}
        for block in blocks[first : first + len(SETTINGS)]:
            times = [ns / 1e6 for ns, members, decodes in block["passes"][SETTLING:] if members == decodes == batch]
            every[block["setting"]] += times
            if len(times) >= 20:
                medians[block["setting"]] = float(np.median(times))
        if len(medians) == len(SETTINGS):
            rounds.append(medians)
    print(f"{len(rounds)} rounds of 3 blocks, decode passes of {batch} requests, period in ms")
    for setting in SETTINGS:
        quartiles = np.percentile(every[setting], [25, 50, 75])
        print(f"  {setting:20} p25 {quartiles[0]:7.3f}  p50 {quartiles[1]:7.3f}  p75 {quartiles[2]:7.3f}")
    draw = np.random.default_rng(1)
    for setting in SETTINGS[1:]:
        more = np.array([r[setting] - r["off"] for r in rounds])
        means = [np.median(draw.choice(more, len(more))) for _ in range(2000)]
        low, high = np.percentile(means, [2.5, 97.5])
        print(f"  {setting:20} adds {np.median(more):+.3f} ms (95 % interval {low:+.3f} to {high:+.3f})")


def own(folder: Path) -> None:
    """Time inside the plug-in's own code, as its rows tell."""
    (series,) = read_series(folder)
    for name, stats in (("without statistics", False), ("on", True)):
        times = [r["own_us"] for r in series.rows if r["kind"] == "iter" and (r["worker_cpu_s"] is not None) == stats]
        p50, p99 = np.percentile(times, [50, 99])
        print(f"  {name:20} own code per pass: p50 {p50:.0f} us, mean {np.mean(times):.0f} us, p99 {p99:.0f} us")


if __name__ == "__main__":
    main()
