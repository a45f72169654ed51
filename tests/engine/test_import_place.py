"""Where files lie is no part of a run: alone, in a folder, deep below one or in an archive they give the same id."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from engine.bundle import open_bundle
from engine.errors import GapscopeError
from engine.importers import import_any, intake_for, plan_import
from engine.importers.attaching import attach
from engine.importers.contract import Options
from tests.engine import fuzz_inputs

# LLMServingSim's files are called alike in every run, so that its runs are named by the folders above.
INPUTS = {name: files for name, files in fuzz_inputs.inputs().items() if name != "llmservingsim"}


def laid(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize("name", INPUTS)
def test_the_same_files_give_the_same_runs(tmp_path: Path, name: str) -> None:
    folder = laid(tmp_path / "top" / "deep" / "res", INPUTS[name])
    with tarfile.open(tmp_path / "all.tar", "w") as archive:
        archive.add(folder, "packed/res")
    ids = [sorted(import_any(path, tmp_path / f"{n}")) for n, path in enumerate((folder, tmp_path / "top"))]
    ids.append(sorted(import_any(tmp_path / "all.tar", tmp_path / "2")))
    assert ids[0] == ids[1] == ids[2]
    if len(INPUTS[name]) == 1:
        alone = import_any(folder / next(iter(INPUTS[name])), tmp_path / "3")
        # The name may be the folder's, which a file alone does not have; the content is the same.
        assert sorted(run_id[-12:] for run_id in alone) == sorted(run_id[-12:] for run_id in ids[0])


def test_both_sides_of_llmservingsim_have_the_same_content_anywhere(tmp_path: Path) -> None:
    folder = laid(tmp_path / "top" / "deep", fuzz_inputs.llmservingsim())
    ids = [import_any(path, tmp_path / f"{n}") for n, path in enumerate((folder, tmp_path / "top"))]
    assert [[run_id[-12:] for run_id in found] for found in ids] == [[run_id[-12:] for run_id in ids[0]]] * 2


def test_two_folders_of_the_same_files_are_one_run(tmp_path: Path) -> None:
    for place in ("a", "b/c"):
        laid(tmp_path / "in" / place, fuzz_inputs.vllm_bench())
    ids = import_any(tmp_path / "in", tmp_path / "store")
    assert len(ids) == 2
    assert len(set(ids)) == 1
    assert list(open_bundle(tmp_path / "store" / ids[0]).lineage["source_files"]) == ["result.json"]


def test_attached_files_have_their_own_names_too(tmp_path: Path) -> None:
    laid(tmp_path / "in" / "client", fuzz_inputs.vllm_bench())
    (run_id,) = import_any(tmp_path / "in", tmp_path / "store")
    events = laid(tmp_path / "deep" / "kv", fuzz_inputs.inputs()["kv-events"])
    run = open_bundle(tmp_path / "store" / run_id)
    ids = [
        attach(run, [path], tmp_path / "store", Options(), clock="0")
        for path in (events, tmp_path / "deep", *events.iterdir())
    ]
    assert len(set(ids)) == 1


def test_a_refusal_says_in_which_folder_and_names_are_as_before(tmp_path: Path) -> None:
    files = fuzz_inputs.vllm_bench()
    laid(tmp_path / "in" / "good", files)
    laid(tmp_path / "in" / "bad", {"result.json": files["result.json"][:-40]})
    with intake_for(tmp_path / "in", tmp_path / "store") as intake:
        first, second = plan_import(intake).parts
        with pytest.raises(GapscopeError, match=r"^In bad: result\.json is "):
            first.run(tmp_path / "store", Options())
        assert second.run(tmp_path / "store", Options()).startswith("result-")
        names = [use.file.name for part in (first, second) for use in part.uses]
        assert names == ["bad/result.json", "good/result.json"]
