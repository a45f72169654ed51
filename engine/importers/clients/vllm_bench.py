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
from engine.errors import GapscopeError
from engine.identity import Identity
from engine.importers.clients import flags
from engine.importers.clients.bench import (
    arrays,
    asked_and_seen,
    gaps,
    header_rows,
    peak,
    peak_check,
    statistics,
    summary_check,
)
from engine.importers.clients.outline import outline
from engine.importers.clients.run import REPORTED_COLUMNS, ClientRun, seal
from engine.importers.clients.times import durations, times
from engine.importers.clients.values import count, mapping, ns, text
from engine.importers.contract import Options, Part, Use
from engine.intake import BadRows, InputFile, Intake, json_documents
from engine.intake.rows import number

TOOL = "vLLM bench serve"
ARRAYS = ("input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times", "errors")
_HEADER = {"backend", "model_id", "num_prompts", "request_throughput"}
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
            if keys.keys() >= _HEADER - {"request_throughput"} and "dataset_name" not in keys:
                parts += _parts(intake, file)
        return parts


def _parts(intake: Intake, file: InputFile) -> list[Part]:
    total = sum(1 for _ in json_documents(file, BadRows(skip=True))) if file.size < _MANY else 1
    return [_part(intake, file, which, total) for which in range(1, max(total, 1) + 1)]


_MANY = 256 << 20
"""Files larger than this are taken for one document when the plan is made."""


def _part(intake: Intake, file: InputFile, which: int, total: int) -> Part:
    detailed = b'"ttfts"' in file.head or b'"itls"' in file.head
    if total > 1 or not detailed:
        document = _document(file, which, BadRows(skip=True))
        detailed = bool(document.get("ttfts"))
    sidecars = [
        (f.name, "a sidecar of other shape with the same figures") for f in intake.files if _is_sidecar(f, file)
    ]
    name = file.base.partition(".json")[0] + (f"-{which}" if total > 1 else "")
    what = "header and a value per request" if detailed else "header with statistics; no details were saved"
    return Part(
        format=VllmBench.name,
        tool=TOOL,
        version=None,
        name=name,
        kind="measured" if detailed else "imported_summary",
        uses=(Use(file, what + (f" (document {which} of {total})" if total > 1 else "")),),
        run=partial(_import, intake, file, which, name),
        ignores=tuple(sidecars),
        notes=() if detailed else ("Figures without rows: shown as stated, and not compared.",),
    )


def _is_sidecar(other: InputFile, file: InputFile) -> bool:
    stem = file.base.removesuffix(".json")
    return other is not file and other.folder == file.folder and other.base == f"{stem}.pytorch.json"


def _document(file: InputFile, which: int, bad: BadRows) -> dict[str, Any]:
    for place, document in json_documents(file, bad):
        if place == which:
            return mapping(document)
    raise GapscopeError(f"{file.name} holds no document {which}: expected one JSON object per run.")


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


@dataclass(frozen=True)
class _Rule:
    """How the chunks of a request are read: whether a role chunk comes first and a finish chunk last."""

    framed: bool
    usual_tokens: int | None
    timed: bool


def _import(intake: Intake, file: InputFile, which: int, name: str, store: Path, options: Options) -> str:
    bad = BadRows(options.skip_bad_rows)
    options.step(None, f"reading {file.name}")
    document = _document(file, which, bad)
    held = arrays(document, ARRAYS, file.name)
    detailed = "ttfts" in held and "output_lens" in held
    run = ClientRun(
        VllmBench.name, TOOL, None, name, Identity(), kind="measured" if detailed else "imported_summary", bad=bad
    )
    run.sources = [file]
    run.title = f"{name}: {text(document.get('model_id')) or 'unknown model'}, vLLM bench serve"
    chat = "chat" in (text(document.get("endpoint_type")) or text(document.get("backend")) or "")
    rule = _rule(chat, held)
    rows = _Rows()
    if detailed:
        run.requests = Spool("requests", _COLUMNS, intake.scratch)
        run.chunks = Spool("chunks", _CHUNKS, intake.scratch)
        _read(held, rule, run, rows, file.name, options)
    done = rows.ok if detailed else count(document.get("completed"))
    run.reported = spooled(
        "reported", header_rows(document, _LATENCIES, file.name, done), REPORTED_COLUMNS, intake.scratch
    )
    _phases(run, document, held)
    _define(run, document, chat, rule, "itls" in held)
    _know(run, document, file.name)
    if detailed:
        run.checks += _checks(document, rows, file.name, "start_times" in held, "latencies" in held)
    else:
        run.checks.append(asked_and_seen(document, document.get("num_prompts"), 0, 0, None))
    return seal(run, store, options)


