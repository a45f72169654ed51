"""Self-benchmarks of an engine (JSON, schema 2): passes of known shape on one rank, or on all of them merged."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from engine.bundle import BundleWriter, Check, Spool, slugify
from engine.errors import GapscopeError
from engine.identity import Identity
from engine.importers.clients.outline import outline
from engine.importers.clients.values import count, dig, mapping, text
from engine.importers.contract import Options, Part, Use
from engine.importers.fpm.captures import capture_name
from engine.importers.fpm.collect import Passes
from engine.importers.fpm.load import SCOPE_RECORDER, read, seal
from engine.importers.fpm.records import SCHEMA, flat
from engine.intake import BadRows, InputFile, Intake, json_document
from engine.intake.rows import number

_TYPE = re.compile(rb'"artifact_type"\s*:\s*"(rank|merged)"')
_SCHEMA = re.compile(rb'"schema_version"\s*:\s*2\b')
_POINT = ("point_type", "batch_size", "total_prefill_tokens", "total_kv_read_tokens")
_RANK, _SEGMENT = SCHEMA.get_field_index("dp_rank"), SCHEMA.get_field_index("segment")
_REPORTED = ("scope", "name", "labels", "statistic", "value", "definition", "source")
_LARGEST = 1_000_000
"""Ranks beyond this are none."""


class SelfBenchmarks:
    """The files of one folder are one run: the merged one where there is one, else those of all ranks."""

    name = "self-benchmark"
    describes = "what an engine measured of itself (JSON, schema_version 2, artifact_type rank or merged)"

    def find(self, intake: Intake) -> Sequence[Part]:
        """One part per folder."""
        folders: dict[str, list[InputFile]] = {}
        for file in intake.files:
            if _kind(file) is not None:
                folders.setdefault(file.folder, []).append(file)
        return [self._part(intake, files) for files in folders.values()]

    def _part(self, intake: Intake, files: list[InputFile]) -> Part:
        merged = [file for file in files if _kind(file) == "merged"]
        used = merged[:1] or files
        name = used[0].base.partition(".")[0] if len(files) == 1 else capture_name(intake, used[0])
        return Part(
            format=self.name,
            tool="self-benchmark of an engine",
            version="schema 2",
            name=name,
            kind="sweep",
            side="engine",
            uses=tuple(Use(file, "points with the passes that were measured at them") for file in used),
            run=partial(_import, intake, name, used),
            ignores=tuple((f.name, f"{used[0].base} holds all ranks") for f in files if f not in used),
            notes=("Points without passes become figures to look at (kind imported_summary).",),
        )


def _kind(file: InputFile) -> str | None:
    if not {"schema_version", "artifact_type"} <= outline(file.head).keys() or not _SCHEMA.search(file.head):
        return None
    found = _TYPE.search(file.head)
    return found[1].decode() if found else None


def _import(intake: Intake, name: str, files: Sequence[InputFile], store: Path, options: Options) -> str:
    bad, passes = BadRows(options.skip_bad_rows), Passes(intake.scratch)
    documents = [(file, mapping(json_document(file))) for file in files]
    identity = Identity()
    for file, document in documents:
        read(_blocks(file, document, bad), f"{file.name} pass", bad, passes, options)
        size = count(dig(document, "dp", "size"))
        if size is not None:
            identity.set("topology", "attention_dp", size, f"{file.base}: dp.size")
    checks = [_complete(documents)]
    source = files[0].base
    identity.set("telemetry", "fpm_producer", "self-benchmark of an instrumented scheduler", f"{source}: artifact_type")
    if not passes.rows:
        return _figures(intake, name, documents, identity, checks, store, options)
    identity.set("telemetry", "fpm_version", "self-benchmark, schema 2", f"{source}: schema_version")
    identity.set("telemetry", "fpm_scope", SCOPE_RECORDER, "form of the records")
    identity.set("telemetry", "clock", "durations only", f"{source}: fpms")
    return seal(name, files, identity, passes, checks, bad, "self-benchmark", store, options)


def _blocks(
    file: InputFile, document: Mapping[str, Any], bad: BadRows
) -> Iterator[tuple[Sequence[int], pa.RecordBatch]]:
    """Numbers (from 1) and columns (``SCHEMA``) of the passes of a document; the segment is the type of the point."""
    numbers, rows = [], []
    for place, (fpm, rank, point) in enumerate(_measured(document), 1):
        try:
            row = list(flat(fpm)[0])
        except ValueError as error:
            bad.add(f"{file.name} pass {place}", str(error))
            continue
        row[_RANK] = rank if row[_RANK] is None else row[_RANK]
        row[_SEGMENT] = text(mapping(point).get("point_type"))
        numbers.append(place)
        rows.append(row)
    if rows:
        columns = [pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), SCHEMA, strict=True)]
        yield numbers, pa.record_batch(columns, schema=SCHEMA)


def _measured(document: Mapping[str, Any]) -> Iterator[tuple[Any, int | None, Any]]:
    """Record, rank and point of each pass: of all ranks where the document is merged, else of its own."""
    own = count(dig(document, "dp", "rank"))
    own = own if own is not None and own < _LARGEST else None
    groups = [mapping(group) for group in _list(document.get("iteration_groups"))]
    if document.get("artifact_type") == "merged" and groups:
        for group in groups:
            for part in map(mapping, _list(group.get("rank_results"))):
                for fpm in _list(part.get("fpms")):
                    yield fpm, count(part.get("dp_rank")), group.get("point")
        return
    for result in map(mapping, _list(document.get("results")) or _list(document.get("points"))):
        for fpm in _list(result.get("fpms")):
            yield fpm, own, result.get("point", result)


def _complete(documents: Sequence[tuple[InputFile, Mapping[str, Any]]]) -> Check:
    """Whether the benchmark says of itself that it came to its end and can be used."""
    problems, said = [], 0
    for file, document in documents:
        for field, wanted in (("status", "complete"), ("valid", True), ("usable", True), ("timing_valid", True)):
            said += field in document
            if field in document and document[field] != wanted:
                problems.append(f"{file.base}: {field} is {document[field]!r:.40}")
        expected, done = (count(dig(document, "coverage", f"{word}_points")) for word in ("expected", "completed"))
        if expected is not None and done != expected:
            problems.append(f"{file.base}: {done} of {expected} points")
        said += expected is not None
    if not said:
        return Check("benchmark_complete", "unknown", "the files do not say whether they are complete")
    return Check("benchmark_complete", "fail" if problems else "pass", "; ".join(problems) or "complete and valid")


def _figures(
    intake: Intake,
    name: str,
    documents: Sequence[tuple[InputFile, Mapping[str, Any]]],
    identity: Identity,
    checks: Sequence[Check],
    store: Path,
    options: Options,
) -> str:
    """Points without passes: the figures that stand beside their coordinates."""
    spool = Spool("reported", _REPORTED, intake.scratch)
    for file, document in documents:
        for held in map(mapping, _list(document.get("points")) or _list(document.get("results"))):
            point = mapping(held.get("point")) or held
            labels = " ".join(f"{key}={point[key]}" for key in _POINT if type(point.get(key)) in (int, str))
            for key, value in held.items():
                figure = None if key in _POINT else number(value)
                if figure is not None:
                    row = {"scope": "run", "name": str(key), "labels": labels, "statistic": "value", "value": figure}
                    spool.append({**row, "definition": "figure of a self-benchmark at this point", "source": file.base})
    if not spool.rows:
        raise GapscopeError(f"{documents[0][0].name} holds neither passes nor figures: expected points with fpms.")
    options.step(None, "writing the figures")
    title = options.title or f"{name}: figures of a self-benchmark"
    with BundleWriter(store, "imported_summary", slugify(name), title, identity) as writer:
        writer.write_table("reported", spool.batches())
        return writer.seal(
            lineage={
                "format": "self-benchmark",
                "source_files": {file.name: file.sha256 for file, _ in documents},
                "rows_left_out": 0,
                "not_recorded": ["Passes: figures of points only."],
            },
            qualification=checks,
        )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
