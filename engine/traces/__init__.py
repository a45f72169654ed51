"""Workloads: one module per trace format, one model (:mod:`engine.traces.tree`) for all of them."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from engine.errors import GapscopeError
from engine.traces import (
    agentic,
    agentic_mooncake,
    aiperf_inputs,
    applied_compute,
    arrivals,
    bailian,
    compact,
    dynamo,
    mooncake,
    mooncake_linked,
    weka,
)
from engine.traces.cache import TraceCache
from engine.traces.check import check_trace
from engine.traces.files import Head, digest_of, head_of, name_of, read_given, unpacked
from engine.traces.prompt_ids import share_beginnings
from engine.traces.tree import Trace

TRACE_FOLDER = "traces"
DIGEST_CHARS = 12
"""How much of a trace's digest its file name in a store carries."""
CHOICES = {"nested_timestamps": ("auto", "absolute", "relative")}
"""What can be decided on reading a trace, the usual first: what times in subagents of Weka sessions count from."""


class TraceFormat(Protocol):
    """What a module of this package has that reads one format."""

    NAME: str
    """What the format is called where the known ones are listed."""

    def looks_like(self, head: Head, /) -> bool:
        """Whether a trace that begins like this is of the format."""

    def read(self, path: Path, data: bytes, /) -> Trace:
        """The trace in ``data``, which is unpacked; ``path`` is for its name and for messages.

        A format that does not say otherwise leaves ``digest`` empty: the trace is then what the file holds.

        Raises:
            GapscopeError: malformed, with the place (:func:`engine.traces.files.place`).
        """


FORMATS: list[TraceFormat] = [
    agentic_mooncake,
    bailian,
    aiperf_inputs,
    mooncake_linked,
    mooncake,
    dynamo,
    agentic,
    compact,
    weka,
    applied_compute,
    arrivals,
]
"""In the order in which they are asked; the first that a trace looks like reads it."""


def load_trace(path: Path, read_as: Mapping[str, str] | None = None, cache: TraceCache | None = None) -> Trace:
    """Read a workload, a file or a folder; its format is told by its content, never by its name.

    ``read_as`` decides what a format leaves open (:data:`CHOICES`), and the trace says so. A ``cache`` spares parsing
    what was read before, and gets what was not.

    Raises:
        GapscopeError: absent, of no known format, malformed (with the line), not a forest of conversations, or nothing
            that can be read in the ways asked for.
    """
    path, read_as = Path(path), _decided(read_as or {})
    found = cache.find(digest_of(path), read_as, name_of(path)) if cache else None
    if found is not None:
        return found
    given = read_given(path)
    digest = hashlib.sha256(given).hexdigest()
    trace = _parsed(path, given, digest, read_as)
    if cache and trace.digest == digest:  # else it is compact already
        cache.keep(trace, name_of(path))
    return trace


def _decided(read_as: Mapping[str, str]) -> dict[str, str]:
    """What differs from what a format does by itself.

    Raises:
        GapscopeError: no such choice.
    """
    for name, value in read_as.items():
        if value not in CHOICES.get(name, ()):
            raise GapscopeError(
                f"Trace option {name}={value}: expected one of {', '.join(CHOICES.get(name, ('none',)))}."
            )
    return {name: value for name, value in read_as.items() if value != CHOICES[name][0]}


def _parsed(path: Path, given: bytes, digest: str, read_as: dict[str, str]) -> Trace:
    data = unpacked(path, given)
    if not data.strip():
        raise GapscopeError(f"{path} is empty: expected a trace.")
    head = head_of(data)
    of = next((known for known in FORMATS if known.looks_like(head)), None)
    if of is None:
        known = ", ".join(known.NAME for known in FORMATS)
        broken = "; line 1 is no JSON object (cut off?)" if head.line[:1] == b"{" and not head.row else ""
        raise GapscopeError(f"{path} is of no known trace format{broken}; expected one of: {known}.")
    if read_as and of is not weka:
        raise GapscopeError(
            f"{path}: {', '.join(read_as)} says how {weka.NAME} are read, and this is {of.NAME}: leave it out."
        )
    trace = of.read(path, data, **read_as)
    trace.digest, trace.read_as = trace.digest or digest, read_as or trace.read_as
    check_trace(trace, str(path))
    share_beginnings(trace)
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


def stored_trace(
    stores: Sequence[Path], digest: str, read_as: Mapping[str, str] | None = None, cache: TraceCache | None = None
) -> Trace:
    """The trace with this SHA-256, read from the store that has it as :func:`load_trace` reads it.

    Raises:
        GapscopeError: no store has it, or the file is not what its name says.
    """
    path = find_trace(stores, digest)
    trace = load_trace(path, read_as, cache)
    if trace.digest != digest:
        raise GapscopeError(
            f"The trace {path} was altered: its digest is {trace.digest[:DIGEST_CHARS]}, expected "
            f"{digest[:DIGEST_CHARS]}; put the file back or name another with --trace FILE."
        )
    trace.name = trace.name.removesuffix(f"-{digest[:DIGEST_CHARS]}")  # the store's addition to the file name
    return trace


def keep_trace(path: Path, trace: Trace, stores: Sequence[Path]) -> None:
    """Put the file of a trace into the last store, unless one of them has it, so that its replays can be varied.

    A folder is kept as one file, which reads back as the same trace.

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
    path = Path(path)
    suffix = ".jsonl" if path.is_dir() else path.suffix or ".trace"
    final = folder / f"{name}-{trace.digest[:DIGEST_CHARS]}{suffix}"
    partial = folder / f".{final.name}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            partial.write_bytes(read_given(path))
        else:
            shutil.copyfile(path, partial)
        partial.replace(final)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise GapscopeError(f"The trace cannot be kept in {folder}: {error.strerror or error}.") from None
