"""What is worked out of a large run once, kept in files beside the runs: the next server finds it again.

A file is named by the run, which names its content, and by the digest of the SQL that made it, so it never goes stale.
It is written whole or not at all, and made again where it cannot be read. Where the store is read-only nothing is kept.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

FOLDER = ".derived"
ROOTS = "roots-"
"""How the names of files begin that hold the roots of a store that keeps files here."""
LARGE_ROWS = 200_000
"""A run with more rows in a table is large: what is made of it takes longer than a reader waits."""
ROW_GROUP = 122_880


def is_large(rows: Iterable[int | None]) -> bool:
    """Whether a run with tables of so many rows is worth keeping files of."""
    return max((count or 0 for count in rows), default=0) > LARGE_ROWS


class Derived:
    """The files of derived tables in the last of the roots of a store."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.folder = roots[-1] / FOLDER
        self._roots = [str(root) for root in roots]

    def path(self, run_id: str, name: str, text: str) -> Path:
        """Where the table that ``text`` makes of a run is kept."""
        return self.folder / f"{run_id}.{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.parquet"

    def found(self, run_id: str, name: str, text: str) -> Path | None:
        """The file, where it is there and can be read."""
        path = self.path(run_id, name, text)
        try:
            pq.read_metadata(path)
        except (OSError, pa.ArrowException):
            return None
        return path

    def keep(self, run_id: str, name: str, text: str, rows: pa.RecordBatchReader) -> Path | None:
        """Write the table; None where the store cannot be written (``rows`` are not read then)."""
        path = self.path(run_id, name, text)
        part = path.with_suffix(f".{os.getpid()}.part")
        try:
            self.folder.mkdir(exist_ok=True)
            self._note_roots()
            part.touch()
        except OSError:
            return None
        try:
            with pq.ParquetWriter(part, rows.schema, compression="lz4") as writer:
                for batch in rows:
                    writer.write_batch(batch, row_group_size=ROW_GROUP)
            for older in self.folder.glob(f"{run_id}.{name}-*.parquet"):
                with suppress(OSError):
                    older.unlink()
            os.replace(part, path)
        except OSError:
            return None
        finally:
            part.unlink(missing_ok=True)
        return path

    def _note_roots(self) -> None:
        """Write down where the runs lie of which files are kept here."""
        text = json.dumps(self._roots)
        path = self.folder / f"{ROOTS}{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"
        if not path.exists():
            part = path.with_suffix(f".{os.getpid()}.part")
            part.write_text(text, encoding="utf-8")
            os.replace(part, path)


def noted_roots(folder: Path) -> list[Path]:
    """The roots of all stores that keep files in this folder."""
    found: list[Path] = []
    for path in folder.glob(f"{ROOTS}*.json"):
        with suppress(OSError, ValueError):
            found += map(Path, json.loads(path.read_text(encoding="utf-8")))
    return list(dict.fromkeys(found))


def held(folder: Path) -> tuple[int, int]:
    """How many files a folder of derived files holds, answers included, and their bytes together."""
    sizes = []
    for path in folder.rglob("*"):
        with suppress(OSError):
            if path.is_file():
                sizes.append(path.stat().st_size)
    return len(sizes), sum(sizes)
