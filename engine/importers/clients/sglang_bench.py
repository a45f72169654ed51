"""SGLang ``bench_serving`` results: a JSON line per run, appended, with or without the details of each request."""

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
    peak_check,
    summary_check,
)
from engine.importers.clients.outline import outline
from engine.importers.clients.reproduce import reported_rows
from engine.importers.clients.run import REPORTED_COLUMNS, ClientRun, seal
from engine.importers.clients.times import durations
from engine.importers.clients.values import count, mapping, ns, text
from engine.importers.contract import Options, Part, Use
from engine.intake import BadRows, Intake
from engine.intake.rows import number

TOOL = "SGLang bench_serving"
ARRAYS = ("input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors", "cached_tokens")
_HEADER = {"backend", "dataset_name", "random_range_ratio", "request_rate"}
_COLUMNS = [
    "request_id",
    "phase",
    "status",
    "tool_status",
    "flags",
    "error_type",
    "error_message",
    "dispatched_ns",
    "first_visible_after_ns",
    "last_visible_after_ns",
    "end_after_ns",
    "input_tokens",
    "requested_output_tokens",
    "output_tokens",
    "cached_tokens",
]
_CHUNKS = ("request_id", "ordinal", "time_ns", "after_ns", "tokens", "visible")
_LATENCIES = {
    "ttft": "first delta with content - start; 0 for a success without content, and inside the mean",
    "tpot": "(end, usage chunk included - first delta) / (counted output tokens - 1), more than one token",
    "itl": "gaps between deltas, pooled; the native backend spreads each over the tokens of its chunk",
    "e2e_latency": "last chunk, the usage chunk included, - start",
}
_SHORT = 0.75
"""A text of less than this share of what its tokens would take at least was not that long."""
_DETAILS = (b'"ttfts": [', b'"ttfts":[')


class SglangBench:
    """Each line of a file is a run of its own."""

    name = "sglang bench_serving"
    describes = "results of SGLang bench_serving: JSON Lines with backend, dataset_name and random_range_ratio"

    def find(self, intake: Intake) -> Sequence[Part]:
        """One part per line."""
        files = [file for file in intake.files if outline(file.head).keys() >= _HEADER]
        return [_part(intake, document) for file in files for document in documents(file, _DETAILS)]


def _part(intake: Intake, document: Document) -> Part:
    detailed = bool(document.marks)
    what = "header and a value per request" if detailed else "header with statistics; no details were saved"
    return Part(
        format=SglangBench.name,
        tool=TOOL,
        version=None,
        name=document.name,
        kind="measured" if detailed else "imported_summary",
        uses=(Use(document.file, what + document.among),),
        run=partial(_import, intake, document),
        notes=() if detailed else ("Figures without rows: shown as stated, and not compared.",),
    )


@dataclass
class _Rows:
    """What the rows add up to, in the tool's own terms."""

    ttft: list[float] = field(default_factory=list)
    itl: list[float] = field(default_factory=list)
    ok: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    uncounted: int = 0


def _import(intake: Intake, found: Document, store: Path, options: Options) -> str:
    bad = BadRows(options.skip_bad_rows)
    file, name = found.file, found.name
    options.step(None, f"reading {found.where}")
    document = found.read()
    held = arrays(document, ARRAYS, found.where)
    detailed = "ttfts" in held and "output_lens" in held
    kind = "measured" if detailed else "imported_summary"
    info = mapping(document.get("server_info"))
    run = ClientRun(SglangBench.name, TOOL, None, name, Identity(), kind=kind, bad=bad, sources=[file])
    run.title = f"{name}: SGLang bench_serving, {text(document.get('backend')) or 'unknown backend'}"
    native = (text(document.get("backend")) or "") in ("sglang", "sglang-native")
    rows, least, doubtful = _Rows(), None, False
    if detailed:
        least = _text_per_token(held)
        run.requests = Spool("requests", _COLUMNS, intake.scratch)
        run.chunks = None if native else Spool("chunks", _CHUNKS, intake.scratch)
        doubtful = not native and _counts_doubtful(document, held)
        _read(held, doubtful, least, run, rows, found.where, options)
        run.not_recorded.append("When a request was sent: no concurrency and no time line can be computed.")
        run.not_recorded.append("The end of a response: the latency ends with the last delta.")
        run.not_recorded.append("How a stream ended: an error inside it looks like a short response.")
        if native:
            run.not_recorded.append("The times of single chunks: the gap of each is spread over its tokens.")
    done = rows.ok if detailed else count(document.get("completed"))
    reported = [*header_rows(document, _LATENCIES, file.name, done), *_cache_rows(document, file.name)]
    run.reported = spooled("reported", reported, REPORTED_COLUMNS, intake.scratch)
    length = number(document.get("duration"))
    if length and length > 0:
        run.phases = [Phase("profile", 0, ns(length) or 0)]
    run.define(
        "format of SGLang bench_serving",
        first_token=words.FIRST_CONTENT,
        end_of_latency=words.END_CONTENT if detailed else words.END_CHUNK,
        token_source=_token_source(native, doubtful, least),
        tpot=words.TPOT_OURS if detailed else _LATENCIES["tpot"],
        itl="gaps between chunks, each spread over its tokens, pooled" if native else words.ITL_CHUNKS,
        percentiles=words.PERCENTILES_LINEAR,
        throughput_denominator="the whole benchmark call",
        zero_output=words.ZERO_OUTPUT_COUNTED,
        stream_errors=words.STREAM_ERROR_UNSEEN,
    )
    _know(run, document, info, file.name)
    run.checks += _checks(document, rows, file.name, detailed, None if not detailed else len(held["ttfts"]))
    return seal(run, store, options)


