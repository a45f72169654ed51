"""Bounds of what others may hand over or ask for: names and numbers of files, memory of a worker, places on disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dashboard.frame import escape
from dashboard.jobs.uploads import LONGEST_NAME, MAX_FILES, place, plain_name
from dashboard.serving import binding
from dashboard.serving.places import hidden
from engine.errors import GapscopeError
from engine.stores import PROJECT


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("passes.jsonl", "passes.jsonl"),
        ("../../etc/passwd", "passwd"),
        ("..\\..\\boot.ini", "boot.ini"),
        ("/", "file"),
        ("...", "file"),
        (".hidden.", "hidden"),
        ("a\x00b\n.csv", "ab.csv"),
        ("\u202efdp.exe", "fdp.exe"),
        ("übung.json.gz", "übung.json.gz"),
        ("x" * 300 + ".jsonl", "x" * (LONGEST_NAME - 17) + ".jsonl"),
        ("ü" * 300, "ü" * (LONGEST_NAME // 2)),
    ],
)
def test_names_of_uploads(name: str, kept: str) -> None:
    assert plain_name(name) == kept
    assert len(kept.encode()) <= LONGEST_NAME


def test_uploads_stay_in_their_folder_and_are_not_too_many(tmp_path: Path) -> None:
    place([("../a", b"1"), ("/b/a", b"2"), ("a", b"3")], tmp_path / "in")
    assert sorted(one.name for one in (tmp_path / "in").iterdir()) == ["2-a", "3-a", "a"]
    assert [one.name for one in tmp_path.iterdir()] == ["in"]
    with pytest.raises(GapscopeError, match="200 at most"):
        place([("a", b"")] * (MAX_FILES + 1), tmp_path / "many")
    assert not (tmp_path / "many").exists()


def test_a_worker_meets_its_bound_as_a_memory_error() -> None:
    code = (
        "from dashboard.jobs.bounds import bound_memory; import os;"
        "whole = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES');"
        "most = bound_memory(5e8 / whole);\n"
        "try:\n    bytearray(600_000_000)\nexcept MemoryError:\n    print(round(most, 3))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0.5"


def test_places_are_told_to_this_machine_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GAPSCOPE_STORE", str(tmp_path / "runs"))
    said = f"Run {tmp_path}/runs/x-0123 is broken; the model is /models/toy."
    monkeypatch.delenv(binding.VARIABLE, raising=False)
    assert hidden(said) == said
    for names, shown in ((), said), (("gap.example",), "Run runs/x-0123 is broken; the model is /models/toy."):
        found = binding.bind("127.0.0.1", 8501, names, "password")
        monkeypatch.setenv(binding.VARIABLE, binding.to_environment(found))
        assert hidden(said) == shown
    assert str(tmp_path) not in escape(said).replace("\\", "")
