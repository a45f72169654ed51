"""The same workload and knobs give the same run in another process, under another hash seed and number of threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FIXED: dict[str, Any] = {
    "timing": "fixed",
    "block_size": 4,
    "kv_blocks": 400,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "lanes": 5,
    "duration_s": 1.0,
    "grace_s": 0.05,
    "wrap": True,
}
CASES: dict[str, dict[str, Any]] = {
    "one engine": {},
    "replicas, by what they hold": {"replicas": 3, "router": "kv_aware"},
    "ranks with drafts": {
        "attention_dp": 3,
        "dp_router": "session",
        "spec_method": "mtp",
        "spec_tokens": 3,
        "spec_mean_length": 2.49,
    },
    "SGLang": {"engine": "sglang", "policy": "lpm", "max_num_batched_tokens": 2048},
    "cut and primed": {"cut": "turns", "prime": True, "warmup_requests": 2, "client_seed": 3, "grace_s": 0.2},
    "poisson": {"arrivals": "poisson", "arrival_rate": 20, "client_seed": 5},
}
PROGRAM = """
import json, sys
from pathlib import Path
from engine.replay import replay
from tests.engine.test_client_properties import random_trace
for knobs in json.load(sys.stdin):
    print(replay(random_trace(7, 9), knobs, store=Path(sys.argv[1]), slug="r"))
"""


def run_ids(store: Path, **environment: str) -> list[str]:
    knobs = json.dumps([{**FIXED, **changes} for changes in CASES.values()])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(store)],
        input=knobs,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'engine'}", **environment},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_run_is_the_same_anywhere(tmp_path: Path) -> None:
    first = run_ids(tmp_path / "a", PYTHONHASHSEED="1", OMP_NUM_THREADS="1", ARROW_NUM_THREADS="1")
    second = run_ids(tmp_path / "b", PYTHONHASHSEED="2", OMP_NUM_THREADS="4", ARROW_NUM_THREADS="4")
    assert first == second
    assert len(set(first)) == len(CASES)
