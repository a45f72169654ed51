"""SGLang ``bench_serving`` results: a JSON line per run, appended, with or without the details of each request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from engine import definitions as words
from engine.bundle import Check, Spool, spooled
from engine.identity import Identity
from engine.importers.clients.appended import Document, documents
from engine.importers.clients.bench import (
    DETAILS,
    asked_and_seen,
    client_facts,
    header_rows,
    part_of,
    peak_check,
    phases_of,
    summary_check,
)
from engine.importers.clients.bench_rows import CHUNKS, arrays
from engine.importers.clients.outline import outline
from engine.importers.clients.reproduce import reported_rows
from engine.importers.clients.run import REPORTED_COLUMNS, ClientRun, seal
from engine.importers.clients.sglang_rows import (
    ARRAYS,
    COLUMNS,
    SglangTotals,
    counts_doubtful,
    read_rows,
    text_per_token,
)
from engine.importers.clients.values import count, mapping, text
from engine.importers.contract import Options, Part
from engine.intake import BadRows, Intake
from engine.intake.rows import number

TOOL = "SGLang bench_serving"
_HEADER = {"backend", "dataset_name", "random_range_ratio", "request_rate"}
_LATENCIES = {
    "ttft": "first delta with content - start; 0 for a success without content, and inside the mean",
    "tpot": "(end, usage chunk included - first delta) / (counted output tokens - 1), more than one token",
    "itl": "gaps between deltas, pooled; the native backend spreads each over the tokens of its chunk",
    "e2e_latency": "last chunk, the usage chunk included, - start",
}


class SglangBench:
    """Each line of a file is a run of its own."""

    name = "sglang bench_serving"
    describes = "results of SGLang bench_serving: JSON Lines with backend, dataset_name and random_range_ratio"

    def find(self, intake: Intake) -> Sequence[Part]:
        """One part per line."""
        files = [file for file in intake.files if outline(file.head).keys() >= _HEADER]
        return [
            part_of(document, self.name, TOOL, partial(_import, intake, document))
            for file in files
            for document in documents(file, DETAILS)
        ]


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
    rows, least, doubtful = SglangTotals(), None, False
    if detailed:
        least = text_per_token(held)
        run.requests = Spool("requests", COLUMNS, intake.scratch)
        run.chunks = None if native else Spool("chunks", CHUNKS, intake.scratch)
        doubtful = not native and counts_doubtful(document, held)
        read_rows(held, doubtful, least, run, rows, found.where, options)
        run.not_recorded.append("When a request was sent: no concurrency and no time line can be computed.")
        run.not_recorded.append("The end of a response: the latency ends with the last delta.")
        run.not_recorded.append("How a stream ended: an error inside it looks like a short response.")
        if native:
            run.not_recorded.append("The times of single chunks: the gap of each is spread over its tokens.")
    done = rows.ok if detailed else count(document.get("completed"))
    counts = {"ttft": done, "e2e_latency": done, "itl": len(rows.itl) if detailed else None}
    reported = [*header_rows(document, _LATENCIES, file.name, counts), *_cache_rows(document, file.name)]
    run.reported = spooled("reported", reported, REPORTED_COLUMNS, intake.scratch)
    run.phases = phases_of(document)
    run.define(
        "format of SGLang bench_serving",
        first_token=words.FIRST_CONTENT,
        end_of_latency=words.END_CONTENT if detailed else words.END_CHUNK,
        token_source=_token_source(native, doubtful, least),
        tpot=words.TPOT_OURS if detailed else _LATENCIES["tpot"],
        itl=words.ITL_SPREAD if native else words.ITL_CHUNKS,
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


def _cache_rows(document: Mapping[str, Any], source: str) -> list[dict[str, Any]]:
    report = mapping(document.get("cache_report"))
    return [row for name, value in report.items() for row in reported_rows("server", name, {"value": value}, source)]


def _know(run: ClientRun, document: Mapping[str, Any], info: Mapping[str, Any], source: str) -> None:
    lengths = [count(document.get(f"random_{side}_len")) for side in ("input", "output")]
    run.know(
        source,
        [
            *client_facts(document),
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


def _checks(
    document: Mapping[str, Any], rows: SglangTotals, source: str, detailed: bool, total: int | None
) -> list[Check]:
    if not detailed:
        return [asked_and_seen(document, None, 0, 0, None)]
    own = {"ttft": np.asarray(rows.ttft), "itl": np.asarray(rows.itl)} if rows.ok else {}
    aside = "E2E and TPOT cannot be recomputed: the end of a response is not kept."
    told, again = (number(document.get(f"total_output_tokens{end}")) for end in ("", "_retokenized"))
    checks = [
        summary_check(document, own, rows.sums("total_throughput"), source, aside),
        asked_and_seen(document, total, rows.ok, rows.failed, rows.ok + rows.failed),
        peak_check(document.get("max_concurrent_requests"), document.get("max_concurrency"), None),
        rows.spans.check(number(document.get("duration")), source),
        rows.unusable.check(),
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
