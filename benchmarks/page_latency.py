"""Server time of every control on the sample pair: from a changed value to the finished page.

    python -m benchmarks.page_latency

Streamlit's script runs without a browser, which is all that the server does for one interaction: script, queries,
figures and their JSON. The limit is 300 ms on two cores at the first look at a view, with nothing kept of it; CPU time
stands beside it, as other programs lengthen only the wall time, and the time of the same view again.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from streamlit.testing.v1 import AppTest

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "dashboard" / "pages"
LIMIT_MS = 300.0

Step = tuple[str, Callable[[AppTest], object]]


def select(key: str, *values: str) -> list[Step]:
    """Steps that choose each value of a control."""

    def step(value: str) -> Callable[[AppTest], object]:
        def change(app: AppTest) -> object:
            for kind in ("selectbox", "button_group"):
                for element in app.get(kind):
                    if element.key == key:
                        return element.set_value(value)
            raise KeyError(key)

        return change

    return [(f"{key}={value}", step(value)) for value in values]


def number(key: str, *values: float) -> list[Step]:
    return [
        (f"{key}={value:g}", lambda app, value=value: app.number_input(key=key).set_value(value)) for value in values
    ]


def _recorded() -> list[str]:
    """The sweep and a recording of the samples, by their ids."""
    return [next((ROOT / "sample_runs").glob(f"{name}-????????????")).name for name in ("fpm_sweep", "ample8")]


SHARED: list[Step] = [
    *select("pop", "matched", "complete"),
    *select("phase", "all", "profile"),
    *select("est", "nearest_rank", "linear"),
    *select("win", "observed_span", "fixed"),
]
OWN: dict[str, list[Step]] = {
    "verdict": [*SHARED, *select("split", "e2e", "tpot", "itl", "ttft")],
    "identity": select("only", "all", "open"),
    "cohort": [*SHARED[:4], *number("lanes_from", 40, 0), *number("lanes_span", 60, 30)],
    "percentiles": [
        *SHARED[:6],
        *select("metric", "tpot", "e2e", "itl", "ttft"),
        *select("curve", "tail", "percentile", "qq", "ecdf"),
        *select("pct_x", "linear", "log"),
        *select("by", "output_tokens", "turn_index", "cached_share", "input_tokens"),
        *number("top", 50, 10),
    ],
    "tools": [
        *SHARED,
        *select("tools_metric", "tpot", "itl", "chunk_gap", "e2e", "ttft"),
        *select("tools_fields", "all", "open"),
    ],
    "passes": [
        *SHARED[2:4],
        *select("cls", "decode_only", "prefill_only", "mixed"),
        *select("along", "new_tokens", "decode_kv_tokens"),
        *select("pass_y", "linear", "log"),
        *number("pass_from", 60, 0),
    ],
    "timing": [*SHARED[2:4], *select("tim_y", "log", "linear"), *select("tim_run", *_recorded())],
    "coverage": select("cov", "mixed", "prefill_only", "decode_only"),
    "cache_events": [*SHARED[:4], *select("conv", "s0014", "s0010")],
    "request": [
        *select("turn", "s0059/0", "s0031/1", "s0128/0", "s0069/2"),
        *select("turn_by", "ttft", "cached_tokens"),
    ],
    "ladder": [*SHARED[:6], *select("ladder_number", "e2e.p99", "hit_ratio.tokens"), *select("ladder_check", "loop")],
    "alignment": [
        *SHARED[2:6],
        *number("align_tol", 12, 5),
        *select("align_rung", "5", "4", "3", "2", "1"),
    ],
    "boundaries": [
        *SHARED[:6],
        *select("bnd_until", "ttft", "e2e"),
        *number("bnd_tail", 95, 90),
        *select("bnd_by", "turn_index", "role", "input_tokens"),
    ],
    "repeats": SHARED,
    "ledger": select("status", "open", "all"),
    "what_if": [*number("k_kv_blocks", 2048, 4096), *number("k_lanes", 4, 8)],
    "runs": [],
}


def sample_store() -> str:
    """The sample runs, and the ladder of the pair that the pages open with."""
    folder = Path(tempfile.mkdtemp(prefix="gapscope-bench-"))
    command = [sys.executable, "-m", "engine.cli", "ladder", "ample8", "ample8-predicted"]
    command += ["--store", "sample_runs", "--store", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return os.pathsep.join([str(ROOT / "sample_runs"), str(folder)])


def timed(app: AppTest) -> tuple[float, float]:
    """Wall and CPU time of one run of the script, in ms."""
    begun, used = time.perf_counter(), time.process_time()
    app.run()
    elapsed, cpu = 1000 * (time.perf_counter() - begun), 1000 * (time.process_time() - used)
    if app.exception:
        raise RuntimeError(app.exception[0].message)
    return elapsed, cpu


def measure(page: str, repeats: int) -> list[tuple[str, float, float, float]]:
    """Rows (control, first look, CPU time of it, median of the later looks) of a page, in ms."""
    app = AppTest.from_file(str(ROOT / "tests" / "pages" / "entry.py"), default_timeout=120)
    app.run()
    app.switch_page(str(PAGES / f"{page}.py"))
    rows = [("opened", *timed(app), timed(app)[0])]
    gc.collect()
    gc.freeze()
    for name, change in OWN[page]:
        change(app)
        first = timed(app)
        again = []
        for _ in range(repeats):
            app.run()
            again.append(timed(app)[0])
        rows.append((name, *first, statistics.median(again)))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description="Server time of every control on the sample pair.")
    parser.add_argument("--pages", nargs="*", default=list(OWN), choices=list(OWN))
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    os.environ["GAPSCOPE_STORE"] = os.environ.get("GAPSCOPE_STORE") or sample_store()
    slow = 0
    print(f"{'page':<14}{'control':<28}{'first look, ms':>15}{'CPU, ms':>10}{'again, ms':>12}")
    for page in arguments.pages:
        for control, first, cpu, again in measure(page, arguments.repeats):
            over = control != "opened" and first > LIMIT_MS
            slow += over
            print(
                f"{page:<14}{control:<28}{first:>15.0f}{cpu:>10.0f}{again:>12.0f}{'   over the limit' if over else ''}"
            )
    print(f"{slow} controls over {LIMIT_MS:.0f} ms at first look.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
