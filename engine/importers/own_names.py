"""Files of a run by the names that they have in its own folder: where that folder lies is no part of the run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from posixpath import commonpath

from engine.errors import GapscopeError
from engine.importers.contract import Canceled, Options, Part
from engine.intake import InputFile


def with_own_names(part: Part) -> Part:
    """The part, run with such names: the same files give the same run, alone, in a folder and in an archive."""

    def run(store: Path, options: Options) -> str:
        files = {use.file for use in part.uses}
        with _renamed(files) as folder:
            try:
                return part.run(store, options)
            except Canceled:
                raise
            except GapscopeError as error:
                raise GapscopeError(f"In {folder}: {error}") if folder else error from error.__cause__

    return replace(part, run=run)


def own_name(file: InputFile, files: Iterable[InputFile]) -> str:
    """The name of one of ``files`` in the folder that holds all of them."""
    folder = _folder(files)
    return file.name.removeprefix(f"{folder}/") if folder else file.name


def _folder(files: Iterable[InputFile]) -> str:
    return commonpath(folders) if (folders := [file.folder for file in files]) else ""


@contextmanager
def _renamed(files: Iterable[InputFile]) -> Iterator[str]:
    given = {file: file.name for file in files}
    folder = _folder(given)
    own = {file: own_name(file, given) for file in given}
    try:
        for file, name in own.items():
            file.name = name
        yield folder
    finally:
        for file, name in given.items():
            file.name = name