def _token_source(native: bool, doubtful: bool, least: float | None) -> str:
    if native:
        return words.TOKENS_USAGE
    if not doubtful:
        return words.TOKENS_USAGE_OR_REQUESTED
    return words.TOKENS_REQUESTED if least is None else words.TOKENS_BORNE_OUT


def _counts_doubtful(document: Mapping[str, Any], held: Mapping[str, list[Any]]) -> bool:
    """Whether the counts may be the requested lengths.

    An answer of nothing that is counted with tokens proves it; where all have one length and fewer tokens come of the
    texts, it is likely.
    """
    nothing = [""] * len(held["output_lens"])
    columns = (
        held["output_lens"],
        held["ttfts"],
        held.get("generated_texts") or nothing,
        held.get("errors") or nothing,
    )
    good = [(count(n), ttft, words_) for n, ttft, words_, error in zip(*columns, strict=True) if not error]
    if "generated_texts" in held and any(n and not number(ttft) and not words_ for n, ttft, words_ in good):
        return True
    told, again = number(document.get("total_output_tokens")), number(document.get("total_output_tokens_retokenized"))
    return told is not None and again is not None and told > again and len({n for n, _, _ in good}) == 1


def _text_per_token(held: Mapping[str, list[Any]]) -> float | None:
    """Fewest characters a token took in responses whose chunks are as many as their tokens; None without any."""
    if "generated_texts" not in held or "itls" not in held:
        return None
    found = []
    for length, between, words_ in zip(held["output_lens"], held["itls"], held["generated_texts"], strict=True):
        tokens, list_ = count(length), gaps(between)
        if tokens and list_ is not None and isinstance(words_, str) and len(list_) + 1 == tokens and words_:
            found.append(len(words_) / tokens)
    return min(found, default=None)


def _read(
    held: Mapping[str, list[Any]],
    doubtful: bool,
    least: float | None,
    run: ClientRun,
    rows: _Rows,
    where: str,
    options: Options,
) -> None:
    total = len(held["ttfts"])
    columns = [held.get(name, [None] * total) for name in ARRAYS]
    for place, values in enumerate(zip(*columns, strict=True)):
        row = dict(zip(ARRAYS, values, strict=True))
        problem = _problem(row)
        if problem:
            run.bad.add(f"{where} request {place}", problem)
            continue
        _request(str(place), row, doubtful, least, run, rows)
        if place % 2000 == 0:
            options.step(place / total, f"{place:,} of {total:,} requests")


def _problem(row: Mapping[str, Any]) -> str | None:
    if row["output_lens"] is not None and count(row["output_lens"]) is None:
        return f"output_lens is {row['output_lens']!r:.40}, expected a count"
    if row["ttfts"] is not None and not isinstance(row["ttfts"], int | float):
        return f"ttfts is {row['ttfts']!r:.40}, expected seconds"
    if not are_gaps(row["itls"]):
        return "itls holds something else than gaps in seconds"
    for name in ("errors", "generated_texts"):
        if row[name] is not None and not isinstance(row[name], str):
            return f"{name} is {row[name]!r:.40}, expected text"
    return None


