"""Reads run bundles and says whether they are still what was sealed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from engine.bundle.columns import spec_of
from engine.bundle.digest import table_digest
from engine.bundle.manifest import (
    FILE_NAME,
    RUN_ID,
    Check,
    Phase,
    content_of,
    parse,
    seal_of,
    serialise,
)
from engine.bundle.schema import TABLES
from engine.errors import GapscopeError
from engine.identity import Identity


class Bundle:
    """A sealed run on disk. Nothing is read but ``run.json`` until a table is asked for."""

    def __init__(self, path: Path, manifest: dict[str, Any], intact_manifest: bool) -> None:
        self.path = path
        self.manifest = manifest
        self.run_id: str = manifest["run_id"]
        self.kind: str = manifest["kind"]
        self.title: str = manifest["title"]
        self.phases = [Phase(p["name"], p["start_ns"], p["end_ns"]) for p in manifest["phases"]]
        self.ledger: dict[str, Any] | None = manifest["ledger"]
        self.lineage: dict[str, Any] = manifest["lineage"]
        self.qualification = [Check(c["check"], c["verdict"], c["detail"]) for c in manifest["qualification"]]
        self.identity = Identity.from_json(manifest["identity"])
        self._intact_manifest = intact_manifest

    def __repr__(self) -> str:
        return f"Bundle({self.run_id})"

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables that were recorded, in the schema's order."""
        return tuple(name for name in TABLES if f"{name}.parquet" in self.manifest["files"])

    def rows(self, name: str) -> int | None:
        """Number of rows of a table, None where it was not recorded."""
        entry = self.manifest["files"].get(f"{name}.parquet")
        return None if entry is None else int(entry["rows"])

    def phase(self, name: str) -> Phase | None:
        """The phase of that name, None where the run has none."""
        return next((p for p in self.phases if p.name == name), None)

    def file(self, name: str) -> Path | None:
        """The Parquet file of a table, None where it was not recorded."""
        return self.path / f"{name}.parquet" if self.rows(name) is not None else None

    def table(self, name: str, columns: Sequence[str] | None = None) -> pa.Table | None:
        """A table, or the named columns of it; None where it was not recorded.

        Columns of the schema that the file lacks come back as NULL.

        Raises:
            GapscopeError: no such table or column in the schema, or the file cannot be read.
        """
        schema = spec_of(name).schema
        wanted = list(schema.names if columns is None else columns)
        for column in wanted:
            if column not in schema.names:
                near = get_close_matches(column, schema.names, n=1)
                raise GapscopeError(f"Table {name} has no column {column!r}" + (f": {near[0]}?" if near else "."))
        path = self.file(name)
        if path is None:
            return None
        try:
            with pq.ParquetFile(path) as file:
                held = set(file.schema_arrow.names)
                table = file.read([c for c in wanted if c in held])
                rows = file.metadata.num_rows
        except (OSError, pa.ArrowException) as problem:
            reason = str(problem).splitlines()[0]
            raise GapscopeError(f"Run {self.run_id}: {path.name} cannot be read ({reason}). Restore it.") from None
        for field in table.schema:
            if field.type != schema.field(field.name).type:
                raise GapscopeError(
                    f"Run {self.run_id}: {path.name}, column {field.name} is {field.type}, "
                    f"expected {schema.field(field.name).type}. Restore it."
                )
        arrays = [table.column(c) if c in held else pa.nulls(rows, schema.field(c).type) for c in wanted]
        return pa.Table.from_arrays(arrays, wanted)

    def verify(self, content: bool = False) -> list[str]:
        """Names of the files that are missing or not what was sealed; empty when all is well.

        With ``content``, the logical values are digested too: the run id rests on them alone.
        """
        altered = [] if self._intact_manifest else [FILE_NAME]
        for name, entry in self.manifest["files"].items():
            if not _holds(self.path / name, entry) or (content and not self._content_holds(name, entry)):
                altered.append(name)
        return altered

    def require_intact(self) -> None:
        """Raise a GapscopeError naming run and files if anything was altered."""
        altered = self.verify()
        if altered:
            raise GapscopeError(
                f"Run {self.run_id}: {', '.join(altered)} is missing or was altered since the run was sealed. "
                "Restore the run from its source."
            )

    def _content_holds(self, file_name: str, entry: dict[str, Any]) -> bool:
        name = file_name.removesuffix(".parquet")
        if name not in TABLES:
            return True
        try:
            table = self.table(name)
        except GapscopeError:
            return False
        return table is not None and table_digest(table.cast(TABLES[name].schema)) == entry["content"]


