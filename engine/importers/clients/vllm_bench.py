"""vLLM ``bench serve`` results: one JSON document per run, with or without the details of each request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from engine import definitions as words
from engine.bundle import Check, Phase, Spool, spooled
from engine.identity import Identity
from engine.importers.clients import flags
from engine.importers.clients.appended import Document, documents
from engine.importers.clients.bench import (
    are_gaps,
    arrays,
    asked_and_seen,
    gaps,
    header_rows,
    peak,
    peak_check,
    statistics,
    summary_check,
)
from engine.importers.clients.framing import Framing, framing_of
from engine.importers.clients.outline import outline
from engine.importers.clients.run import REPORTED_COLUMNS, ClientRun, seal
from engine.importers.clients.times import durations, times
from engine.importers.clients.values import count, first_keys, ns, text
from engine.importers.contract import Options, Part, Use
from engine.intake import BadRows, InputFile, Intake
from engine.intake.rows import number

TOOL = "vLLM bench serve"
ARRAYS = ("input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times", "errors")
_HEADER = {"backend", "model_id", "num_prompts"}
_DETAILS = (b'"ttfts": [', b'"ttfts":[')
_COLUMNS = [
    "request_id",
    "phase",
    "status",
    "tool_status",
    "flags",
    "error_type",
    "error_message",
    "scheduled_ns",
    "dispatched_ns",
    "first_visible_ns",
    "last_visible_ns",
    "end_ns",
    "first_visible_after_ns",
    "last_visible_after_ns",
    "end_after_ns",
    "input_tokens",
    "output_tokens",
]
_CHUNKS = ("request_id", "ordinal", "time_ns", "after_ns", "tokens", "visible")
_LATENCIES = {
    "ttft": "first chunk with a choice - start; on a chat endpoint that is the role chunk, before any content",
    "tpot": "(last chunk with a choice - first) / (output tokens - 1), requests of more than one token",
    "itl": "gaps between chunks with a choice, pooled over requests; on a chat endpoint with role and finish chunk",
    "e2el": "last chunk with a choice - start",
}
_METADATA = {
    "hw": ("hardware", "part"),
    "tp": ("topology", "tp"),
    "pp": ("topology", "pp"),
    "ep": ("topology", "ep"),
}


class VllmBench:
    """Documents of a file, and files of a folder, are runs of their own."""

    name = "vllm bench serve"
    describes = "results of vLLM bench serve: JSON with backend, model_id and num_prompts, also appended ones"

    def find(self, intake: Intake) -> Sequence[Part]:
        """One part per document."""
        parts = []
        for file in intake.files:
            keys = outline(file.head)
            if keys.keys() >= _HEADER and "dataset_name" not in keys:
                parts += _parts(intake, file)
        return parts


def _parts(intake: Intake, file: InputFile) -> list[Part]:
    aside = tuple((other.name, why) for other in intake.files if (why := _again(other, file)))
    return [_part(intake, document, aside if document.place == 1 else ()) for document in documents(file, _DETAILS)]


def _part(intake: Intake, document: Document, ignores: tuple[tuple[str, str], ...]) -> Part:
    detailed = bool(document.marks)
    what = "header and a value per request" if detailed else "header with statistics; no details were saved"
    return Part(
        format=VllmBench.name,
        tool=TOOL,
        version=None,
        name=document.name,
        kind="measured" if detailed else "imported_summary",
        uses=(Use(document.file, what + document.among),),
        run=partial(_import, intake, document),
        ignores=ignores,
        notes=() if detailed else ("Figures without rows: shown as stated, and not compared.",),
    )


def _again(other: InputFile, file: InputFile) -> str | None:
    """Why a list beside a result is left out: it has the same figures; None of any other file."""
    if other is file or other.folder != file.folder or not other.head.lstrip().startswith(b"["):
        return None
    keys = first_keys(other.head)
    if "benchmark" in keys and keys.keys() <= {"benchmark", "model", "metric"}:
        return "a sidecar of other shape with the same figures"
    return "the results of several runs again, each of which has a file" if keys.keys() >= _HEADER else None


@dataclass
class _Rows:
    """What the rows add up to, in the tool's own terms."""

    ttft: list[float] = field(default_factory=list)
    tpot: list[float] = field(default_factory=list)
    itl: list[float] = field(default_factory=list)
    e2el: list[float] = field(default_factory=list)
    ok: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    spans: list[tuple[float, float]] = field(default_factory=list)


