"""A server that was killed closes no rows: whether one still writes is seen after one request."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engine.errors import GapscopeError
from engine.recording import join


def test_rows_that_grow_are_of_a_server_that_runs(tmp_path: Path) -> None:
    part = tmp_path / "passes-dp0-1-0000.jsonl"
    part.write_text("{}\n")
    before = join.written_bytes(tmp_path)
    part.write_text("{}\n{}\n")
    assert (before, join.written_bytes(tmp_path)) == (3, 6)
    asyncio.run(join.wait_until_written(tmp_path, before))


def test_rows_that_nobody_writes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "WRITTEN_WITHIN_S", 0.1)
    (tmp_path / "passes-dp0-1-0000.jsonl").write_text("{}\n")
    with pytest.raises(GapscopeError, match="nothing was written"):
        asyncio.run(join.wait_until_written(tmp_path, join.written_bytes(tmp_path)))