def _holds(path: Path, entry: dict[str, Any]) -> bool:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == entry["sha256"]
    except OSError:
        return False


def open_bundle(path: Path | str) -> Bundle:
    """The run in a folder.

    An altered ``run.json`` that is still well formed opens, and :meth:`Bundle.verify` names it.

    Raises:
        GapscopeError: no run there, ``run.json`` malformed, or written by a newer gapscope.
    """
    path = Path(path)
    try:
        data = (path / FILE_NAME).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise GapscopeError(f"No run at {path}: {FILE_NAME} is missing.") from None
    except OSError as problem:
        raise GapscopeError(f"Run {path.name}: {FILE_NAME} cannot be read ({problem.strerror}).") from None
    manifest = parse(data, path.name)
    return Bundle(path, manifest, _manifest_intact(manifest, data, path.name))


def _manifest_intact(manifest: dict[str, Any], data: bytes, folder: str) -> bool:
    name = RUN_ID.fullmatch(manifest["run_id"])
    if name is None or folder != manifest["run_id"]:
        return False
    try:
        return (
            name["content"] == content_of(manifest)
            and manifest["seal"] == seal_of(manifest)
            and data == serialise(manifest)
        )
    except ValueError:  # an infinite number or half a surrogate pair: no writer makes these
        return False


def list_bundles(store: Path) -> list[Path]:
    """Folders of a store that are runs, sound or not, by name. Hidden folders are no runs yet."""
    try:
        names = sorted(Path(store).iterdir())
    except FileNotFoundError:
        return []
    except OSError as problem:
        raise GapscopeError(f"Store {store} cannot be read: {problem.strerror}.") from None
    return [
        path
        for path in names
        if not path.name.startswith(".")
        and path.is_dir()
        and (RUN_ID.fullmatch(path.name) or (path / FILE_NAME).exists())
    ]


def measured_runs(stores: Iterable[Path]) -> list[str]:
    """Ids of the measured runs that the stores hold; a folder that cannot be read counts, as it may be one."""
    held = set()
    for path in (path for store in stores for path in list_bundles(store)):
        try:
            bundle = open_bundle(path)
            held |= {bundle.run_id} if bundle.kind == "measured" else set()
        except GapscopeError:
            held.add(path.name)
    return sorted(held)


def find_bundle(stores: Sequence[Path], ref: str) -> Bundle:
    """The run that ``ref`` means: its id, its name where only one run has it, or the beginning of one id.

    Raises:
        GapscopeError: none or several; near ones are named.
    """
    paths: dict[str, Path] = {}
    for store in stores:
        for path in list_bundles(store):
            paths.setdefault(path.name, path)
    if ref in paths:
        return open_bundle(paths[ref])
    named = [name for name in paths if name.rpartition("-")[0] == ref]
    found = named or [name for name in paths if ref and name.startswith(ref)]
    if len(found) == 1:
        return open_bundle(paths[found[0]])
    if found:
        raise GapscopeError(f"Run {ref!r} could be any of {', '.join(found)}. Give more of the id.")
    names = {name.rpartition("-")[0]: name for name in reversed(paths)} | {name: name for name in paths}
    near = list(dict.fromkeys(names[n] for n in get_close_matches(ref, names, n=3))) or list(paths)[:3]
    where = ", ".join(str(store) for store in stores) or "any store"
    hint = f" Near it: {', '.join(near)}." if near else " There are no runs there."
    raise GapscopeError(f"No run {ref!r} in {where}.{hint}")
