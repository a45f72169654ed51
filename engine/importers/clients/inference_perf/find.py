"""Reports of inference-perf as parts of an import."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from engine import definitions as words
from engine.bundle import spooled
from engine.identity import Identity
from engine.importers.clients.inference_perf.rows import read_rows, tokens_check
from engine.importers.clients.inference_perf.summary import label_of, reported, summary_checks
from engine.importers.clients.run import REPORTED_COLUMNS, ClientRun, seal
from engine.importers.clients.values import first_keys, mapping, run_name
from engine.importers.contract import NO_ROWS, NO_SUMMARY, Options, Part, Use
from engine.intake import BadRows, InputFile, Intake, json_document

TOOL = "inference-perf"


def is_rows(file: InputFile) -> bool:
    """Whether a file is a list of requests; texts may push the rest of a request out of the head."""
    keys = first_keys(file.head)
    return file.head.lstrip().startswith(b"[") and {"start_time", "end_time", "request"} <= keys.keys()


def is_summary(file: InputFile) -> bool:
    """Whether a file is a summary of a stage or of all."""
    return {"load_summary", "successes", "failures"} <= first_keys(file.head).keys()


class InferencePerf:
    """Reports of one folder are of one run."""

    name = "inference-perf"
    describes = "reports of inference-perf: per-request and summary lifecycle metrics"

    def find(self, intake: Intake) -> Sequence[Part]:
        """One part per list of requests, with the summaries of its folder; one per folder that has summaries only."""
        rows: dict[str, list[InputFile]] = defaultdict(list)
        summaries: dict[str, list[InputFile]] = defaultdict(list)
        for file in intake.files:
            if is_rows(file):
                rows[file.folder].append(file)
            elif is_summary(file):
                summaries[file.folder].append(file)
        parts = []
        for folder in dict.fromkeys((*rows, *summaries)):
            lists = rows[folder]
            parts += [self._part(intake, file, summaries[folder] * (file is lists[0])) for file in lists]
            if not lists:
                parts.append(self._part(intake, None, summaries[folder]))
        return parts

    def _part(self, intake: Intake, rows: InputFile | None, summaries: list[InputFile]) -> Part:
        uses = [Use(rows, "a row per request")] if rows else []
        uses += [Use(file, f"summary of {label_of(file, summaries) or 'the run'}") for file in summaries]
        name = run_name(intake, rows or summaries[0])
        notes = [] if rows else [NO_ROWS]
        if rows and not summaries:
            notes.append(NO_SUMMARY)
        return Part(
            format=self.name,
            tool=TOOL,
            version=None,
            name=name,
            kind="measured" if rows else "imported_summary",
            uses=tuple(uses),
            run=partial(_import, intake, name, rows, summaries),
            notes=tuple(notes),
        )


def _import(
    intake: Intake, name: str, rows: InputFile | None, summaries: list[InputFile], store: Path, options: Options
) -> str:
    run = ClientRun(
        "inference-perf",
        TOOL,
        None,
        name,
        Identity(),
        kind="measured" if rows else "imported_summary",
        bad=BadRows(options.skip_bad_rows),
        sources=[*([rows] if rows else []), *summaries],
    )
    documents = {file: mapping(json_document(file)) for file in summaries}
    table = None
    if rows:
        table = read_rows(rows, run.bad, intake, options)
        run.requests, run.chunks = table.requests, table.chunks
        run.origin_ns, run.phases = table.span.start, table.span.phases
        run.checks += [tokens_check(table)]
    told = list(reported(documents, summaries))
    if documents:
        run.reported = spooled("reported", told, REPORTED_COLUMNS, intake.scratch)
        run.checks += list(summary_checks(documents, summaries, told, table))
    run.define(
        "format inference-perf",
        first_token=words.FIRST_VISIBLE,
        end_of_latency=words.END_CONTENT if rows else words.END_RESPONSE,
        token_source=words.TOKENS_LOCAL,
        tpot=words.TPOT_OURS,
        itl=words.ITL_CHUNKS,
        percentiles=words.PERCENTILES_LINEAR,
        throughput_denominator="time of the benchmark or stage",
    )
    run.not_recorded = ["Times of day: the clock of the rows starts anywhere."] if rows else ["Single requests."]
    return seal(run, store, options)
