"""One run of AIPerf on its way into a bundle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from engine import definitions as words
from engine.bundle import Spool
from engine.errors import GapscopeError
from engine.identity import Identity
from engine.importers.clients.aiperf.checks import Facts, denominator_of, run_checks
from engine.importers.clients.aiperf.chunks import MOST
from engine.importers.clients.aiperf.families import Family
from engine.importers.clients.aiperf.kinds import Kind
from engine.importers.clients.aiperf.log import Log, read_log
from engine.importers.clients.aiperf.probes import Gpus, network_rows
from engine.importers.clients.aiperf.server import (
    parquet_scrapes,
    scrapes,
    server_csv_rows,
    server_rows,
    server_slices,
    server_units,
)
from engine.importers.clients.aiperf.setup import (
    Setup,
    command_facts,
    config_of_command,
    record_facts,
    setup_facts,
    setup_of,
)
from engine.importers.clients.aiperf.slices import Slices, read_slices, read_slices_csv
from engine.importers.clients.aiperf.summary import Summary, read_summary, read_summary_csv
from engine.importers.clients.aiperf.table import Reader, Table, span, unrecorded
from engine.importers.clients.aiperf.values import dig, mapping
from engine.importers.clients.aiperf.window import Windows, phases_of, windows_of
from engine.importers.clients.run import REPORTED_COLUMNS, ClientRun, seal
from engine.importers.contract import Options
from engine.intake import BadRows, InputFile, Intake, json_document

TOOL = "AIPerf"
_TELEMETRY_COLUMNS = ("time_ns", "kind", "endpoint", "name", "labels", "unit", "value")
_STEP = 5_000
_Read = TypeVar("_Read")


@dataclass
class Documents:
    """The small files of a run, read."""

    summary: Summary | None
    config: Mapping[str, Any]
    config_source: str
    manifest: Any
    server: Any
    ready: Any
    log: Log | None
    slices: Slices | None


def import_run(
    family: Family,
    name: str,
    version: str | None,
    used: Iterable[InputFile],
    intake: Intake,
    store: Path,
    options: Options,
) -> str:
    """Read the files of a run and seal it; returns its id.

    Raises:
        GapscopeError: a file is not what it seemed, or holds rows that cannot be used.
    """
    bad = BadRows(options.skip_bad_rows)
    options.step(None, "reading the files")
    documents = _documents(family, bad)
    setup = setup_of(documents.config, documents.summary)
    run = ClientRun("aiperf", TOOL, version, name, Identity(), bad=bad, sources=list(used))
    table = _table(family, documents.summary, intake, bad, options)
    first, last = span(table, "profile") if table else (None, None)
    windows = windows_of(documents.manifest, documents.server, documents.log, documents.summary, first, last)
    lost = unrecorded(table, documents.log) if table and documents.log else {}
    _identify(run, family, documents, setup)
    if table is not None:
        _requests(run, table, setup, windows)
        _define(run, documents, setup, table, windows)
    else:
        run.kind = "imported_summary"
        _define_summary(run, setup)
    origin = windows.profile.start_ns if windows.profile else _first_slice(documents.slices)
    run.origin_ns = origin or 0
    run.profile_start_unix_ns = origin
    run.reported = _spool("reported", REPORTED_COLUMNS, _reported(family, documents), intake, options)
    run.telemetry = _telemetry(run, family, documents, intake, bad, options)
    if table is None and not run.reported.rows and not run.telemetry.rows:
        raise GapscopeError(f"{name} holds no figure that can be read: {bad.words}.")
    facts = Facts(
        table, documents.summary, setup, windows, documents.log, documents.slices, documents.ready, version, lost
    )
    run.checks += run_checks(facts)
    run.not_recorded += not_recorded(family, table)
    run.lineage = _lineage(documents, windows)
    return seal(run, store, options)


def _documents(family: Family, bad: BadRows) -> Documents:
    summary = _read(family.first(Kind.SUMMARY), read_summary, bad)
    summary = summary or _read(family.first(Kind.SUMMARY_CSV), read_summary_csv, bad)
    slices = _read(family.first(Kind.SLICES), read_slices, bad)
    slices = slices or _read(family.first(Kind.SLICES_CSV), partial(read_slices_csv, bad=bad), bad)
    server = _read(family.first(Kind.SERVER) or family.first(Kind.PHASE_SERVER), json_document, bad)
    config, source = _config(family, summary, server, bad)
    return Documents(
        summary,
        config,
        source,
        _read(family.first(Kind.MANIFEST), json_document, bad),
        server,
        _read(family.first(Kind.READY), json_document, bad),
        _read(family.first(Kind.LOG), read_log, bad),
        slices,
    )


def _read(file: InputFile | None, reader: Callable[[InputFile], _Read], bad: BadRows) -> _Read | None:
    """What ``reader`` makes of a file beside the records; a file that cannot be read is left out like a bad row."""
    if file is None or not bad.skip:
        return None if file is None else reader(file)
    try:
        return reader(file)
    except GapscopeError as error:
        bad.add(file.name, f"left out: {error}")
        return None


def _config(family: Family, summary: Summary | None, server: Any, bad: BadRows) -> tuple[Mapping[str, Any], str]:
    """The configuration from where it is said best, and the file."""
    if summary is not None and summary.config:
        return summary.config, summary.file.name
    resolved = family.first(Kind.RUN_CONFIG)
    if resolved and (found := mapping(dig(_read(resolved, json_document, bad), "cfg"))):
        return found, resolved.name
    measured = family.first(Kind.SERVER)
    if measured and (found := mapping(dig(server, "input_config"))):
        return found, measured.name
    if file := family.first(Kind.COMMAND):
        return config_of_command(file), file.name
    return {}, ""


def _table(family: Family, summary: Summary | None, intake: Intake, bad: BadRows, options: Options) -> Table | None:
    records, raw = family.first(Kind.RECORDS), family.first(Kind.RAW)
    if records is None and raw is None:
        return None
    return Reader(intake, bad, options, summary).read(records, raw)


def _requests(run: ClientRun, table: Table, setup: Setup, windows: Windows) -> None:
    run.requests, run.chunks = table.requests, table.chunks.spool
    ends = [end for end in table.last_ns.values() if end is not None]
    run.phases = phases_of(windows, setup, {"warmup": table.first_ns.get("warmup"), "last": max(ends, default=None)})


def _identify(run: ClientRun, family: Family, documents: Documents, setup: Setup) -> None:
    if setup.known:
        run.know(documents.config_source, setup_facts(setup))
    if file := family.first(Kind.ENGINE_COMMAND):
        run.know(file.name, command_facts(file, engine=True))
    if file := family.first(Kind.IDENTITY):
        run.know(file.name, _read(file, record_facts, run.bad) or [])


def _define(run: ClientRun, documents: Documents, setup: Setup, table: Table, windows: Windows) -> None:
    """What the rows mean, by version: contents count since 0.3, the raw records are read with our rule."""
    early = run.version is not None and run.version.startswith(("0.1.", "0.2.")) and not table.responses
    counted = None
    if setup.known:
        counted = words.TOKENS_USAGE if setup.server_counts else words.TOKENS_LOCAL
    divisor = None
    if documents.summary is not None:
        divisor = denominator_of(documents.summary, table.tallies["profile"], windows.profile)
    run.define(
        "definitions of AIPerf" if not table.responses else "the chunks of the raw records",
        first_token=words.FIRST_CHUNK if early else words.FIRST_CONTENT,
        end_of_latency=words.END_CHUNK if early else words.END_CONTENT,
        tpot=words.TPOT_OURS,
        itl=words.ITL_CHUNKS if run.chunks is not None else words.ITL_NONE,
        percentiles=words.PERCENTILES_LINEAR,
        zero_output=words.ZERO_OUTPUT_COUNTED,
        stream_errors=words.STREAM_ERROR_FAILED if table.responses else words.STREAM_ERROR_SUCCESS,
    )
    run.define(documents.config_source or "none", token_source=counted)
    run.define("the check throughput_denominator", throughput_denominator=divisor)


def _define_summary(run: ClientRun, setup: Setup) -> None:
    """What the figures of a summary mean where there are no rows."""
    run.define("definitions of AIPerf", percentiles=words.PERCENTILES_LINEAR)
    if setup.known:
        counted = words.TOKENS_USAGE if setup.server_counts else words.TOKENS_LOCAL
        run.define("the configuration", token_source=counted)


def _first_slice(slices: Slices | None) -> int | None:
    return slices.first_start_ns if slices else None


def _reported(family: Family, documents: Documents) -> Iterator[dict[str, Any]]:
    if documents.summary is not None:
        yield from documents.summary.rows()
    if documents.slices is not None:
        yield from documents.slices.rows
    server = family.first(Kind.SERVER) or family.first(Kind.PHASE_SERVER)
    if server is not None:
        yield from server_rows(documents.server, server.name)
    elif file := family.first(Kind.SERVER_CSV):
        yield from server_csv_rows(file)


def _telemetry(
    run: ClientRun, family: Family, documents: Documents, intake: Intake, bad: BadRows, options: Options
) -> Spool:
    gpus = None

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal gpus
        if file := family.first(Kind.SCRAPES):
            yield from scrapes(file, bad, server_units(documents.server))
        elif file := family.first(Kind.SCRAPES_PARQUET):
            yield from parquet_scrapes(file)
        else:
            yield from server_slices(documents.server)
        if file := family.first(Kind.GPU):
            gpus = Gpus(file, bad)
            yield from gpus.rows()
        if file := family.first(Kind.NETWORK):
            yield from network_rows(file, bad)

    spool = _spool("telemetry", _TELEMETRY_COLUMNS, rows(), intake, options)
    if gpus is not None:
        file = family.first(Kind.GPU)
        run.know(file.name if file else "", gpus.facts)
    return spool


def _spool(
    table: str, columns: Iterable[str], rows: Iterable[dict[str, Any]], intake: Intake, options: Options
) -> Spool:
    spool = Spool(table, tuple(columns), intake.scratch)
    for number, row in enumerate(rows, 1):
        spool.append(row)
        if number % _STEP == 0:
            options.step(None, f"{number:,} rows of {table}")
    return spool


def not_recorded(family: Family, table: Table | None) -> list[str]:
    """What this level of export lacks, a sentence each."""
    found = []
    if table is None:
        found.append("Single requests: the files hold the tool's own summary, so nothing is recomputed.")
    else:
        if not table.responses:
            found.append(
                "How a stream ended: without raw records, one that broke off after some content looks like a success."
            )
        if not table.chunks.count:
            found.append("Times of single chunks.")
        elif table.chunks.count > MOST:
            found.append(f"Times of single chunks: {table.chunks.count:,} are more than the {MOST:,} that are kept.")
        if not table.cached_known:
            found.append("Cached prompt tokens: the server did not report them with its responses.")
        if Kind.LOG not in family.files:
            found.append(
                "Requests that were canceled when the grace ended: they leave no record, and the log that counts them "
                "is not among the files."
            )
        found.append(f"{words.INSIDE_ENGINE}: arrival, admission, preemption, passes and KV blocks.")
        if table.agentic and any(tally.rows for tally in (table.tallies["warmup"],)):
            found.append(
                "Which warm-up requests only fill the cache: AIPerf calls them all warm-up, and so does this run."
            )
    if not any(kind in family.files for kind in (Kind.SERVER, Kind.SERVER_CSV, Kind.SCRAPES, Kind.SCRAPES_PARQUET)):
        found.append("Figures of the server.")
    if Kind.GPU not in family.files:
        found.append("Figures of the GPUs over time.")
    if not any(kind in family.files for kind in (Kind.SUMMARY, Kind.SUMMARY_CSV)):
        found.append("The tool's own summary.")
    return found


def _lineage(documents: Documents, windows: Windows) -> dict[str, Any]:
    summary = documents.summary
    return {
        "summary_schema": summary.schema if summary else None,
        "benchmark_id": dig(summary.document, "benchmark_id") if summary else None,
        "profile_window": windows.profile.source if windows.profile else "nothing says when the profile began",
    }