def _import(intake: Intake, found: Document, store: Path, options: Options) -> str:
    bad = BadRows(options.skip_bad_rows)
    file, name = found.file, found.name
    options.step(None, f"reading {found.where}")
    document = found.read()
    held = arrays(document, ARRAYS, found.where)
    detailed = "ttfts" in held and "output_lens" in held
    run = ClientRun(
        VllmBench.name, TOOL, None, name, Identity(), kind="measured" if detailed else "imported_summary", bad=bad
    )
    run.sources = [file]
    run.title = f"{name}: {text(document.get('model_id')) or 'unknown model'}, vLLM bench serve"
    chat = "chat" in (text(document.get("endpoint_type")) or text(document.get("backend")) or "")
    framing = _framing(chat, held)
    rows = _Rows()
    if detailed:
        run.requests = Spool("requests", _COLUMNS, intake.scratch)
        run.chunks = Spool("chunks", _CHUNKS, intake.scratch)
        _read(held, framing, run, rows, found.where, options)
    done = rows.ok if detailed else count(document.get("completed"))
    run.reported = spooled(
        "reported", header_rows(document, _LATENCIES, file.name, done), REPORTED_COLUMNS, intake.scratch
    )
    _phases(run, document, held)
    _define(run, chat, framing, "itls" in held)
    _know(run, document, file.name)
    if detailed:
        run.checks += _checks(document, rows, file.name, "start_times" in held, "latencies" in held)
    else:
        run.checks.append(asked_and_seen(document, document.get("num_prompts"), 0, 0, None))
    return seal(run, store, options)


def _framing(chat: bool, held: Mapping[str, list[Any]]) -> Framing:
    """What stands around the content; without gaps nothing does that could be taken off."""
    if "itls" not in held:
        return Framing(False, None)
    pairs = zip(held.get("output_lens", []), held["itls"], strict=False)
    counted = ((count(length), gaps(values)) for length, values in pairs)
    return framing_of(chat, [(tokens, len(list_)) for tokens, list_ in counted if tokens and list_ is not None])


def _read(
    held: Mapping[str, list[Any]], framing: Framing, run: ClientRun, rows: _Rows, where: str, options: Options
) -> None:
    total = len(held["ttfts"])
    nothing: list[Any] = [None] * total
    columns = [held.get(name, nothing) for name in ARRAYS]
    starts = [number(value) for value in held.get("start_times", nothing)]
    run.origin_ns = min((found for start in starts if (found := ns(start)) is not None), default=0)
    for place, values in enumerate(zip(*columns, strict=True)):
        row = dict(zip(ARRAYS, values, strict=True))
        problem = _problem(row)
        if problem:
            run.bad.add(f"{where} request {place}", problem)
            continue
        _request(str(place), row, framing, run, rows)
        if place % 2000 == 0:
            options.step(place / total, f"{place:,} of {total:,} requests")


def _problem(row: Mapping[str, Any]) -> str | None:
    if row["output_lens"] is not None and count(row["output_lens"]) is None:
        return f"output_lens is {row['output_lens']!r:.40}, expected a count"
    for name in ("ttfts", "latencies", "start_times"):
        if row[name] is not None and not isinstance(row[name], int | float):
            return f"{name} is {row[name]!r:.40}, expected seconds"
    if not are_gaps(row["itls"]):
        return "itls holds something else than gaps in seconds"
    if row["errors"] is not None and not isinstance(row["errors"], str):
        return f"errors is {row['errors']!r:.40}, expected text"
    return None


