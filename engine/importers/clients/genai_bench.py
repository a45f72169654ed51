"""genai-bench results: a file per scenario and concurrency, the metadata of the experiment beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from engine import definitions as words
from engine.bundle import Check, Phase, Spool, spooled
from engine.errors import GapscopeError
from engine.identity import Identity
from engine.importers.clients import flags
from engine.importers.clients.reproduce import Figure, compare, reported_rows, reproduced
from engine.importers.clients.run import REPORTED_COLUMNS, ClientRun, seal
from engine.importers.clients.summaries import Meaning
from engine.importers.clients.times import durations
from engine.importers.clients.values import count, first_keys, mapping, ns, text
from engine.importers.clients.within import Spans
from engine.importers.contract import Options, Part, Use
from engine.intake import BadRows, InputFile, Intake, json_document
from engine.intake.rows import number

TOOL = "genai-bench"
MEANINGS: dict[str, Meaning] = {
    "ttft": ("ttft", "", "first content of any kind - start"),
    "tpot": ("tpot", "", "(latency - TTFT) / (output tokens - 1), one value per request"),
    "e2e_latency": ("e2e", "", "end - start"),
    "output_latency": (None, "", "latency - TTFT"),
    "output_inference_speed": (None, "tokens/s", "1 / TPOT"),
    "num_input_tokens": ("input_tokens", "tokens", "tokens of the prompt"),
    "num_output_tokens": ("output_tokens", "tokens", "tokens of the response"),
    "num_reasoning_tokens": (None, "tokens", None),
    "total_tokens": (None, "tokens", None),
    "input_throughput": (None, "tokens/s", "input tokens / TTFT, one value per request"),
    "output_throughput": (None, "tokens/s", "(output tokens - 1) / output latency, one value per request"),
}
_RATE = "/ duration of the run"
_FIGURES: dict[str, Meaning] = {
    "requests_per_second": ("request_rate", "requests/s", f"completed requests {_RATE}"),
    "mean_output_throughput_tokens_per_s": ("output_rate", "tokens/s", f"output tokens {_RATE}"),
    "mean_total_tokens_throughput_tokens_per_s": ("total_rate", "tokens/s", f"input and output tokens {_RATE}"),
    "mean_input_throughput_tokens_per_s": (None, "tokens/s", f"input tokens {_RATE}"),
    "run_duration": (None, "s", None),
    "error_rate": (None, None, None),
    "num_error_requests": (None, "requests", None),
    "num_completed_requests": (None, "requests", None),
    "num_requests": (None, "requests", None),
}
_TIMES = ("ttft", "tpot", "e2e_latency", "output_latency")
_SECONDS = {"s": 1.0, "ms": 1e-3}
_COLUMNS = (
    *("request_id", "phase", "status", "tool_status", "flags", "error_type", "error_message", "dispatched_ns"),
    *("first_visible_after_ns", "last_visible_after_ns", "end_after_ns", "input_tokens", "output_tokens"),
    "reasoning_tokens",
)
_STEP = 2_000


class GenAiBench:
    """Each file of a folder is a run; the metadata of the experiment serves all of them."""

    name = "genai-bench"
    describes = "results of genai-bench: a JSON per concurrency with aggregated_metrics, and experiment_metadata"

    def find(self, intake: Intake) -> Sequence[Part]:
        """One part per file."""
        parts = []
        for file in intake.files:
            keys = first_keys(file.head)
            if {"scenario", "num_concurrency"} <= keys.get("aggregated_metrics", frozenset()):
                parts.append(self._part(intake, file))
        return parts

    def _part(self, intake: Intake, file: InputFile) -> Part:
        metadata = next(iter(intake.beside(file, is_metadata)), None)
        uses = [Use(file, "statistics and a value per request")]
        if metadata is not None:
            uses.append(Use(metadata, "what ran, and how"))
        name = file.base.partition(".json")[0]
        notes = ("Requests of one token or of a very short response have no row: genai-bench drops them.",)
        run = partial(_import, intake, file, metadata, name)
        return Part(self.name, TOOL, None, name, "measured", tuple(uses), run, (), notes)


def is_metadata(file: InputFile) -> bool:
    """Whether a file is the metadata of an experiment."""
    return {"benchmark_version", "api_backend", "traffic_scenario"} <= first_keys(file.head).keys()


def _object(file: InputFile) -> dict[str, Any]:
    document = json_document(file)
    if not isinstance(document, dict):
        raise GapscopeError(f"{file.name} holds no object: expected a result of genai-bench.")
    return document


def _import(
    intake: Intake, file: InputFile, metadata: InputFile | None, name: str, store: Path, options: Options
) -> str:
    options.step(None, f"reading {file.name}")
    document = _object(file)
    about = {} if metadata is None else _object(metadata)
    unit = text(document.get("_time_unit")) or text(about.get("metrics_time_unit")) or "s"
    if unit not in _SECONDS:
        raise GapscopeError(f"{file.name}: _time_unit is {unit!r}, expected s or ms.")
    totals = mapping(document.get("aggregated_metrics"))
    rows = document.get("individual_request_metrics") or []
    if not isinstance(rows, list):
        raise GapscopeError(f"{file.name}: individual_request_metrics is no list, expected one object per request.")
    run = ClientRun(GenAiBench.name, TOOL, text(about.get("benchmark_version")), name, Identity())
    run.bad = BadRows(options.skip_bad_rows)
    run.kind = "measured" if rows else "imported_summary"
    run.sources = [file] if metadata is None else [file, metadata]
    cap = count(totals.get("num_concurrency"))
    run.title = f"{name}: {text(totals.get('scenario')) or 'unknown scenario'}, {cap} at once, genai-bench"
    run.reported = spooled("reported", _reported(totals, unit, file.name), REPORTED_COLUMNS, intake.scratch)
    length = number(totals.get("run_duration"))
    if rows:
        spans = _requests(run, rows, _SECONDS[unit], file.name, intake, options)
        run.checks += [
            reproduced(_recomputed(rows, totals), file.name),
            _counted(totals, len(rows)),
            spans.check(length, file.name),
        ]
        run.not_recorded += [
            "When a request was sent: no concurrency and no time line can be computed.",
            "The times of single chunks or tokens.",
        ]
    if length and length > 0:
        run.phases = [Phase("profile", 0, ns(length) or 0)]
    run.define(
        "format genai-bench",
        first_token=words.FIRST_CONTENT,
        end_of_latency=words.END_CONTENT,
        token_source=words.TOKENS_USAGE_OR_LOCAL,
        tpot=words.TPOT_OURS,
        itl=words.ITL_NONE,
        percentiles=words.PERCENTILES_LINEAR,
        throughput_denominator="the run's duration",
        zero_output="the benchmark stops; a response of one token has no row",
        stream_errors="the benchmark stops",
    )
    run.know(file.name, [("client", "lanes", cap), ("client", "loop", "closed"), ("client", "streaming", True)])
    if metadata is not None:
        run.know(metadata.name, _facts(about))
    run.lineage = {"scenario": text(totals.get("scenario")), "iteration_type": text(totals.get("iteration_type"))}
    return seal(run, store, options)


def _facts(about: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
    """What the metadata says; the server's side is as the user told the tool."""
    parts = text(about.get("server_gpu_count")) or ""
    return [
        ("model", "name", text(about.get("model")) or text(about.get("api_model_name"))),
        ("tokenizer", "name", text(about.get("server_model_tokenizer"))),
        ("source", "engine", text(about.get("server_engine"))),
        ("source", "version", text(about.get("server_version"))),
        ("hardware", "part", text(about.get("server_gpu_type"))),
        ("hardware", "count", int(parts) if parts.isdecimal() and len(parts) < 9 else None),
        ("client", "duration_s", number(about.get("max_time_per_run_s"))),
    ]