def _rule(chat: bool, held: Mapping[str, list[Any]]) -> _Rule:
    """Chat endpoints frame the content with a role and a finish chunk, unless most rows count otherwise."""
    lengths = [count(value) for value in held.get("output_lens", [])]
    found = [(length, gaps(values)) for length, values in zip(lengths, held.get("itls", []), strict=False)]
    counted = [len(list_) - length for length, list_ in found if length and length > 1 and list_ is not None]
    framed = chat and counted.count(1) >= counted.count(-1)
    known = [length for length in lengths if length]
    usual = max(sorted(set(known)), key=known.count, default=None)
    if usual is not None and known.count(usual) * 2 <= len(known):
        usual = None
    return _Rule(framed, usual, "start_times" in held)


def _read(
    held: Mapping[str, list[Any]], rule: _Rule, run: ClientRun, rows: _Rows, where: str, options: Options
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
        _request(str(place), row, rule, run, rows)
        if place % 2000 == 0:
            options.step(place / total, f"{place:,} of {total:,} requests")


def _problem(row: Mapping[str, Any]) -> str | None:
    if row["output_lens"] is not None and count(row["output_lens"]) is None:
        return f"output_lens is {row['output_lens']!r:.40}, expected a count"
    for name in ("ttfts", "latencies", "start_times"):
        if row[name] is not None and not isinstance(row[name], int | float):
            return f"{name} is {row[name]!r:.40}, expected seconds"
    if row["itls"] is not None and gaps(row["itls"]) is None:
        return "itls holds something else than gaps in seconds"
    if row["errors"] is not None and not isinstance(row["errors"], str):
        return f"errors is {row['errors']!r:.40}, expected text"
    return None


def _request(request_id: str, given: Mapping[str, Any], rule: _Rule, run: ClientRun, rows: _Rows) -> None:
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
        first, last = _content(ttft, between, latency, tokens, rule, noticed)
        _chunks(run, request_id, start, ttft, between, tokens, rule, noticed)
    found, wrong = _placed(start, first, last, latency, rule.timed)
    run.requests.append({**row, **found, "flags": flags.joined((*noticed, *wrong))})


def _content(
    ttft: float | None, between: list[float] | None, latency: float | None, tokens: int, rule: _Rule, noticed: set[str]
) -> tuple[float | None, float | None]:
    """First and last content in seconds since dispatch."""
    if ttft is None:
        return None, None
    if between is None:
        return ttft, latency
    contents = len(between) + (0 if rule.framed else 1)
    finished = True
    if rule.framed:
        if not between:
            return None, None  # one chunk of an unknown kind
        if len(between) == tokens:
            # As many as without a finish chunk, or as with one and two tokens in one chunk.
            finished = not (rule.usual_tokens is not None and tokens < rule.usual_tokens)
            noticed.add(flags.UNFINISHED if not finished else flags.UNFINISHED_OR_BURST)
        contents = len(between) - finished
    if contents < tokens and flags.UNFINISHED_OR_BURST not in noticed:
        noticed.add(flags.BURST)
    if not rule.framed:
        return ttft, ttft + sum(between)
    kept = between[:-1] if finished and len(between) > 1 else between
    return ttft + between[0], ttft + sum(kept)


def _chunks(
    run: ClientRun,
    request_id: str,
    start: float | None,
    ttft: float | None,
    between: list[float] | None,
    tokens: int,
    rule: _Rule,
    noticed: set[str],
) -> None:
    if ttft is None or between is None or run.chunks is None:
        return
    times_s = ttft + np.concatenate([[0.0], np.cumsum(between)])
    finished = rule.framed and flags.UNFINISHED not in noticed
    single = len(between) + (0 if rule.framed else 1) - finished == tokens
    for ordinal, after in enumerate(times_s.tolist()):
        frame = rule.framed and (ordinal == 0 or (finished and ordinal == len(between)))
        run.chunks.append(
            {
                "request_id": request_id,
                "ordinal": ordinal,
                "time_ns": None if start is None else ns(start + after),
                "after_ns": ns(after) if start is None else None,
                "tokens": 0 if frame else 1 if single else None,
                "visible": not frame,
            }
        )


def _placed(
    start: float | None, first: float | None, last: float | None, end: float | None, timed: bool
) -> tuple[dict[str, int | None], list[str]]:
    if not timed or start is None:
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


def _define(run: ClientRun, document: Mapping[str, Any], chat: bool, rule: _Rule, chunked: bool) -> None:
    content = chunked or not chat
    run.define(
        "format of vLLM bench serve" + (", moved to the first and last content by the gaps" if rule.framed else ""),
        first_token=words.FIRST_CONTENT if content else words.ROLE_CHUNK,
        end_of_latency=words.END_CONTENT if content else words.END_CHUNK,
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
    zeros = [name for name, block in statistics(document).items() if set(block.values()) == {0}]
    if rows.ok == 0 and zeros:
        checks.append(
            Check("statistics_of_successes", "fail", "no request succeeded; the zeros of the header are no measurement")
        )
    return checks