def _request(request_id: str, given: Mapping[str, Any], framing: Framing, run: ClientRun, rows: _Rows) -> None:
    assert run.requests is not None
    start, ttft, latency = (number(given[name]) for name in ("start_times", "ttfts", "latencies"))
    row: dict[str, Any] = {
        "request_id": request_id,
        "phase": "profile",
        "input_tokens": count(given["input_lens"]),
    }
    waited = number(given["queue_times"])
    if start is not None:
        row["dispatched_ns"] = ns(start)
        row["scheduled_ns"] = ns(start - waited) if waited is not None and waited >= 0 else None
    if given["errors"]:
        rows.failed += 1
        kind = given["errors"].partition(":")[0].strip()[:80] or "error"
        message = {"error_type": kind, "error_message": given["errors"][:1000]}
        run.requests.append({**row, "status": "error", "tool_status": "error", **message})
        return
    between, tokens = gaps(given["itls"]), count(given["output_lens"])
    if latency is None and ttft is not None and between is not None:
        latency = ttft + sum(between)
    _own_terms(rows, row["input_tokens"], tokens, ttft, between, latency, start)
    row |= {"status": "ok", "tool_status": "success", "output_tokens": tokens}
    noticed: set[str] = set()
    if not tokens:
        noticed.add(flags.ZERO_OUTPUT if tokens == 0 else flags.NO_TOKEN_COUNT)
        first = last = None
    else:
        first, last = _content(ttft, between, latency, tokens, framing, noticed)
        _chunks(run, request_id, start, ttft, between, tokens, framing)
    found, wrong = _placed(start, first, last, latency)
    run.requests.append({**row, **found, "flags": flags.joined((*noticed, *wrong))})


def _content(
    ttft: float | None,
    between: list[float] | None,
    latency: float | None,
    tokens: int,
    framing: Framing,
    noticed: set[str],
) -> tuple[float | None, float | None]:
    """First and last content in seconds since dispatch."""
    if ttft is None:
        return None, None
    if between is None:  # the gaps of this response are no numbers, or the file keeps none
        return (None, None) if framing.role else (ttft, None if framing.finish else latency)
    found = framing.content(len(between), tokens)
    noticed |= found.noticed
    if found.first is None or found.last is None:
        return None, None
    return ttft + sum(between[: found.first]), ttft + sum(between[: found.last])


def _chunks(
    run: ClientRun,
    request_id: str,
    start: float | None,
    ttft: float | None,
    between: list[float] | None,
    tokens: int,
    framing: Framing,
) -> None:
    if ttft is None or between is None or run.chunks is None:
        return
    found = framing.content(len(between), tokens)
    for ordinal, after in enumerate((ttft + np.concatenate([[0.0], np.cumsum(between)])).tolist()):
        content = found.first is not None and found.last is not None and found.first <= ordinal <= found.last
        run.chunks.append(
            {
                "request_id": request_id,
                "ordinal": ordinal,
                "time_ns": None if start is None else ns(start + after),
                "after_ns": ns(after) if start is None else None,
                "tokens": (1 if found.chunks == tokens else None) if content else 0,
                "visible": content,
            }
        )


def _placed(
    start: float | None, first: float | None, last: float | None, end: float | None
) -> tuple[dict[str, int | None], list[str]]:
    if start is None:
        return durations(ns(first), ns(last), ns(end))
    moved = [None if value is None else ns(start + value) for value in (first, last, end)]
    return times(ns(start), *moved)


def _own_terms(
    rows: _Rows,
    input_tokens: int | None,
    tokens: int | None,
    ttft: float | None,
    between: list[float] | None,
    latency: float | None,
    start: float | None,
) -> None:
    rows.ok += 1
    rows.input_tokens += input_tokens or 0
    rows.output_tokens += tokens or 0
    if ttft is not None:
        rows.ttft.append(ttft * 1e3)
    rows.itl += [gap * 1e3 for gap in between or ()]
    if latency is not None:
        rows.e2el.append(latency * 1e3)
        if tokens and tokens > 1 and ttft is not None:
            rows.tpot.append((latency - ttft) / (tokens - 1) * 1e3)
        if start is not None:
            rows.spans.append((start, start + latency))