def _request(
    request_id: str, given: Mapping[str, Any], doubtful: bool, least: float | None, run: ClientRun, rows: _Rows
) -> None:
    assert run.requests is not None
    row: dict[str, Any] = {"request_id": request_id, "phase": "profile", "input_tokens": count(given["input_lens"])}
    if given["errors"]:
        rows.failed += 1
        kind = given["errors"].partition(":")[0].strip()[:80] or "error"
        message = {"error_type": kind, "error_message": given["errors"][:1000]}
        run.requests.append({**row, "status": "error", "tool_status": "error", **message})
        return
    ttft, between, tokens = number(given["ttfts"]), gaps(given["itls"]), count(given["output_lens"])
    row["requested_output_tokens"] = tokens if doubtful else None
    rows.ok += 1
    rows.input_tokens += row["input_tokens"] or 0
    rows.output_tokens += tokens or 0
    rows.itl += [gap * 1e3 for gap in between or ()]
    if ttft is not None:
        rows.ttft.append(ttft * 1e3)
    noticed: set[str] = set()
    words_ = given["generated_texts"]
    if not ttft and not between and not words_:
        noticed.add(flags.ZERO_OUTPUT)
        tokens, ttft = 0, None
    elif tokens is None:
        noticed.add(flags.NO_TOKEN_COUNT)
    elif between is not None and len(between) + 1 < tokens:
        if not doubtful:
            noticed.add(flags.BURST)
        elif least is None or not words_ or len(words_) < _SHORT * least * tokens:
            noticed.add(flags.ASKED_LENGTH)
            tokens = None if least is not None else tokens
            rows.uncounted += 1
        else:
            noticed.add(flags.BURST)
    last = None if ttft is None or between is None else ttft + sum(between)
    found, wrong = durations(ns(ttft), ns(last), None)
    row |= {
        "status": "ok",
        "tool_status": "success",
        "output_tokens": tokens,
        "cached_tokens": count(given["cached_tokens"]),
    }
    run.requests.append({**row, **found, "flags": flags.joined((*noticed, *wrong))})
    if ttft is not None and between is not None and run.chunks is not None:
        single = tokens is not None and len(between) + 1 == tokens
        for ordinal, after in enumerate((ttft + np.concatenate([[0.0], np.cumsum(between)])).tolist()):
            chunk = {"request_id": request_id, "ordinal": ordinal, "after_ns": ns(after), "visible": True}
            run.chunks.append({**chunk, "tokens": 1 if single else None})


def _cache_rows(document: Mapping[str, Any], source: str) -> list[dict[str, Any]]:
    report = mapping(document.get("cache_report"))
    return [row for name, value in report.items() for row in reported_rows("server", name, {"value": value}, source)]


def _know(run: ClientRun, document: Mapping[str, Any], info: Mapping[str, Any], source: str) -> None:
    cap, rate = number(document.get("max_concurrency")), document.get("request_rate")
    lengths = [count(document.get(f"random_{side}_len")) for side in ("input", "output")]
    run.know(
        source,
        [
            ("client", "lanes", None if cap is None else int(cap)),
            (
                "client",
                "loop",
                f"requests at {rate} a second" + (f", {cap:g} at most" if cap else "") if rate else None,
            ),
            ("client", "duration_s", number(document.get("duration"))),
            ("client", "streaming", True),
            ("trace", "name", text(document.get("dataset_name"))),
            ("trace", "format", f"{lengths[0]} tokens in, {lengths[1]} out" if None not in lengths else None),
        ],
    )
    if not info:
        return
    run.know(
        f"{source}: server_info",
        [
            ("source", "engine", "sglang"),
            ("source", "version", text(info.get("version"))),
            ("model", "name", text(info.get("served_model_name")) or text(info.get("model_path"))),
            ("model", "kv_dtype", text(info.get("kv_cache_dtype"))),
            ("model", "weights_dtype", text(info.get("dtype"))),
            ("topology", "tp", count(info.get("tp_size"))),
            ("topology", "pp", count(info.get("pp_size"))),
            ("topology", "ep", count(info.get("ep_size"))),
            ("topology", "attention_dp", count(info.get("dp_size"))),
            ("capacity", "block_size", count(info.get("page_size"))),
            ("capacity", "memory_fraction", number(info.get("mem_fraction_static"))),
            ("scheduler", "max_num_seqs", count(info.get("max_running_requests"))),
            ("scheduler", "policy", text(info.get("schedule_policy"))),
            ("speculation", "method", text(info.get("speculative_algorithm"))),
            ("kernels", "attention_backend", text(info.get("attention_backend"))),
        ],
    )


def _checks(document: Mapping[str, Any], rows: _Rows, source: str, detailed: bool, total: int | None) -> list[Check]:
    if not detailed:
        return [asked_and_seen(document, None, 0, 0, None)]
    own = {"ttft": np.asarray(rows.ttft), "itl": np.asarray(rows.itl)} if rows.ok else {}
    totals = {
        "completed": rows.ok,
        "total_input_tokens": rows.input_tokens,
        "total_output_tokens": rows.output_tokens,
        "request_throughput": rows.ok,
        "output_throughput": rows.output_tokens,
        "total_throughput": rows.input_tokens + rows.output_tokens,
    }
    aside = "E2E and TPOT cannot be recomputed: the end of a response is not kept."
    told, again = (number(document.get(f"total_output_tokens{end}")) for end in ("", "_retokenized"))
    checks = [
        summary_check(document, own, totals, source, aside),
        asked_and_seen(document, total, rows.ok, rows.failed, rows.ok + rows.failed),
        peak_check(document.get("max_concurrent_requests"), document.get("max_concurrency"), None),
    ]
    if told is not None and again is not None:
        agree = told == again
        words_ = f"{told:g} output tokens by the tool's count, {again:g} when its texts are tokenized again"
        if rows.uncounted:
            words_ += (
                f"; {rows.uncounted} responses were shorter than the length they are counted with, which is unknown"
            )
        checks.append(Check("tokens_counted", "pass" if agree else "fail", words_))
    return checks
