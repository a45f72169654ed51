"""Whether the server that is asked records into a folder: a killed one closes no rows, and another may be there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from engine.errors import GapscopeError
from engine.recording import alive


def answered(then: Callable[[], object]) -> Callable[[], Awaitable[str]]:
    async def ask() -> str:
        then()
        return "try-out-17x"

    return ask


@pytest.mark.parametrize("name", ["passes-dp0-1-0000.jsonl", "passes-dp0-1-0001.jsonl"])
def test_rows_that_name_the_request_are_of_the_server_that_was_asked(tmp_path: Path, name: str) -> None:
    (tmp_path / "passes-dp0-1-0000.jsonl").write_text("{}\n")
    row = '{"arrivals": [["cmpl-try-out-17x-0-89abcdef", 5]]}\n'
    before = (tmp_path / name).read_text() if (tmp_path / name).exists() else ""
    asyncio.run(alive.check_written(tmp_path, answered(lambda: (tmp_path / name).write_text(before + row))))


@pytest.mark.parametrize(("added", "words"), [("", "nothing was written to"), ('["another", 5]\n', "does not name it")])
def test_rows_of_nobody_or_of_another_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, added: str, words: str
) -> None:
    monkeypatch.setattr(alive, "WRITTEN_WITHIN_S", 0.1)
    part = tmp_path / "passes-dp0-1-0000.jsonl"
    part.write_text('["try-out-17x"]\n')  # from before
    with pytest.raises(GapscopeError, match=words):
        asyncio.run(alive.check_written(tmp_path, answered(lambda: part.write_text(part.read_text() + added))))
