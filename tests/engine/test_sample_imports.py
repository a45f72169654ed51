"""The imports among the sample runs: four clients at one stub server, and a client with its engine's passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.bundle import Bundle, list_bundles, open_bundle
from scripts.sample_imports import IMPORTS, main

SAMPLES = Path(__file__).parents[2] / "sample_runs"

SENT = {
    "stub_aiperf": (6, 80),
    "stub_vllm_bench": (0, 40),
    "stub_sglang_bench": (0, 40),
    "stub_guidellm": (0, 70),
    "agentic_aiperf": (5, 238),
}
"""Requests of warm-up and profile, counted in the files of the tools."""


def imported(store: Path) -> dict[str, Bundle]:
    found = {path.name.rpartition("-")[0]: open_bundle(path) for path in list_bundles(store)}
    return {name: found[name] for name in IMPORTS}


def test_they_are_sound_and_small() -> None:
    runs = imported(SAMPLES).values()
    assert [run.verify() for run in runs] == [[]] * len(IMPORTS)
    assert sum(file.stat().st_size for run in runs for file in run.path.iterdir()) < 1_000_000


@pytest.mark.parametrize("name", IMPORTS)
def test_they_hold_what_the_clients_sent(name: str) -> None:
    table = imported(SAMPLES)[name].table("requests", ["phase"])
    assert table is not None
    phases = table.column("phase").to_pylist()
    assert (phases.count("warmup"), phases.count("profile")) == SENT[name]


def test_one_has_the_passes_of_its_engine() -> None:
    run = imported(SAMPLES)["agentic_aiperf"]
    assert run.rows("passes") == 3451  # as its recorder counted
    (check,) = [check for check in run.qualification if check.check == "clocks_aligned"]
    assert check.verdict == "pass"


def test_they_are_rebuilt_from_files_of_the_project(tmp_path: Path) -> None:
    main(tmp_path)
    main(tmp_path)  # the same ids, so nothing is left beside them
    kept, rebuilt = imported(SAMPLES), imported(tmp_path)
    assert len(list_bundles(tmp_path)) == len(IMPORTS)
    for name, run in rebuilt.items():
        assert (run.title, run.kind, run.tables) == (kept[name].title, kept[name].kind, kept[name].tables)
        assert [run.rows(table) for table in run.tables] == [kept[name].rows(table) for table in run.tables]