def _requests(run: ClientRun, rows: list[Any], seconds: float, where: str, intake: Intake, options: Options) -> Spans:
    """Fill the table of requests; returns how long each took."""
    run.requests, spans = Spool("requests", _COLUMNS, intake.scratch), Spans()
    width = len(str(len(rows)))
    for place, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            run.bad.add(f"{where} request {place}", "expected an object per request")
            continue
        run.requests.append(_entry(row, f"{place:0{width}d}", seconds))
        latency = number(row.get("e2e_latency"))
        spans.take(f"{place:0{width}d}", 0.0, None if latency is None else latency * seconds)
        if place % _STEP == 0:
            options.step(place / len(rows), f"{place:,} of {len(rows):,} requests")
    return spans


def _entry(row: Mapping[str, Any], request_id: str, seconds: float) -> dict[str, Any]:
    code, tokens = count(row.get("error_code")), count(row.get("num_output_tokens"))
    entry: dict[str, Any] = {
        "request_id": request_id,
        "phase": "profile",
        "input_tokens": count(row.get("num_input_tokens")),
        "output_tokens": tokens,
        "reasoning_tokens": count(row.get("num_reasoning_tokens")),
    }
    message = text(row.get("error_message"))
    if code is not None or message:
        kind = None if code is None else f"HTTP {code}"
        entry["output_tokens"] = entry["reasoning_tokens"] = None
        return entry | {"status": "error", "tool_status": "error", "error_type": kind, "error_message": message}
    first, end = (_times(number(row.get(name)), seconds) for name in ("ttft", "e2e_latency"))
    noticed = []
    if tokens == 0:
        noticed.append(flags.ZERO_OUTPUT)
    elif tokens is None:
        noticed.append(flags.NO_TOKEN_COUNT)
    found, wrong = durations(None if tokens == 0 else first, None if tokens == 0 else end, None)
    return entry | found | {"status": "ok", "tool_status": "completed", "flags": flags.joined([*noticed, *wrong])}


