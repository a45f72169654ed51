"""A benchmark of a GuideLLM report on its way into a bundle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from engine import definitions as words
from engine.bundle import Check, Phase, Spool, spooled
from engine.errors import GapscopeError
from engine.identity import Identity
from engine.importers.clients.bench import peak
from engine.importers.clients.guidellm.figures import figure_rows, recomputed
from engine.importers.clients.guidellm.rows import COLUMNS, OUTCOMES, Request
from engine.importers.clients.guidellm.tables import CsvRow
from engine.importers.clients.reproduce import reproduced
from engine.importers.clients.run import REPORTED_COLUMNS, ClientRun, seal
from engine.importers.clients.span import Span
from engine.importers.clients.values import count, dig, mapping, ns, text
from engine.importers.clients.within import Spans
from engine.importers.contract import Options
from engine.intake import BadRows, InputFile, Intake, json_document
from engine.intake.rows import number

FORMAT = "guidellm"
TOOL = "GuideLLM"
_STEP = 2_000
_DEFINITIONS = {
    "first_token": words.FIRST_CONTENT,
    "end_of_latency": words.END_CONTENT,
    "token_source": words.TOKENS_USAGE_OR_LOCAL,
    "tpot": words.TPOT_OURS,
    "itl": words.ITL_NONE,
    "percentiles": words.PERCENTILES_LINEAR,
    "throughput_denominator": "the measured window",
    "zero_output": words.ZERO_OUTPUT_COUNTED,
    "stream_errors": words.STREAM_ERROR_FAILED,
}
_TOOLS_OWN = {
    **_DEFINITIONS,
    "end_of_latency": words.END_RESPONSE,
    "tpot": "(last token - first token) / (output tokens - 1), weighted by tokens",
    "percentiles": "nearest rank, TPOT and ITL weighted by tokens",
    "zero_output": "an error",
}


def version_of(report: Mapping[str, Any]) -> str | None:
    """The tool's version, where the report says it (0.5 and later)."""
    return text(dig(report, "metadata", "guidellm_version"))


def import_benchmark(intake: Intake, file: InputFile, place: int, name: str, store: Path, options: Options) -> str:
    """Import one benchmark of a report.

    Raises:
        GapscopeError: the report changed since the plan, or holds requests that cannot be used.
    """
    options.step(None, f"reading {file.name}")
    report = json_document(file)
    found = [item for item in report["benchmarks"] if isinstance(item, dict)]
    if place >= len(found):
        raise GapscopeError(f"{file.name} has {len(found)} benchmarks, expected {place + 1}: it changed meanwhile.")
    benchmark = found[place]
    metrics = mapping(benchmark.get("metrics"))
    run = ClientRun(FORMAT, TOOL, version_of(report), name, Identity(), bad=BadRows(options.skip_bad_rows))
    run.sources = [file]
    run.title = f"{name}: {strategy(benchmark) or 'benchmark'}, GuideLLM"
    run.reported = spooled("reported", figure_rows(metrics, file.name), REPORTED_COLUMNS, intake.scratch)
    requests = list(_requests(mapping(benchmark.get("requests")), run.bad, f"{file.name} benchmark {place + 1}"))
    run.kind = "measured" if requests else "imported_summary"
    if requests:
        _rows(run, requests, benchmark, intake, options)
        figures = recomputed(requests, metrics)
        aside = "Percentiles by nearest rank, TPOT and ITL weighted by tokens; distributions over time apart."
        run.checks += [
            reproduced(figures, file.name, aside),
            _counted(benchmark, metrics, requests),
            _capped(benchmark, metrics, requests),
            _within(benchmark, requests, file.name),
            _prompts(requests),
        ]
        run.not_recorded.append("The times of single chunks: only how many there were.")
    run.define("format guidellm", **(_DEFINITIONS if requests else _TOOLS_OWN))
    run.know(file.name, facts(report, benchmark))
    run.lineage = {
        "run_id": text(dig(benchmark, "config", "run_id")) or text(benchmark.get("run_id")),
        "benchmark": place + 1,
        "warnings": [text(dig(w, "message")) for w in benchmark.get("warnings") or [] if isinstance(w, dict)],
    }
    return seal(run, store, options)


