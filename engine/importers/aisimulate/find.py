"""AISimulate's artefacts as parts of an import: rows with their report are a replay, a report alone a summary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from engine import definitions as words
from engine.bundle import Check, Phase, spooled
from engine.identity import Identity
from engine.importers.aisimulate.report import DENOMINATOR, PERCENTILES, reported, summary_check
from engine.importers.aisimulate.rows import Table, read_rows
from engine.importers.clients.plausible import statistics_ordered
from engine.importers.clients.run import REPORTED_COLUMNS, ClientRun, seal
from engine.importers.clients.values import count, first_keys, has_row, mapping, ns, run_name, text
from engine.importers.contract import NO_ROWS, Options, Part, Use
from engine.importers.foreign_replay import foreign_lineage
from engine.intake import BadRows, InputFile, Intake, json_document
from engine.intake.rows import number

TOOL = "AISimulate"
ROWS = frozenset(["arrival_time_ms", "terminal_status", "requested_output_length", "first_admit_ms"])
REPORT = frozenset(["num_requests", "completed_requests", "duration_ms", "wall_time_ms"])


class AiSimulate:
    """A report goes with the rows of its folder, where there is just one of either."""

    name = "aisimulate"
    describes = "replays of AISimulate: prediction.json and requests.jsonl"

    def find(self, intake: Intake) -> Sequence[Part]:
        """One part per file of rows, with its report, and one per report without rows."""
        tables = [file for file in intake.files if has_row(file.head, ROWS)]
        reports = [file for file in intake.files if first_keys(file.head).keys() >= REPORT]
        parts = []
        for rows in tables:
            near = [report for report in reports if report.folder == rows.folder]
            alone = sum(other.folder == rows.folder for other in tables) == 1 and len(near) == 1
            parts.append(self._part(intake, rows, near[0] if alone else None))
            reports = [report for report in reports if not (alone and report is near[0])]
        return [*parts, *(self._part(intake, None, report) for report in reports)]

    def _part(self, intake: Intake, rows: InputFile | None, report: InputFile | None) -> Part:
        uses = [Use(rows, "a row per request and its admissions")] if rows else []
        uses += [Use(report, "the report")] if report else []
        name = run_name(intake, uses[0].file)
        notes = ["Nothing is known of the timing model: a pair with this replay is no blind prediction."]
        if not rows:
            notes = [NO_ROWS]
        elif not report:
            notes.append("No report is among the files: nothing says how many requests there were.")
        return Part(
            format=self.name,
            tool=TOOL,
            version=None,
            name=name,
            kind="replay" if rows else "imported_summary",
            uses=tuple(uses),
            run=partial(_import, intake, name, rows, report),
            notes=tuple(notes),
        )


def _import(
    intake: Intake, name: str, rows: InputFile | None, report: InputFile | None, store: Path, options: Options
) -> str:
    bad = BadRows(options.skip_bad_rows)
    document = mapping(json_document(report)) if report else {}
    profile = mapping(document.get("agentic_profile"))
    run = ClientRun(
        "aisimulate",
        TOOL,
        None,
        name,
        Identity(),
        kind="replay" if rows else "imported_summary",
        sources=[file for file in (rows, report) if file],
        bad=bad,
    )
    told = list(reported(document, report.base)) if report else []
    if report:
        run.reported = spooled("reported", told, REPORTED_COLUMNS, intake.scratch)
        run.checks.append(statistics_ordered(told))
    facts = {
        key: document[key]
        for key in ("agentic_qualification", "weka_nested_timestamp_basis")
        if text(document.get(key))
    }
    run.lineage = foreign_lineage({}, simulator=TOOL, report=facts) if rows else {"simulator": TOOL, "report": facts}
    if rows:
        table = read_rows(rows, bad, intake, options)
        run.never_issued = count(profile.get("never_issued_requests"))
        _add_lost(table, profile)
        run.requests, run.admissions = table.requests, table.admissions
        run.phases = _phases(table, profile)
        run.checks += list(_checks(table, document))
        run.not_recorded = [
            "Passes of the scheduler, KV events and times of single tokens: the rows hold none.",
            "The timing model, its data and the settings of the engine: neither file says what they were.",
            "Requests that a cap on time cut off have no row; where the report counts them, they are counted.",
        ]
    else:
        run.not_recorded = ["Single requests: the report holds aggregates."]
    if report:
        run.know(report.name, _identity(document, profile))
    run.define(
        "format aisimulate",
        first_token=words.FIRST_SIMULATED,
        end_of_latency=words.END_CONTENT,
        token_source=words.TOKENS_SIMULATED,
        tpot=words.TPOT_OURS,
        itl=words.ITL_NONE if rows else "gaps between tokens, pooled, bursts as gaps of length 0",
        percentiles=PERCENTILES,
        throughput_denominator=DENOMINATOR,
        zero_output="counted, no latency",
    )
    return seal(run, store, options)


def _add_lost(table: Table, profile: dict[str, Any]) -> None:
    """Rows of which only the number is known: issued, or retained by the report, and cut off without an end."""
    issued = count(profile.get("issued_requests"))
    waiting = count(profile.get("client_in_flight_requests")) or 0
    lost = min(waiting, max(0, issued - table.requests.rows)) if issued is not None else 0
    for place in range(lost):
        table.requests.append(
            {
                "request_id": f"in flight {place}",
                "phase": "profile",
                "status": "in_flight",
                "tool_status": "no row",
                "error_type": "no record",
            }
        )


def _phases(table: Table, profile: dict[str, Any]) -> list[Phase]:
    """The report's own, on the clock of the rows: theirs is absolute, and rows of a warmed run start at the profile."""
    phases = [Phase("warmup", table.first_ns, 0)] if table.first_ns < 0 else []
    start, cutoff = number(profile.get("profile_start_ms")), number(profile.get("admission_cutoff_ms"))
    grace, end = number(profile.get("response_grace_deadline_ms")), number(profile.get("finished_at_ms"))
    length = ns((cutoff - start) / 1e3) if start is not None and cutoff is not None and cutoff > start else None
    if length is None:
        return [*phases, Phase("profile", 0, max(1, table.last_ns))]
    phases.append(Phase("profile", 0, length))
    last = ns((end - (start or 0.0)) / 1e3) if end is not None else table.last_ns
    if last is not None and last > length:
        until = ns((grace - (start or 0.0)) / 1e3) if grace is not None else None
        middle = last if until is None else min(max(until, length), last)
        phases += [Phase("grace", length, middle)] if middle > length else []
        phases += [Phase("drain", middle, last)] if last > middle else []
    return phases


