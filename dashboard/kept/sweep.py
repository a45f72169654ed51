"""Files that are kept of runs which are no longer there are taken away; those of any other run are never touched.

A folder of derived files may serve several sets of stores, whose last root is the same. Each writes its roots down
beside what it keeps, and a run is there while any of them holds it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from dashboard.catalogue import Catalogue
from dashboard.kept.derived import FOLDER, noted_roots
from engine.errors import GapscopeError

PART_S = 86_400.0
"""What is written is complete sooner than this: an older part is what a process left that ended."""
_NAME = re.compile(
    r"(?P<run>.+-[0-9a-f]{12})\.(?P<table>[a-z_]+(?:_(?P<other>[0-9a-f]{12})_[a-z]+)?)-[0-9a-f]{12}\.parquet"
)


def sweep(catalogue: Catalogue) -> list[Path]:
    """Take away files of runs that were deleted or altered, and parts of files that nobody writes; what was removed.

    Nothing is removed where a root cannot be read, as nobody knows then what is there.
    """
    if not catalogue.roots:
        return []
    folder = catalogue.roots[-1] / FOLDER
    files = _listed(
        folder
    )  # before the runs: a file is made of a run that is there, so one of a newer run is not listed
    if not files:
        return []
    try:
        entries = catalogue.entries()
        others = [root for root in noted_roots(folder) if root not in catalogue.roots]
        entries += Catalogue(others).entries() if others else []
    except GapscopeError:
        return []
    there = {entry.run_id for entry in entries if entry.state == "ok"}
    gone = [path for path in files if _is_gone(path, there)]
    return [path for path in gone if _removed(path)]


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_file())
    except OSError:
        return []


def _is_gone(path: Path, there: Iterable[str]) -> bool:
    """Whether a file is of a run, or of a pair of runs, that is not there; a file that nobody here writes stays."""
    if path.suffix == ".part":
        with suppress(OSError):
            return time.time() - path.stat().st_mtime > PART_S
        return False
    named = _NAME.fullmatch(path.name)
    if named is None:
        return False
    digests = {run_id.rpartition("-")[2] for run_id in there}
    return named["run"] not in there or (named["other"] is not None and named["other"] not in digests)


def _removed(path: Path) -> bool:
    with suppress(OSError):  # another server was faster, or the store cannot be written
        path.unlink()
        return True
    return False
