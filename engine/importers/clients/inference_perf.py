"""inference-perf: a list of requests, and summaries by stage and over all."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from engine import definitions as words
from engine.bundle import Check, Spool, spooled
from engine.errors import GapscopeError
from engine.identity import Identity
from engine.importers.clients import flags
from engine.importers.clients.plausible import statistics_ordered, units_plausible
from engine.importers.clients.reproduce import compare, reproduced
from engine.importers.clients.run import REPORTED_COLUMNS, ClientRun, seal
from engine.importers.clients.span import Span
from engine.importers.clients.summaries import Meaning, figure_rows
from engine.importers.clients.times import times
from engine.importers.clients.values import count, dig, first_keys, mapping, ns, text
from engine.importers.contract import Options, Part, Use
from engine.intake import BadRows, InputFile, Intake, json_document
from engine.intake.rows import number

TOOL = "inference-perf"
MEANINGS: dict[str, Meaning] = {
    "request_latency": ("e2e", "s", "end of the response - start"),
    "time_to_first_token": ("ttft", "s", "first chunk with content - start"),
    "time_per_output_token": ("tpot", "s", "(last token - first token) / (output tokens - 1), one value per request"),
    "inter_token_latency": ("chunk_gap", "s", "gaps between the times kept, one per chunk, pooled over requests"),
    "normalized_time_per_output_token": (None, "s", "latency / output tokens, the first token inside"),
    "prompt_len": ("input_tokens", "tokens", "tokens of the prompt, as the client counts them"),
    "output_len": ("output_tokens", "tokens", "tokens of the response, as the client counts them"),
    "input_tokens_per_sec": (None, "tok/s", "input tokens / benchmark time"),
    "output_tokens_per_sec": ("output_rate", "tok/s", "output tokens / benchmark time"),
    "total_tokens_per_sec": ("total_rate", "tok/s", "input and output tokens / benchmark time"),
    "requests_per_sec": ("request_rate", "req/s", "successes / benchmark time"),
    "schedule_delay": ("dispatch_lag", "s", "start - scheduled"),
    "send_duration": (None, "s", None),
    "requested_rate": (None, "req/s", "as asked for"),
    "achieved_rate": (None, "req/s", "requests sent / send duration"),
    "benchmark_time_seconds": (None, "s", None),
}
_COLUMNS = [
    "request_id",
    "phase",
    "status",
    "tool_status",
    "flags",
    "error_type",
    "error_message",
    "dispatched_ns",
    "first_visible_ns",
    "last_visible_ns",
    "end_ns",
    "input_tokens",
    "output_tokens",
]
_CHUNKS = ("request_id", "ordinal", "time_ns", "tokens", "visible")
_STEP = 2_000


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
            parts += [self._part(intake, folder, file, summaries[folder] * (file is lists[0])) for file in lists]
            if not lists:
                parts.append(self._part(intake, folder, None, summaries[folder]))
        return parts

    def _part(self, intake: Intake, folder: str, rows: InputFile | None, summaries: list[InputFile]) -> Part:
        uses = [Use(rows, "a row per request")] if rows else []
        uses += [Use(file, f"summary of {_label(file, summaries) or 'the run'}") for file in summaries]
        name = folder.rpartition("/")[2] or (rows or summaries[0]).base.partition(".")[0]
        notes = [] if rows else ["Figures without rows: shown as stated, and not compared."]
        if rows and not summaries:
            notes.append("No summary is among the files: nothing says whether the tool counted the same.")
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


def _label(file: InputFile, summaries: list[InputFile]) -> str | None:
    """What part of the run a summary is of; None: all of it. A stage says at which rate it was to send."""
    stage = b'"requested_rate"' in file.head
    if not stage or len(summaries) == 1:
        return None
    found = re.search(r"stage_(\d+)", file.base)
    return f"stage {found[1]}" if found else file.base


@dataclass
class Table:
    """The requests being read, and what the tool's figures are made of."""

    requests: Spool
    chunks: Spool
    span: Span = field(default_factory=Span)
    values: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    succeeded: int = 0
    failed: int = 0
    differ: int = 0
    asked: int = 0


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
        table = _read(rows, run.bad, intake, options)
        run.requests, run.chunks = table.requests, table.chunks
        run.origin_ns, run.phases = table.span.start, table.span.phases
        run.checks += [_tokens_check(table)]
    reported = list(_reported(documents, summaries))
    if documents:
        run.reported = spooled("reported", reported, REPORTED_COLUMNS, intake.scratch)
        run.checks += list(_summary_checks(documents, summaries, reported, table))
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


def _read(file: InputFile, bad: BadRows, intake: Intake, options: Options) -> Table:
    options.step(None, "reading the requests")
    document = json_document(file)
    if not isinstance(document, list):
        raise GapscopeError(f"{file.name} holds no list: expected the requests of inference-perf.")
    table = Table(Spool("requests", _COLUMNS, intake.scratch), Spool("chunks", _CHUNKS, intake.scratch))
    for place, item in enumerate(document):
        where = f"{file.name} request {place + 1}"
        start = ns(number(dig(item, "start_time")))
        if start is None:
            bad.add(where, "no start_time in seconds")
            continue
        _take(table, f"{place}", item, start)
        if place % _STEP == 0:
            options.step(place / len(document), f"{place:,} requests")
    return table