def _checks(table: Table, document: dict[str, Any]) -> Iterator[Check]:
    rows = int(table.totals["num_requests"])
    asked = count(document.get("num_requests"))
    if asked is None:
        yield Check("rows_counted", "unknown", f"{rows:,} rows; no report says how many there were")
    else:
        yield Check("rows_counted", "pass" if rows == asked else "fail", f"{rows:,} rows, the report counts {asked:,}")
        yield summary_check(document, table.values, table.totals)
        length = number(document.get("duration_ms"))
        yield table.spans.check(None if length is None else length / 1e3, "the report")
    detail = f"itl_ms is not (last - first) / (output tokens - 1) in {table.tpot_apart:,} of {rows:,} rows"
    yield Check("tpot_agrees", "fail" if table.tpot_apart else "pass" if rows else "unknown", detail)
    detail = f"readmissions and the history of admissions differ in {table.readmissions_apart:,} of {rows:,} rows"
    known = table.admissions.rows
    yield Check("admissions_agree", "fail" if table.readmissions_apart else "pass" if known else "unknown", detail)
    unissued = count(mapping(document.get("agentic_profile")).get("never_issued_requests"))
    if unissued is not None:
        yield Check("all_issued", "fail" if unissued else "pass", f"{unissued:,} requests were never issued")


def _identity(document: dict[str, Any], profile: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    start, cutoff = number(profile.get("profile_start_ms")), number(profile.get("admission_cutoff_ms"))
    length = (cutoff - start) / 1e3 if start is not None and cutoff is not None and cutoff > start else None
    yield "client", "duration_s", length
    lanes = document.get("agentic_lanes")
    yield "client", "lanes", len(lanes) if isinstance(lanes, list) else count(lanes)
    yield "client", "loop", "closed" if profile else None
    yield "trace", "format", text(document.get("agentic_input_format"))
    gpus = [count(document.get(f"{pool}_gpus_per_worker")) for pool in ("prefill", "decode")]
    yield (
        "topology",
        "serving",
        "prefill/decode" if gpus[0] and number(document.get("prefill_worker_seconds")) else None,
    )


AISIMULATE = AiSimulate()
