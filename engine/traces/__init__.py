"""Workloads: one module per trace format, one model (:mod:`engine.traces.tree`) for all of them."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from engine.errors import GapscopeError
from engine.traces import mooncake
from engine.traces.check import check_trace
from engine.traces.tree import Trace

TRACE_FOLDER = "traces"
DIGEST_CHARS = 12
"""How much of a trace's digest its file name in a store carries."""


def load_trace(path: Path) -> Trace:
    """Read a workload; the format is told by the content of the file, never by its name.

    Raises:
        GapscopeError: absent, of no known format, malformed (with the line), or not a forest of conversations.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise GapscopeError(f"Trace {path} cannot be read ({error.strerror}).") from None
    first = data[: 1 << 20].lstrip().partition(b"\n")[0]
    if mooncake.looks_like(data.partition(b"\n")[0]):
        trace = mooncake.read(path, data)
    elif data[:4] == b"PAR1" or first[:1] == b"{":
        from engine.traces import agentic  # here, since Mooncake needs no Parquet reader

        trace = agentic.load(path)
    else:
        raise GapscopeError(
            f"{path} is of no known trace format; expected Mooncake JSONL, the session-tree JSONL of the recordings "
            "or its compact Parquet form."
        )
    check_trace(trace, str(path))
    return trace


def find_trace(stores: Sequence[Path], digest: str) -> Path:
    """The file of the trace with this SHA-256 in ``<store>/traces/``, told by its name ``<name>-<digest12>.*``.

    Raises:
        GapscopeError: no store has it.
    """
    for store in stores:
        for path in sorted((Path(store) / TRACE_FOLDER).glob(f"*-{digest[:DIGEST_CHARS]}.*")):
            return path
    where = ", ".join(str(Path(s) / TRACE_FOLDER) for s in stores) or "no store"
    raise GapscopeError(
        f"The trace with digest {digest[:DIGEST_CHARS]} is in none of {where}: name its file with --trace FILE."
    )


def stored_trace(stores: Sequence[Path], digest: str) -> Trace:
    """The trace with this SHA-256, read from the store that has it.

    Raises:
        GapscopeError: no store has it, or the file is not what its name says.
    """
    path = find_trace(stores, digest)
    trace = load_trace(path)
    if trace.digest != digest:
        raise GapscopeError(
            f"The trace {path} was altered: its digest is {trace.digest[:DIGEST_CHARS]}, expected "
            f"{digest[:DIGEST_CHARS]}; put the file back or name another with --trace FILE."
        )
    trace.name = trace.name.removesuffix(f"-{digest[:DIGEST_CHARS]}")  # the store's addition to the file name
    return trace


def keep_trace(path: Path, trace: Trace, stores: Sequence[Path]) -> None:
    """Put the file of a trace into the last store, unless one of them has it, so that its replays can be varied.

    Raises:
        GapscopeError: the store cannot be written.
    """
    try:
        find_trace(stores, trace.digest)
        return
    except GapscopeError:
        pass
    folder = Path(stores[-1]) / TRACE_FOLDER
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", trace.name)[:64]
    final = folder / f"{name}-{trace.digest[:DIGEST_CHARS]}{Path(path).suffix or '.trace'}"
    partial = folder / f".{final.name}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, partial)
        partial.replace(final)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise GapscopeError(f"The trace cannot be kept in {folder}: {error.strerror or error}.") from None
