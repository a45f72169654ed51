"""Rebuild the imports among the sample runs: ``python scripts/sample_imports.py [STORE]``.

Four clients at one stub server that answers in known, odd ways, and a client with its engine's passes; their files lie
in ``tests/data``. The same files give the same run ids; an older run of the same name is removed.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from engine.bundle import list_bundles
from engine.importers import import_any

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests" / "data"

STUB = "odd answers of a stub server"
IMPORTS = {
    "stub_aiperf": (STUB, ["aiperf/edge_cases"]),
    "stub_vllm_bench": (STUB, ["vllm_bench/detailed.json"]),
    "stub_sglang_bench": (STUB, ["sglang_bench/out_sglang.jsonl"]),
    "stub_guidellm": (STUB, ["guidellm/out_guide.json.gz"]),
    "agentic_aiperf": ("4 lanes of agents on vLLM, with its passes", ["aiperf/native", "engine"]),
}
"""The runs by name: what they are of, and their files."""


def main(store: Path) -> None:
    """Import everything into ``store``."""
    before = list_bundles(store)
    with tempfile.TemporaryDirectory() as held:
        for name, (what, sources) in IMPORTS.items():
            (run_id,) = import_any(_placed(name, sources, Path(held)), store, title=f"{name}: {what}")
            print(run_id)
            for old in before:
                if old.name.rpartition("-")[0] == name and old.name != run_id:
                    shutil.rmtree(old)


def _placed(name: str, sources: list[str], folder: Path) -> Path:
    """The files of a run below a folder, or as a file, of its name: runs are called by it."""
    first = DATA / sources[0]
    if first.is_file():
        return Path(shutil.copy(first, folder / f"{name}{''.join(first.suffixes)}"))
    for source in sources:
        shutil.copytree(DATA / source, folder / name, dirs_exist_ok=True)
    return folder / name


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "sample_runs")
