"""Uploaded files on their way to a job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from engine.errors import GapscopeError

Uploads = Sequence[tuple[str, bytes | memoryview]]
"""Names and contents of files; several belong together, as the files of one folder."""


def place(uploads: Uploads, folder: Path) -> Path:
    """Write uploaded files into ``folder``; returns the only one, or the folder of several."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in uploads:
        base = Path(name.replace("\\", "/")).name.strip(". ") or "file"
        target, again = folder / base, 1
        while target.exists():
            again += 1
            target = folder / f"{again}-{base}"
        target.write_bytes(content)
    return uploaded(folder)


def uploaded(folder: Path) -> Path:
    """The only file of the folder of uploads, or the folder of several.

    Raises:
        GapscopeError: there is none.
    """
    files = list(folder.iterdir()) if folder.is_dir() else []
    if not files:
        raise GapscopeError("The uploaded files are gone: upload them again.")
    return files[0] if len(files) == 1 else folder
