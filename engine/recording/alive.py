"""Whether the server that is asked records into a folder: looked at before a load."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from engine.errors import GapscopeError
from engine.recording.joining import require_batches
from engine.recording.rows import Series, newest_series

WRITTEN_WITHIN_S = 5.0
"""How long after a request its pass must have been written down; the recorder writes ten times a second."""
LOOK_EVERY_S = 0.05


def check_rows(rows: Path) -> list[Series]:
    """The newest series of each rank, without its passes, if a server may be writing there what a load can use.

    Raises:
        GapscopeError: there is none, it was closed, or its recorder cannot tell batches.
    """
    found = newest_series(rows)
    for one in found:
        require_batches(one)
        if one.ended:
            raise GapscopeError(
                f"The newest rows in {rows} were closed by their server: expected the folder of one that is running."
            )
    return found


async def check_written(rows: Path, ask: Callable[[], Awaitable[str]]) -> None:
    """Make sure that a request is written down there: a server that was killed closes no rows, and another server may
    record into the same folder.

    Args:
        rows: the folder of the server's rows.
        ask: sends a request and returns its id.

    Raises:
        GapscopeError: no row names it for :data:`WRITTEN_WITHIN_S`.
    """
    before = {path: path.stat().st_size for path in _parts(rows)}
    name = (await ask()).encode()
    added = b""
    for _ in range(round(WRITTEN_WITHIN_S / LOOK_EVERY_S)):
        added = b"".join(_read(path, before.get(path, 0)) for path in _parts(rows))
        if name in added:
            return
        await asyncio.sleep(LOOK_EVERY_S)
    what = f"what was written to {rows} does not name it" if added else f"nothing was written to {rows}"
    raise GapscopeError(
        f"The server answered a request, but {what}: expected the folder (GAPSCOPE_RECORD) that this very server "
        "records into. Nothing of the load was sent."
    )


def _parts(rows: Path) -> list[Path]:
    return sorted(rows.glob("passes-*.jsonl"))


def _read(path: Path, start: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read()
    except FileNotFoundError:  # it made room for another
        return b""
