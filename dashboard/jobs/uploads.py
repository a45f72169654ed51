"""Uploaded files on their way to a job."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from engine.errors import GapscopeError

Uploads = Sequence[tuple[str, bytes | memoryview]]
"""Names and contents of files; several belong together, as the files of one folder."""
MAX_FILES = 200
LONGEST_NAME = 120
"""Bytes: a file system takes 255, and what is unpacked or copied adds to a name."""
_UNPRINTED = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def plain_name(name: str) -> str:
    """What an uploaded file is called here: one part of a path, without what cannot be seen, and not too long."""
    base = _UNPRINTED.sub("", name).replace("\\", "/").rpartition("/")[2].strip(". ") or "file"
    stem, dot, suffix = base.rpartition(".")
    if len(base.encode()) > LONGEST_NAME and dot and len(suffix.encode()) <= 16:
        return stem.encode()[: LONGEST_NAME - 17].decode(errors="ignore") + dot + suffix
    return base.encode()[:LONGEST_NAME].decode(errors="ignore")


def place(uploads: Uploads, folder: Path) -> Path:
    """Write uploaded files into ``folder``; returns the only one, or the folder of several.

    Raises:
        GapscopeError: there are too many.
    """
    if len(uploads) > MAX_FILES:
        raise GapscopeError(
            f"{len(uploads)} files were uploaded, {MAX_FILES} at most: pack them into one archive, or use "
            "`gapscope import` on the machine."
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in uploads:
        base = plain_name(name)
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
