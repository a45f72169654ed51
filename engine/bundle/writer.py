"""Writes a run bundle: into a hidden folder first, sealed by one rename. A crash leaves the whole bundle or nothing."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from engine.bundle import columns, staging
from engine.bundle.digest import TableDigest
from engine.bundle.files import HashingFile, parquet_writer, write_durably
from engine.bundle.ledger import Outcomes, ledger_from, ledger_problems
from engine.bundle.manifest import (
    FILE_NAME,
    RUN_ID,
    Check,
    Phase,
    check_parts,
    content_of,
    seal_of,
    serialise,
    to_json,
)
from engine.bundle.reader import open_bundle
from engine.bundle.rows import ROW_GROUP, Rows, TableChecks, ordered, row_groups
from engine.bundle.schema import CLOCKS, KINDS, REQUIRED_TABLES, SCHEMA_VERSION
from engine.errors import GapscopeError
from engine.identity import Identity


class BundleWriter:
    """One run being written::

        with BundleWriter(store, "measured", "ample8", "Ample pool, 8 lanes", identity) as writer:
            writer.write_table("requests", requests)
            run_id = writer.seal(phases=[Phase("profile", 0, end_ns)])

    Leaving the block without :meth:`seal`, by whatever way, removes everything that was written.
    """

    def __init__(self, store: Path, kind: str, slug: str, title: str, identity: Identity) -> None:
        if kind not in KINDS:
            raise GapscopeError(f"Run kind {kind!r}: expected one of {', '.join(KINDS)}.")
        self.store = Path(store)
        self.kind = kind
        self.slug = checked_slug(slug)
        self.title = title
        self.identity = identity
        self._files: dict[str, dict[str, Any]] = {}
        self._clocks: dict[str, str] = {}
        self._outcomes: Outcomes | None = None
        self._staging: staging.Staging | None = None

    def __enter__(self) -> BundleWriter:
        try:
            staging.clean_stale(self.store)
            self._staging = staging.Staging(self.store)
        except OSError as problem:
            raise staging.write_failed(self.store, problem) from problem
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._staging is not None:
            self._staging.discard()
            self._staging = None

    @property
    def contents(self) -> dict[str, str]:
        """Content digests of the tables that were written so far, by name."""
        return {name.removesuffix(".parquet"): str(entry["content"]) for name, entry in self._files.items()}

    def write_table(self, name: str, rows: Rows) -> None:
        """Store a table. A ``pa.Table`` is sorted where needed; a stream must arrive in order, and is checked.

        Raises:
            GapscopeError: columns, types, enums, order or uniqueness are not those of the schema (named), or the
                store cannot be written.
        """
        columns.spec_of(name)
        file_name = f"{name}.parquet"
        if file_name in self._files:
            raise GapscopeError(f"Table {name} was written already.")
        path = self._folder() / file_name
        sink = self._system(HashingFile, path)
        try:
            digest = self._write_groups(name, rows, sink)
            self._system(sink.sync)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            self._system(sink.close)
        self._files[file_name] = {
            "sha256": sink.sha256.hexdigest(),
            "bytes": sink.size,
            "rows": digest.rows,
            "content": digest.hexdigest(),
        }
        recorded = digest.columns_with_values()
        self._clocks |= {
            f"{name}.{column}": clock for column, clock in CLOCKS.get(name, {}).items() if column in recorded
        }

    def _write_groups(self, name: str, rows: Rows, sink: HashingFile) -> TableDigest:
        schema = columns.spec_of(name).schema
        digest, checks = TableDigest(schema), TableChecks(name)
        writer = self._system(parquet_writer, sink, schema)
        try:
            for group in row_groups(ordered(name, rows)):
                batch = columns.one_batch(group)
                columns.check_enums(name, batch)
                checks.take(batch)
                digest.update(batch)
                self._system(writer.write_batch, batch, row_group_size=ROW_GROUP)
        finally:
            self._system(writer.close)
        if name == "requests":
            self._outcomes = checks.outcomes
        return digest

    def seal(
        self,
        phases: Sequence[Phase] = (),
        ledger: Mapping[str, Any] | None = None,
        lineage: Mapping[str, Any] | None = None,
        qualification: Sequence[Check] = (),
        profile_start_unix_ns: int | None = None,
        clocks: Mapping[str, str] | None = None,
        never_issued: int | None = None,
        host: Mapping[str, Any] | None = None,
    ) -> str:
        """Write ``run.json`` and make the run visible; returns its id.

        The ledger is computed from the request rows where none is given; one that does not balance with them is a
        failed check of the run, not an error. ``host`` holds figures of the machine that did the work (run time,
        say): they are kept but are no part of the id. A run that is in the store already is left as it is.

        Raises:
            GapscopeError: a required table is missing, a value is malformed, the store cannot be written, or the
                run that is in the store already was altered.
        """
        folder = self._folder()
        for table in REQUIRED_TABLES[self.kind]:
            if f"{table}.parquet" not in self._files:
                raise GapscopeError(f"Run {self.slug}: a {self.kind} run must have the table {table}.")
        if ledger is None and self._outcomes is not None:
            ledger = ledger_from(self._outcomes, never_issued)
        manifest: dict[str, Any] = to_json(
            {
                "schema_version": SCHEMA_VERSION,
                "run_id": "",
                "kind": self.kind,
                "title": self.title,
                "created_unix_ns": time.time_ns(),
                "profile_start_unix_ns": profile_start_unix_ns,
                "clocks": {**self._clocks, **(clocks or {})},
                "identity": self.identity.to_json(),
                "phases": list(phases),
                "ledger": ledger,
                "lineage": lineage or {},
                "qualification": [*qualification, *self._ledger_check(ledger)],
                "files": dict(sorted(self._files.items())),
                "host": host or {},
            }
        )
        check_parts(manifest, f"Run {self.slug} cannot be sealed")
        manifest["run_id"] = run_id = f"{self.slug}-{content_of(manifest)}"
        manifest["seal"] = seal_of(manifest)
        self._system(write_durably, folder / FILE_NAME, serialise(manifest))
        assert self._staging is not None
        if not self._system(self._staging.publish, run_id):
            self._check_existing(run_id)
        self._staging.discard()
        self._staging = None
        return run_id

    def _ledger_check(self, ledger: Mapping[str, Any] | None) -> list[Check]:
        if ledger is None:
            return []
        problems = ledger_problems(ledger, self._outcomes)
        return [Check("ledger_balances", "fail" if problems else "pass", "; ".join(problems))]

    def _check_existing(self, run_id: str) -> None:
        altered = open_bundle(self.store / run_id).verify()
        if altered:
            raise GapscopeError(
                f"Run {run_id} is in {self.store} already, but {', '.join(altered)} in it was altered. "
                "Remove that folder and write the run again."
            )

    def _folder(self) -> Path:
        if self._staging is None:
            raise RuntimeError("BundleWriter is used inside its with-block and before seal().")
        return self._staging.path

    def _system(self, call: Any, *args: Any, **options: Any) -> Any:
        """``call(...)`` with an error of the file system told as one sentence about the store."""
        try:
            return call(*args, **options)
        except OSError as problem:
            raise staging.write_failed(self.store, problem) from problem


def checked_slug(slug: str) -> str:
    """The name, as it stands before the digest in a run id.

    Raises:
        GapscopeError: not of the form.
    """
    if not RUN_ID.fullmatch(f"{slug}-{0:012x}"):
        raise GapscopeError(
            f"Run name {slug!r}: expected up to 64 lower-case letters, digits, - or _, a letter or digit first."
        )
    return slug


def slugify(text: str) -> str:
    """A run name made from any text."""
    return re.sub(r"[^a-z0-9_]+", "-", text.lower()).strip("-_")[:64] or "run"
