"""AIPerf's artefact folders as parts of an import."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from engine.importers.clients.aiperf.families import Family, families
from engine.importers.clients.aiperf.kinds import Kind
from engine.importers.clients.aiperf.load import TOOL, import_run
from engine.importers.clients.aiperf.repeats import import_repeats
from engine.importers.contract import Part, Use
from engine.intake import InputFile, Intake

_VERSION = re.compile(rb'"aiperf_version"\s*:\s*"([^"]{1,40})"|# aiperf_version: (\S{1,40})|aiperf/(\d[\w.]{1,40})')
_FORK = re.compile(rb'"schema_version"\s*:\s*"1\.2"')

# Kinds that say again what another kind says better, and the words for it.
_INSTEAD: dict[Kind, tuple[Kind, str]] = {
    Kind.SUMMARY_CSV: (Kind.SUMMARY, "the JSON summary has the same figures, not rounded"),
    Kind.SLICES_CSV: (Kind.SLICES, "the JSON slices have the same figures, not rounded"),
    Kind.SERVER_CSV: (Kind.SERVER, "the JSON has the same figures, not rounded"),
    Kind.SCRAPES_PARQUET: (Kind.SCRAPES, "the JSON Lines have the same samples"),
    Kind.AGGREGATE_CSV: (Kind.AGGREGATE, "the JSON has the same figures"),
    Kind.COMMAND: (Kind.SUMMARY, "the summary holds the configuration that came of it"),
}
_NEVER: dict[Kind, str] = {
    Kind.CONSOLE: "the printed tables; the summary has the same figures, not rounded",
    Kind.WORKLOAD: "lengths as printed; they follow from the records",
    Kind.INPUTS: "the prompts' text, of which a run keeps lengths only",
    Kind.OUTPUTS: "the responses' text, of which a run keeps lengths only",
}
_PHASE = "the same of one phase; the files of the run tell the phases apart"


class AiperfImporter:
    """Artefact folders of AIPerf, whole or in part."""

    name = "aiperf"
    describes = "artefacts of AIPerf: records, raw records, summary, time slices, server and GPU figures, log"

    def find(self, intake: Intake) -> Sequence[Part]:
        """One part per run, and one for the statistics across repeated runs."""
        return [self._part(intake, family) for family in families(intake)]

    def _part(self, intake: Intake, family: Family) -> Part:
        uses, ignores = _sorted(family)
        version = _version([use.file for use in uses])
        name = _name(intake, family)
        rows = Kind.RECORDS in family.files or Kind.RAW in family.files
        files = [use.file for use in uses]
        if family.repeats:
            run = partial(import_repeats, family, name, version, intake)
        else:
            run = partial(import_run, family, name, version, files, intake)
        return Part(
            format=self.name,
            tool=TOOL,
            version=version,
            name=name,
            kind="measured" if rows else "imported_summary",
            uses=tuple(uses),
            run=run,
            ignores=tuple(ignores),
            notes=tuple(_notes(family, rows)),
        )


def _sorted(family: Family) -> tuple[list[Use], list[tuple[str, str]]]:
    uses, ignores = [], []
    for kind, files in family.files.items():
        better = _INSTEAD.get(kind)
        if kind in _NEVER:
            ignores += [(file.name, _NEVER[kind]) for file in files]
        elif better is not None and better[0] in family.files:
            ignores += [(file.name, better[1]) for file in files]
        else:
            uses.append(Use(files[0], str(kind)))
            ignores += [(file.name, f"{files[0].base} is of the same kind and was taken") for file in files[1:]]
    ignores += [(file.name, _PHASE) for files in family.phase_files.values() for file in files]
    return uses, ignores


def _version(files: list[InputFile]) -> str | None:
    for file in files:
        if match := _VERSION.search(file.head):
            return next(group for group in match.groups() if group).decode("ascii", "replace")
    return None


def _name(intake: Intake, family: Family) -> str:
    folder = family.home.rpartition("/")[2]
    if folder in ("aiperf_artifacts", "artifacts", "aggregate"):
        above = family.home.rpartition("/")[0].rpartition("/")[2]
        folder = f"{above or _plain(intake.name)} {folder}" if folder == "aggregate" else above
    name = folder or _plain(intake.name)
    return f"{name} {family.stem}".strip()


def _plain(name: str) -> str:
    return re.sub(r"(\.(gz|zst|tar|tgz|zip|jsonl?|csv|parquet))+$", "", name) or name


def _notes(family: Family, rows: bool) -> list[str]:
    notes = []
    if not rows and not family.repeats:
        notes.append("No records are among the files: the figures are shown as the tool states them, and not compared.")
    summary = family.first(Kind.SUMMARY)
    if summary and _FORK.search(summary.head[:400]):
        notes.append("The summary has schema 1.2, which only the SemiAnalysis fork writes.")
    if rows and Kind.SUMMARY not in family.files and Kind.SUMMARY_CSV not in family.files:
        notes.append("No summary is among the files: nothing says whether the tool counted the same.")
    return notes


AIPERF = AiperfImporter()