def _take(table: Table, request_id: str, item: dict[str, Any], start: int) -> None:
    info, error = mapping(item.get("info")), item.get("error")
    response = mapping(info.get("response_metrics")) or info
    end = ns(number(item.get("end_time")))
    prompt = count(dig(info, "request_metrics", "text", "input_tokens"))
    prompt = count(info.get("input_tokens")) if prompt is None else prompt
    output = count(response.get("output_tokens"))
    row: dict[str, Any] = {"request_id": request_id, "phase": "profile", "input_tokens": prompt}
    if error:
        table.failed += 1
        kind = text(dig(error, "error_type")) or ("error" if isinstance(error, dict) else text(error))
        table.span.take(start, end)
        table.requests.append(
            {
                **row,
                "status": "error",
                "tool_status": "failure",
                "error_type": kind,
                "error_message": text(dig(error, "error_msg")) or text(error),
                "dispatched_ns": start,
                "end_ns": end,
            }
        )
        return
    table.succeeded += 1
    stamps = [ns(number(value)) for value in _stamps(response)]
    visible = [stamp for stamp in stamps if stamp is not None]
    noticed = set()
    if not visible or output == 0:
        noticed.add(flags.ZERO_OUTPUT)
        visible, output = [], output or 0
    elif output is None:
        noticed.add(flags.NO_TOKEN_COUNT)
    elif len(visible) < output:
        noticed.add(flags.BURST)
    first, last = (visible[0], visible[-1]) if visible else (None, None)
    found, wrong = times(start, first, last, end)
    table.span.take(start, *visible[-1:], end)
    table.requests.append(
        {
            **row,
            **found,
            "status": "ok",
            "tool_status": "success",
            "flags": flags.joined((*noticed, *wrong)),
            "output_tokens": output,
        }
    )
    one_each = len(visible) == output
    for ordinal, stamp in enumerate(visible):
        table.chunks.append(
            {
                "request_id": request_id,
                "ordinal": ordinal,
                "time_ns": stamp,
                "tokens": 1 if one_each else None,
                "visible": True,
            }
        )
    _gather(table, response, (start, end, visible), prompt, output)


def _stamps(response: dict[str, Any]) -> list[Any]:
    found = response.get("output_token_times") or response.get("chunk_times")
    return found if isinstance(found, list) else []


def _gather(
    table: Table,
    response: dict[str, Any],
    at: tuple[int, int | None, list[int]],
    prompt: int | None,
    output: int | None,
) -> None:
    """What the tool's figures are made of, in seconds."""
    start, end, visible = at
    usage = count(dig(response, "server_usage", "completion_tokens"))
    if usage is not None and output is not None:
        table.asked += 1
        table.differ += usage != output
    values = table.values
    if prompt is not None:
        values["prompt_len"].append(prompt)
    if output is not None:
        values["output_len"].append(output)
    if end is not None:
        values["request_latency"].append((end - start) / 1e9)
        if output:
            values["normalized_time_per_output_token"].append((end - start) / 1e9 / output)
    if visible:
        values["time_to_first_token"].append((visible[0] - start) / 1e9)
        values["inter_token_latency"] += [(b - a) / 1e9 for a, b in pairwise(visible)]
        if output and output > 1:
            values["time_per_output_token"].append((visible[-1] - visible[0]) / 1e9 / (output - 1))


def _reported(documents: dict[InputFile, dict[str, Any]], summaries: list[InputFile]) -> Iterator[dict[str, Any]]:
    for file, document in documents.items():
        label = _label(file, summaries)
        scope = "slice" if label else "run"
        told = {key: document.get(key) for key in ("benchmark_time_seconds", "load_summary")}
        yield from figure_rows(told, MEANINGS, file.base, scope, label)
        successes = mapping(document.get("successes"))
        yield from figure_rows(successes, MEANINGS, file.base, scope, label, count(successes.get("count")))
        failures = {f"failed_{key}": value for key, value in mapping(document.get("failures")).items()}
        yield from figure_rows(failures, MEANINGS, file.base, scope, label)


def _tokens_check(table: Table) -> Check:
    if not table.asked:
        return Check("token_counts_agree", "unknown", "no request has both the client's and the server's count")
    detail = f"the client's count of output tokens is not the server's in {table.differ:,} of {table.asked:,} requests"
    return Check("token_counts_agree", "fail" if table.differ else "pass", detail)


def _summary_checks(
    documents: dict[InputFile, dict[str, Any]],
    summaries: list[InputFile],
    reported: list[dict[str, Any]],
    table: Table | None,
) -> Iterator[Check]:
    yield statistics_ordered(reported)
    whole = next((d for file, d in documents.items() if _label(file, summaries) is None), None)
    if whole is None:
        return
    source = next(file.base for file in documents if _label(file, summaries) is None)
    successes, latency = mapping(whole.get("successes")), mapping(dig(whole, "successes", "latency"))
    means = [number(dig(latency, key, "mean")) for key in ("request_latency", "time_to_first_token")]
    length = number(dig(successes, "output_len", "mean"))
    yield units_plausible(means[0], means[1], length, "figures taken as seconds")
    if table is None:
        return
    stated = {**latency, "prompt_len": successes.get("prompt_len"), "output_len": successes.get("output_len")}
    blocks = {name: block for name, block in stated.items() if isinstance(block, dict)}
    aside = "Rates were not computed again: the rows do not say how long the benchmark took."
    yield reproduced(list(compare(table.values, blocks)), source, aside)
    yield _counts(successes, mapping(whole.get("failures")), table, source)


def _counts(successes: dict[str, Any], failures: dict[str, Any], table: Table, source: str) -> Check:
    stated = count(successes.get("count")), count(failures.get("count"))
    found = table.succeeded, table.failed
    detail = f"{source} counts {stated[0]} successes and {stated[1]} failures, the rows hold {found[0]} and {found[1]}"
    return Check("rows_counted", "pass" if stated == found else "fail", detail)