def _times(value: float | None, seconds: float) -> int | None:
    return None if value is None else ns(value * seconds)


def _reported(totals: Mapping[str, Any], unit: str, source: str) -> Iterator[dict[str, Any]]:
    n = count(totals.get("num_completed_requests"))
    for name, block in mapping(totals.get("stats")).items():
        metric, of, definition = MEANINGS.get(name, (None, None, None))
        yield from reported_rows(
            "run",
            name,
            mapping(block),
            source,
            unit=unit if name in _TIMES else of,
            metric=metric,
            definition=definition,
            n=n,
        )
    for name, (metric, of, definition) in _FIGURES.items():
        word = "mean" if metric else "value"
        yield from reported_rows(
            "run", name, {word: totals.get(name)}, source, unit=of, metric=metric, definition=definition
        )
    for code, times in mapping(totals.get("error_codes_frequency")).items():
        yield from reported_rows("run", "errors", {"count": times}, source, labels=f"code {code}")


def _recomputed(rows: Sequence[Any], totals: Mapping[str, Any]) -> list[Figure]:
    """The statistics from the rows, in the file's own unit."""
    good = [r for r in rows if isinstance(r, dict) and r.get("error_code") is None and not r.get("error_message")]
    stats = {name: mapping(block) for name, block in mapping(totals.get("stats")).items()}
    samples = {
        name: np.asarray([v for row in good if (v := number(row.get(name))) is not None], np.float64) for name in stats
    }
    told = {name: {word: v for word, v in block.items() if len(samples[name])} for name, block in stats.items()}
    return list(compare(samples, told))


def _counted(totals: Mapping[str, Any], rows: int) -> Check:
    """Rows against what was asked; those that are missing were dropped, nobody says why."""
    asked, done, lost = (count(totals.get(k)) for k in ("num_requests", "num_completed_requests", "num_error_requests"))
    said = f"{rows} rows; the summary says {_told(asked)} asked, {_told(done)} completed, {_told(lost)} failed"
    dropped = "how many requests were dropped (one token, very short responses) is not recorded"
    if asked is None:
        return Check("rows_counted", "unknown", f"{said}; {dropped}")
    if rows == asked and (done is None or lost is None or done + lost == asked):
        return Check("rows_counted", "pass", f"{said}; {dropped}")
    return Check("rows_counted", "fail", f"{said}; {dropped}")


def _told(value: int | None) -> str:
    return "an unknown number" if value is None else str(value)
