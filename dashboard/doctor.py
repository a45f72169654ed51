"""What ``gapscope doctor`` looks at: versions, stores, the runs' digests, the traces, and the browser of the tests."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from dashboard.catalogue import Catalogue
from dashboard.kept.answers import MOST_BYTES
from dashboard.kept.derived import FOLDER as WORKED_OUT
from dashboard.kept.derived import held
from dashboard.serving import oidc
from dashboard.serving.password import kept_hash
from engine.errors import GapscopeError
from engine.traces import DIGEST_CHARS, TRACE_FOLDER, load_trace
from engine.traces.cache import FOLDER, size_of

PACKAGES = ("streamlit", "plotly", "duckdb", "pandas", "numpy", "pyarrow", "orjson")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. ``ok`` is None for a note that stops nothing."""

    what: str
    ok: bool | None
    detail: str


def examine(roots: list[Path]) -> Iterator[Finding]:
    """Every finding, in the order a person would want them."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    yield Finding("Python", sys.version_info >= (3, 11), version)
    for package in PACKAGES:
        try:
            yield Finding(package, True, metadata.version(package))
        except metadata.PackageNotFoundError:
            yield Finding(package, False, "not installed: run make run, or pip install gapscope again")
    for index, root in enumerate(roots):
        yield _root(root, index == len(roots) - 1)
    yield _serving()
    yield from _worked_out(roots[-1:])
    yield from _runs(roots)
    yield from _traces(roots)
    browser = shutil.which("chromium")
    yield Finding("chromium", None if browser is None else True, browser or "not found: only the browser tests need it")


def _serving() -> Finding:
    """What a login is set up for `gapscope serve`, which listens on this machine only unless told otherwise."""
    what = "serve"
    try:
        ways = [word for word, found in (("a password", kept_hash()), ("OIDC", oidc.settings())) if found]
    except GapscopeError as error:
        return Finding(what, False, str(error))
    if not ways:
        return Finding(what, True, "127.0.0.1, this machine only; no login is set up, so --host beyond it is refused")
    return Finding(what, True, f"127.0.0.1 unless --host says otherwise; login by {' or '.join(ways)} is set up")


def _root(root: Path, written: bool) -> Finding:
    what = f"store {root}"
    place = root
    while not place.exists():
        place = place.parent
    if not root.exists():
        if not written:
            return Finding(what, None, "does not exist: it counts as empty")
        ok = os.access(place, os.W_OK)
        return Finding(what, ok, "created on first write" if ok else f"cannot be created: {place} is not writable")
    if not root.is_dir():
        return Finding(what, False, "is not a folder: give --store a folder")
    if not os.access(root, os.R_OK | os.X_OK):
        return Finding(what, False, "cannot be read: check its permissions")
    if not written:
        return Finding(what, True, "readable")
    ok = os.access(root, os.W_OK)
    return Finding(what, ok, "writable" if ok else "not writable: give a last --store FOLDER of your own")


def _runs(roots: list[Path]) -> Iterator[Finding]:
    catalogue = Catalogue([root for root in roots if root.is_dir()])
    sound = 0
    for entry in catalogue.entries(verify=True):
        sound += entry.verified
        if entry.problem:
            yield Finding(f"run {entry.run_id}", False, entry.problem)
    yield Finding("runs", True if sound else None, f"{sound} verified by digest")


def _worked_out(roots: list[Path]) -> Iterator[Finding]:
    """What is kept of large runs, in bytes."""
    for folder in (root / WORKED_OUT for root in roots):
        files, size = held(folder)
        if files:
            most = f"answers take at most {MOST_BYTES / 1e6:,.0f} MB of it"
            words = f"{files} files, {size / 1e6:,.1f} MB in {folder}, which can be deleted at any time; {most}"
            yield Finding("worked out", True, words)


def _traces(roots: list[Path]) -> Iterator[Finding]:
    sound = 0
    for path in (path for root in roots for path in sorted((root / TRACE_FOLDER).glob("[!.]*"))):
        problem = _trace_problem(path)
        sound += problem is None
        if problem:
            yield Finding(f"trace {path}", False, problem)
    yield Finding("traces", True if sound else None, f"{sound} read whole")
    for root in roots:
        files, size = size_of(root)
        if files:
            detail = f"{files}, {size / 1e6:,.1f} MB in {root / FOLDER}, which can be deleted at any time"
            yield Finding("compiled traces", None, detail)


def _trace_problem(path: Path) -> str | None:
    """Why a replay could not use a trace of a store; None where it could."""
    try:
        digest = load_trace(path).digest[:DIGEST_CHARS]
    except GapscopeError as error:
        return str(error)
    if path.stem.endswith(f"-{digest}"):
        return None
    return f"its digest is {digest} and its name says otherwise: restore it, or name it NAME-{digest}{path.suffix}"