def import_row(intake: Intake, file: InputFile, row: CsvRow, name: str, store: Path, options: Options) -> str:
    """Import one benchmark of a CSV."""
    run = ClientRun(FORMAT, TOOL, row.version, name, Identity(), kind="imported_summary", sources=[file])
    run.title = f"{name}: {row.cell('Benchmark', 'Strategy') or 'benchmark'}, GuideLLM"
    run.reported = spooled("reported", row.rows(file.name), REPORTED_COLUMNS, intake.scratch)
    run.not_recorded.append("Single requests: the CSV has statistics only; the JSON report may have the requests.")
    backend = row.document("Run Info", "Backend")
    window = number_of(row.cell("Timings", "Duration"))
    run.know(file.name, [("model", "name", text(dig(backend, "model"))), ("client", "duration_s", window)])
    run.define("format guidellm", **_TOOLS_OWN)
    made = [row.count(outcome) for outcome in ("Successful", "Incomplete", "Errored", "Total")]
    if None not in made:
        good = sum(n for n in made[:3] if n is not None) == made[3]
        detail = f"{made[0]} successful, {made[1]} incomplete and {made[2]} errored of {made[3]}"
        run.checks.append(Check("rows_counted", "pass" if good else "fail", detail))
    return seal(run, store, options)


def number_of(cell: str) -> float | None:
    """A finite number of a cell, None of anything else."""
    try:
        return number(float(cell))
    except ValueError:
        return None


def strategy(benchmark: Mapping[str, Any]) -> str | None:
    """The load in words: ``concurrent, 4 streams``."""
    for path in (("config", "strategy"), ("scheduler", "strategy"), ("args", "strategy")):
        found = mapping(dig(benchmark, *path))
        kind = text(found.get("type_")) or text(found.get("type"))
        if kind:
            streams, rate = count(found.get("streams")), number(found.get("rate"))
            if streams is not None:
                return f"{kind}, {streams} streams"
            return f"{kind}, {rate:g} requests/s" if rate is not None else kind
    return None


