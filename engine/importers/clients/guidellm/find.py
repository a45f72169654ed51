"""GuideLLM reports as parts of an import: one per benchmark, from JSON where there is one, else from CSV."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from engine.errors import GapscopeError
from engine.importers.clients.guidellm.load import TOOL, import_benchmark, import_row, version_of
from engine.importers.clients.guidellm.tables import is_csv, read_csv
from engine.importers.clients.outline import outline
from engine.importers.clients.values import mapping
from engine.importers.contract import NO_ROWS, Options, Part, Use
from engine.intake import InputFile, Intake, json_document

_BENCHMARK = re.compile(rb'"(?:type_|type)"\s*:\s*"generative_benchmark"|"guidellm_version"')
_YAML = re.compile(rb"^\s*(?:- )?(?:type_: generative_benchmark|guidellm_version:)", re.MULTILINE)
_HTML = re.compile(rb"<!doctype html", re.IGNORECASE)


class GuideLlm:
    """Reports of versions 0.2 to 0.8; the other outputs of a run say the same again."""

    name = "guidellm"
    describes = "reports of GuideLLM: JSON of versions 0.2 to 0.8, or their CSV"

    def find(self, intake: Intake) -> Sequence[Part]:
        """One part per benchmark."""
        reports = [file for file in intake.files if is_json(file)]
        parts = [part for file in reports for part in self._parts(intake, file)]
        done = {file.folder for file in reports}
        for file in intake.files:
            if is_csv(file) and file.folder not in done:
                parts += self._table(intake, file)
            elif (is_html(file) or is_yaml(file)) and file.folder not in done:
                parts.append(self._refused(file, "no report in JSON lies beside it, and it is not read"))
        return parts

    def _parts(self, intake: Intake, file: InputFile) -> list[Part]:
        try:
            report = read_report(file)
        except GapscopeError as error:
            return [self._part(file, file.base, None, "imported_summary", partial(_refuse, error), "a report")]
        found = benchmarks(report)
        ignores = tuple(
            (other.name, why)
            for kind, why in (
                (is_csv, "the JSON report has the same figures"),
                (is_html, "a page made of the JSON report"),
                (is_yaml, "the JSON report has the same content"),
            )
            for other in intake.beside(file, kind)
        )
        parts = []
        for place, benchmark in enumerate(found):
            rows = any(mapping(benchmark.get("requests")).get(k) for k in ("successful", "incomplete", "errored"))
            what = f"benchmark {place + 1} of {len(found)}" + (", with its requests" if rows else "")
            name = file.base.partition(".json")[0] + (f"-{place + 1}" if len(found) > 1 else "")
            kind = "measured" if rows else "imported_summary"
            run = partial(import_benchmark, intake, file, place, name)
            part = self._part(file, name, version_of(report), kind, run, what, ignores if not place else ())
            parts.append(part)
        return parts

    def _table(self, intake: Intake, file: InputFile) -> list[Part]:
        try:
            rows = read_csv(file)
        except GapscopeError as error:
            return [self._part(file, file.base, None, "imported_summary", partial(_refuse, error), "a table")]
        parts = []
        for place, row in enumerate(rows):
            name = file.base.partition(".csv")[0] + (f"-{place + 1}" if len(rows) > 1 else "")
            what = f"row {place + 1} of {len(rows)}, a benchmark"
            run = partial(import_row, intake, file, row, name)
            parts.append(self._part(file, name, row.version, "imported_summary", run, what))
        return parts

    def _refused(self, file: InputFile, why: str) -> Part:
        kind = "HTML" if is_html(file) else "YAML"
        error = GapscopeError(f"{file.name} is a GuideLLM report in {kind}; {why}: give the JSON of the run.")
        return self._part(file, file.base, None, "imported_summary", partial(_refuse, error), f"nothing: {kind}")

    def _part(
        self,
        file: InputFile,
        name: str,
        version: str | None,
        kind: str,
        run: Callable[[Path, Options], str],
        what: str,
        ignores: tuple[tuple[str, str], ...] = (),
    ) -> Part:
        notes = () if kind == "measured" else (NO_ROWS,)
        return Part(self.name, TOOL, version, name, kind, (Use(file, what),), run, ignores, notes)


def _refuse(error: GapscopeError, store: Path, options: Options) -> str:
    raise error


def is_json(file: InputFile) -> bool:
    """Whether a file is a report in JSON."""
    if not file.head.lstrip().startswith(b"{") or not _BENCHMARK.search(file.head):
        return False
    keys = outline(file.head)
    return "benchmarks" in keys or "guidellm_version" in keys.get("metadata", ())


def is_html(file: InputFile) -> bool:
    """Whether a file is a report as a page."""
    return bool(_HTML.match(file.head.lstrip())) and b"guidellm" in file.head[:4096].lower()


def is_yaml(file: InputFile) -> bool:
    """Whether a file is a report in YAML."""
    return not file.head.lstrip().startswith((b"{", b"[")) and bool(_YAML.search(file.head))


def read_report(file: InputFile) -> dict[str, Any]:
    """A report.

    Raises:
        GapscopeError: it is no JSON, or has no benchmarks.
    """
    report = json_document(file)
    if not isinstance(report, dict) or not isinstance(report.get("benchmarks"), list):
        raise GapscopeError(f"{file.name} has no list of benchmarks: expected a report of GuideLLM.")
    if not benchmarks(report):
        raise GapscopeError(f"{file.name} has an empty list of benchmarks: nothing was measured.")
    return report


def benchmarks(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The benchmarks of a report; what is no object is left out."""
    return [item for item in report["benchmarks"] if isinstance(item, dict)]