def _phases(run: ClientRun, document: Mapping[str, Any], held: Mapping[str, list[Any]]) -> None:
    length = number(document.get("duration"))
    if length and length > 0:
        run.phases = [Phase("profile", 0, ns(length) or 0)]
    began = number(document.get("benchmark_start_time_unix"))
    run.profile_start_unix_ns = ns(began)
    if "ttfts" in held and "start_times" not in held:
        run.not_recorded.append("When a request was sent: no concurrency and no time line can be computed.")
    run.not_recorded.append("Request ids, conversations and reused prompt tokens.")


def _define(run: ClientRun, chat: bool, framing: Framing, chunked: bool) -> None:
    run.define(
        "format of vLLM bench serve" + (", moved to the first content by the gaps" if framing.role else ""),
        first_token=words.ROLE_CHUNK if chat and not chunked else words.FIRST_CONTENT,
        end_of_latency=words.END_CHUNK if framing.finish is None or not chunked else words.END_CONTENT,
        token_source=words.TOKENS_USAGE_OR_LOCAL,
        tpot=words.TPOT_OURS if run.kind == "measured" else _LATENCIES["tpot"],
        itl=words.ITL_CHUNKS,
        percentiles=words.PERCENTILES_LINEAR,
        throughput_denominator="the whole benchmark call",
        zero_output=words.ZERO_OUTPUT_COUNTED,
        stream_errors=words.STREAM_ERROR_SUCCESS,
    )


def _know(run: ClientRun, document: Mapping[str, Any], source: str) -> None:
    cap, rate = number(document.get("max_concurrency")), document.get("request_rate")
    run.know(
        source,
        [
            ("model", "name", text(document.get("model_id"))),
            ("tokenizer", "name", text(document.get("tokenizer_id"))),
            ("client", "lanes", None if cap is None else int(cap)),
            (
                "client",
                "loop",
                f"requests at {rate} a second" + (f", {cap:g} at most" if cap else "") if rate else None,
            ),
            ("client", "duration_s", number(document.get("duration"))),
            ("client", "streaming", True),
        ],
    )
    given = [(*_METADATA[key], _typed(document[key])) for key in _METADATA if document.get(key) is not None]
    run.know(f"{source}: metadata as given to the tool", given)


def _typed(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.isdecimal() else text(value)


def _checks(document: Mapping[str, Any], rows: _Rows, source: str, timed: bool, latencies: bool) -> list[Check]:
    own = {"ttft": rows.ttft, "itl": rows.itl, "tpot": rows.tpot, "e2el": rows.e2el}
    if rows.ok == 0:
        own = {}
    totals = {
        "completed": rows.ok,
        "failed": rows.failed,
        "total_input_tokens": rows.input_tokens,
        "total_output_tokens": rows.output_tokens,
        "request_throughput": rows.ok,
        "output_throughput": rows.output_tokens,
        "total_token_throughput": rows.input_tokens + rows.output_tokens,
    }
    aside = "" if latencies else "Latencies are not kept: they are the sums of TTFT and gaps."
    spans = np.asarray(rows.spans, np.float64).reshape(-1, 2)
    found = peak(spans[:, 0], spans[:, 1]) if timed and len(spans) else None
    checks = [
        summary_check(document, {name: np.asarray(values) for name, values in own.items()}, totals, source, aside),
        asked_and_seen(document, document.get("num_prompts"), rows.ok, rows.failed, rows.ok + rows.failed),
        peak_check(document.get("max_concurrent_requests"), document.get("max_concurrency"), found),
    ]
    zeros = [name for name, block in statistics(document).items() if block and all(value == 0 for value in block.values())]
    if rows.ok == 0 and zeros:
        checks.append(
            Check("statistics_of_successes", "fail", "no request succeeded; the zeros of the header are no measurement")
        )
    return checks