def facts(report: Mapping[str, Any], benchmark: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
    """What a report says about the run, of any generation."""
    spec = mapping(dig(report, "config", "spec")) or mapping(report.get("args")) or mapping(benchmark.get("args"))
    backend = _backend(benchmark, spec)
    tokenizer = spec.get("tokenizer", spec.get("processor"))
    streams = count(dig(benchmark, "config", "strategy", "streams"))
    limit = mapping(dig(benchmark, "config", "constraints", "max_duration"))
    return [
        ("model", "name", text(backend.get("model")) or text(spec.get("model"))),
        ("tokenizer", "name", text(dig(tokenizer, "model")) or text(tokenizer)),
        ("client", "loop", strategy(benchmark)),
        ("client", "lanes", streams),
        ("client", "duration_s", number(dig(limit, "args", "seconds"))),  # what was asked for, not what it took
        ("client", "warmup_s", number(benchmark.get("warmup_duration"))),
        ("client", "seed", count(dig(spec, "seed", "value"))),
        ("client", "streaming", backend.get("stream") if isinstance(backend.get("stream"), bool) else None),
    ]


def _backend(benchmark: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    for place in (dig(benchmark, "config", "backend"), spec.get("backend"), benchmark.get("worker")):
        if isinstance(place, dict):
            return mapping(place.get("backend")) or place
    return {}


def _requests(lists: Mapping[str, Any], bad: BadRows, where: str) -> Iterator[Request]:
    for outcome in OUTCOMES:
        rows = lists.get(outcome)
        if rows is None:
            continue
        if not isinstance(rows, list):
            bad.add(f"{where} requests", f"{outcome} is no list, expected one object per request")
            continue
        for place, row in enumerate(rows, 1):
            try:
                yield Request.of(outcome, row)
            except ValueError as error:
                bad.add(f"{where} {outcome} request {place}", str(error))


def _window(benchmark: Mapping[str, Any], requests: Iterable[Request]) -> tuple[int, int | None, Span]:
    """Start and end of the measured window on the epoch, in nanoseconds, and the span of all requests."""
    span = Span()
    for request in requests:
        span.take(ns(request.start), ns(request.last), ns(request.end))
    scheduler = mapping(benchmark.get("scheduler_metrics"))
    start = ns(number(scheduler.get("measure_start_time"))) or ns(number(benchmark.get("start_time")))
    end = ns(number(scheduler.get("measure_end_time"))) or ns(number(benchmark.get("end_time")))
    return span.start if start is None else start, end, span


def _rows(
    run: ClientRun, requests: list[Request], benchmark: Mapping[str, Any], intake: Intake, options: Options
) -> None:
    start, end, span = _window(benchmark, requests)
    run.origin_ns = start
    run.profile_start_unix_ns = start or None
    run.requests = Spool("requests", COLUMNS, intake.scratch)
    seen: set[str] = set()
    for place, request in enumerate(requests, 1):
        request_id = text(dig(request.row, "info", "request_id")) or text(request.row.get("request_id")) or f"{place}"
        if request_id in seen:
            run.bad.add(f"{run.sources[0].name} request {place}", f"request_id {request_id} occurred before")
            continue
        seen.add(request_id)
        at = ns(request.before)
        phase = "warmup" if at is not None and at < start else "profile"
        run.requests.append(request.entry(request_id, phase))
        if place % _STEP == 0:
            options.step(place / len(requests), f"{place:,} of {len(requests):,} requests")
    run.phases = list(_phases(start, end, span, benchmark))


def _phases(start: int, end: int | None, span: Span, benchmark: Mapping[str, Any]) -> Iterator[Phase]:
    """The measured window, what was sent before it, and what went on after it."""
    if span.first is None or span.last is None:
        return
    stop = span.last if end is None or end <= start else end
    if span.first < start:
        yield Phase("warmup", span.first - start, 0)
    yield Phase("profile", 0, max(1, stop - start))
    if span.last > stop:
        yield Phase(
            "cooldown" if number(benchmark.get("cooldown_duration")) else "drain", stop - start, span.last - start
        )


def _counted(benchmark: Mapping[str, Any], metrics: Mapping[str, Any], requests: list[Request]) -> Check:
    """Rows against GuideLLM's three counts, which differ: in the metrics, made, and created by its scheduler."""
    rows = {outcome: sum(r.outcome == outcome for r in requests) for outcome in OUTCOMES}
    told = mapping(metrics.get("request_totals"))
    stated = {outcome: count(told.get(outcome)) for outcome in OUTCOMES}
    found = ", ".join(f"{n} {outcome}" for outcome, n in rows.items())
    state = mapping(benchmark.get("scheduler_state"))
    created, canceled = count(state.get("created_requests")), count(state.get("cancelled_requests"))
    aside = ""
    if created is not None and created > len(requests):
        words_ = f", {canceled} of them cancelled" if canceled is not None else ""
        aside = f"; the scheduler created {created}{words_}: {created - len(requests)} have no row"
    if None in stated.values():
        return Check("rows_counted", "unknown", f"rows: {found}; the report states no totals{aside}")
    if stated == rows:
        return Check("rows_counted", "pass", f"rows: {found}, as the report states{aside}")
    said = ", ".join(f"{n} {outcome}" for outcome, n in stated.items())
    sample = count(dig(benchmark, "config", "sample_size"))
    why = f" (sample_size {sample} keeps a part of the requests only)" if sample is not None else ""
    return Check("rows_counted", "fail", f"rows: {found}; the report states {said}{why}{aside}")


def _capped(benchmark: Mapping[str, Any], metrics: Mapping[str, Any], requests: list[Request]) -> Check:
    spans = [(r.start, r.end or r.last or r.start) for r in requests if r.start is not None]
    held = np.asarray(spans, np.float64).reshape(-1, 2)
    found = peak(held[:, 0], held[:, 1])
    cap = count(dig(benchmark, "config", "strategy", "streams"))
    told = number(dig(metrics, "request_concurrency", "total", "max"))
    says = "" if told is None else f"; the report says {told:g}"
    if cap is None:
        return Check("concurrency_capped", "unknown", f"at most {found} in flight, no cap is stated{says}")
    verdict = "pass" if found <= cap else "fail"
    return Check("concurrency_capped", verdict, f"at most {found} in flight where {cap} are allowed{says}")


def _within(benchmark: Mapping[str, Any], requests: list[Request], source: str) -> Check:
    """Requests against the whole time of the scheduler, warm-up included; older reports do not state it."""
    spans = Spans()
    for place, request in enumerate(requests, 1):
        spans.take(text(dig(request.row, "info", "request_id")) or f"{place}", request.start, request.end)
    start, end = (number(dig(benchmark, "scheduler_metrics", name)) for name in ("start_time", "end_time"))
    return spans.check(None if start is None or end is None else end - start, f"the scheduler of {source}")


def _prompts(requests: list[Request]) -> Check:
    """A prompt has tokens; zeros mean that the server counted none, or that prompts went out empty."""
    counts = [count(request.row.get("prompt_tokens")) for request in requests]
    empty = sum(n == 0 for n in counts)
    if not any(n is not None for n in counts):
        return Check("prompts_counted", "unknown", "no request has a count of prompt tokens")
    if empty:
        detail = f"{empty} of {len(counts)} requests have 0 prompt tokens: empty prompts, or a server that counts none"
        return Check("prompts_counted", "fail", detail)
    return Check("prompts_counted", "pass", f"{len(counts)} requests have a count of prompt tokens")
