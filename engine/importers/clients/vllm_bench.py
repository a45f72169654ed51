"""vLLM ``bench serve`` results: one JSON document per run, with or without the details of each request."""

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
    peak,
    peak_check,
    phases_of,
    statistics,
    summary_check,
)
from engine.importers.clients.bench_rows import CHUNKS, arrays
from engine.importers.clients.framing import Framing
from engine.importers.clients.outline import outline
from engine.importers.clients.run import REPORTED_COLUMNS, ClientRun, seal
from engine.importers.clients.values import count, first_keys, ns, text
from engine.importers.clients.vllm_rows import ARRAYS, COLUMNS, VllmTotals, framing_in, read_rows
from engine.importers.contract import Options, Part
from engine.intake import BadRows, InputFile, Intake
from engine.intake.rows import number

TOOL = "vLLM bench serve"
_HEADER = {"backend", "model_id", "num_prompts"}
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
    return [
        part_of(
            document,
            VllmBench.name,
            TOOL,
            partial(_import, intake, document),
            aside if document.place == 1 else (),
        )
        for document in documents(file, DETAILS)
    ]


def _again(other: InputFile, file: InputFile) -> str | None:
    """Why a list beside a result is left out: it has the same figures; None of any other file."""
    if other is file or other.folder != file.folder or not other.head.lstrip().startswith(b"["):
        return None
    keys = first_keys(other.head)
    if "benchmark" in keys and keys.keys() <= {"benchmark", "model", "metric"}:
        return "a sidecar of other shape with the same figures"
    return "the results of several runs again, each of which has a file" if keys.keys() >= _HEADER else None


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
    framing = framing_in(chat, held)
    rows = VllmTotals()
    if detailed:
        run.requests = Spool("requests", COLUMNS, intake.scratch)
        run.chunks = Spool("chunks", CHUNKS, intake.scratch)
        length, failures = number(document.get("duration")), _some_failed(document, len(held["ttfts"]))
        read_rows(held, framing, length, failures, run, rows, found.where, options)
    done = rows.ok if detailed else count(document.get("completed"))
    counts = {"ttft": done, "e2el": done}
    if detailed:
        counts |= {"tpot": len(rows.tpot), "itl": len(rows.itl)}
    run.reported = spooled(
        "reported", header_rows(document, _LATENCIES, file.name, counts), REPORTED_COLUMNS, intake.scratch
    )
    _phases(run, document, held)
    _define(run, chat, framing, "itls" in held)
    _know(run, document, file.name)
    if detailed:
        run.checks += _checks(document, rows, file.name, "start_times" in held, "latencies" in held)
    else:
        run.checks.append(asked_and_seen(document, document.get("num_prompts"), 0, 0, None))
    return seal(run, store, options)


def _some_failed(document: Mapping[str, Any], total: int) -> bool:
    """Whether the header counts failures among ``total`` requests; older ones count the successes alone."""
    lost, done = number(document.get("failed")), number(document.get("completed"))
    return lost > 0 if lost is not None else done is not None and done < total


def _phases(run: ClientRun, document: Mapping[str, Any], held: Mapping[str, list[Any]]) -> None:
    run.phases = phases_of(document)
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
    run.know(
        source,
        [
            ("model", "name", text(document.get("model_id"))),
            ("tokenizer", "name", text(document.get("tokenizer_id"))),
            *client_facts(document),
        ],
    )
    given = [(*_METADATA[key], _typed(document[key])) for key in _METADATA if document.get(key) is not None]
    run.know(f"{source}: metadata as given to the tool", given)


def _typed(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.isdecimal() else text(value)


def _checks(document: Mapping[str, Any], rows: VllmTotals, source: str, timed: bool, latencies: bool) -> list[Check]:
    own = {"ttft": rows.ttft, "itl": rows.itl, "tpot": rows.tpot, "e2el": rows.e2el}
    if rows.ok == 0:
        own = {}
    totals = rows.sums("total_token_throughput")
    if not rows.silent:
        totals |= {"failed": rows.failed}
    aside = "" if latencies else "Latencies are not kept: they are the sums of TTFT and gaps."
    starts, ends = rows.spans.ended
    found, why = None, "no start times are kept"
    if timed:
        why = "no success has both a start and an end" if rows.ok else "no request succeeded, so no end is recorded"
        found = peak(starts, ends) if len(ends) else None
    total = rows.ok + rows.failed + len(rows.silent)
    checks = [
        summary_check(document, {name: np.asarray(values) for name, values in own.items()}, totals, source, aside),
        asked_and_seen(document, document.get("num_prompts"), rows.ok, rows.failed, total, len(rows.silent)),
        peak_check(document.get("max_concurrent_requests"), document.get("max_concurrency"), found, why),
        rows.spans.check(number(document.get("duration")), source),
        rows.unusable.check(),
    ]
    if rows.silent:
        words_ = (
            f"{len(rows.silent):,} of {total:,} requests have no answer, the first is request {rows.silent[0]}, and "
            f"{source} counts failures but keeps no errors: which of these failed is unknown, and they are in no rate, "
            "in no latency and on no time line. Requests are counted from 0"
        )
        checks.append(Check("outcomes_known", "fail", words_))
    zeros = [
        name for name, block in statistics(document).items() if block and all(value == 0 for value in block.values())
    ]
    if rows.ok == 0 and zeros:
        checks.append(
            Check("statistics_of_successes", "fail", "no request succeeded; the zeros of the header are no measurement")
        )
    return checks
