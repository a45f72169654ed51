"""Runs that were exported (:mod:`engine.bundle.export`), or copied as they are from a store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from engine.bundle import BundleWriter, Check, Phase, Spool
from engine.bundle.manifest import FILE_NAME, RUN_ID, content_of, parse
from engine.bundle.schema import TABLES
from engine.errors import GapscopeError
from engine.identity import Identity
from engine.importers.contract import Options, Part, Use
from engine.importers.exported_rows import READERS
from engine.intake import BadRows, InputFile, Intake, json_document

_MARKS = (b'"schema_version"', b'"run_id"', b'"kind"')


class Exports:
    """A folder with a ``run.json`` and the tables beside it."""

    name = "exported run"
    describes = (
        "a run that gapscope exported (run.json and a file per table, CSV, JSON Lines or Parquet), or its folder"
    )

    def find(self, intake: Intake) -> Sequence[Part]:
        """One part per manifest; the tables are the files beside it that have their names."""
        return [self._part(intake, file) for file in intake.files if all(mark in file.head for mark in _MARKS)]

    def _part(self, intake: Intake, manifest: InputFile) -> Part:
        tables = {f.base.partition(".")[0]: f for f in intake.files if f.folder == manifest.folder and _table(f)}
        record = _manifest(manifest)
        return Part(
            format=self.name,
            tool="gapscope",
            version=str(record["schema_version"]),
            name=str(record["run_id"]),
            kind=str(record["kind"]),
            side="both",
            uses=(
                Use(manifest, "the run's manifest"),
                *(Use(file, f"table {name}") for name, file in sorted(tables.items())),
            ),
            run=lambda store, options: _import(intake, manifest, tables, store, options),
        )


def _table(file: InputFile) -> str | None:
    """The format of a table's file, None where it is no table."""
    name, _, ending = file.base.removesuffix(".gz").removesuffix(".zst").partition(".")
    return ending if name in TABLES and ending in READERS else None


def _manifest(file: InputFile) -> dict[str, Any]:
    record = parse(json.dumps(json_document(file)).encode(), file.folder or file.name)
    if not RUN_ID.fullmatch(record["run_id"]):
        raise GapscopeError(f"{file.name}: run_id is {record['run_id']!r:.80}, expected a name and 12 hex digits.")
    return record


def _import(intake: Intake, file: InputFile, tables: dict[str, InputFile], store: Path, options: Options) -> str:
    record = _manifest(file)
    bad = BadRows(options.skip_bad_rows)
    spools = {name: _read(name, tables[name], intake.scratch, bad, options) for name in TABLES if name in tables}
    options.step(None, "writing the run")
    run_id = RUN_ID.fullmatch(record["run_id"])
    assert run_id is not None  # _manifest looked
    title = options.title or record["title"]
    with BundleWriter(store, record["kind"], run_id["slug"], title, Identity.from_json(record["identity"])) as writer:
        for name, spool in spools.items():
            writer.write_table(name, spool.batches())
        altered = list(_altered(record, writer.contents, bad))
        checks = [Check(c["check"], c["verdict"], c["detail"]) for c in record["qualification"]]
        checks = [c for c in checks if c.check != "ledger_balances"]  # the writer says it again
        if altered:
            checks = [_of_old(c) for c in checks] + [Check("as_exported", "fail", "; ".join(altered))]
        return writer.seal(
            phases=[Phase(p["name"], p["start_ns"], p["end_ns"]) for p in record["phases"]],
            ledger=None if altered else record["ledger"],
            never_issued=((record["ledger"] or {}).get("total") or {}).get("never_issued"),
            lineage={**record["lineage"], **({"altered_export_of": record["run_id"]} if altered else {})},
            qualification=checks,
            profile_start_unix_ns=record["profile_start_unix_ns"],
            clocks=record["clocks"],
            host=record["host"],
        )


def _read(table: str, file: InputFile, scratch: Path, bad: BadRows, options: Options) -> Spool:
    spool = Spool(table, TABLES[table].columns, scratch)
    for batch in READERS[_table(file) or ""](table, file, bad):
        spool.extend(batch)
        options.step(None, f"table {table}: {spool.rows:,} rows")
    return spool


def _altered(record: dict[str, Any], contents: dict[str, str], bad: BadRows) -> Iterator[str]:
    """What is not as it was exported, in words."""
    if content_of(record) != record["run_id"].rpartition("-")[2]:
        yield f"{FILE_NAME} was altered"
    exported = {name.removesuffix(".parquet"): entry for name, entry in record["files"].items()}
    for name in dict.fromkeys((*exported, *contents)):
        if name not in contents:
            yield f"table {name} is missing"
        elif name not in exported:
            yield f"table {name} was added"
        elif contents[name] != exported[name]["content"]:
            yield f"table {name} differs from its digest"
    if bad.count:
        yield bad.words


def _of_old(check: Check) -> Check:
    """What was said of the rows that were exported is not known of others."""
    if check.verdict == "fail":
        return check
    detail = f"{check.verdict} before the export was altered"
    return Check(check.check, "unknown", f"{detail}: {check.detail}" if check.detail else detail)
