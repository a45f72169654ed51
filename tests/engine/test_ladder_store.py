"""A ladder in a store that cannot be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.bundle import find_bundle
from engine.errors import UnwritableStore
from engine.ladder import build_ladder

SAMPLES = Path(__file__).parents[2] / "sample_runs"


@pytest.fixture
def no_folder(tmp_path: Path) -> Path:
    """A file where the store would be, which nobody can write a run into, root included."""
    path = tmp_path / "store"
    path.write_text("a file")
    return path


def test_a_store_that_cannot_be_written_ends_the_ladder_at_the_first_rung(no_folder: Path) -> None:
    measured, base = (find_bundle([SAMPLES], name) for name in ("tight8", "tight8-predicted"))
    said: list[str] = []
    with pytest.raises(UnwritableStore, match="Cannot write a run into"):
        build_ladder(measured, base, stores=[SAMPLES], store=no_folder, progress=lambda _, words: said.append(words))
    assert {words.split(",")[0] for words in said} == {"rung 1"}
