"""LLMServingSim: the CSV of a simulation, and the rows of the vLLM run that it is held against."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from engine import definitions as words
from engine.bundle import Check, Spool
from engine.identity import Identity
from engine.importers.clients import flags
from engine.importers.clients.run import ClientRun, seal
from engine.importers.clients.span import Span
from engine.importers.clients.times import times
from engine.importers.clients.values import cell_count, count, csv_head, dig, first_keys, has_row, mapping, ns, text
from engine.importers.contract import Options, Part, Use
from engine.importers.foreign_replay import foreign_lineage
from engine.intake import BadRows, InputFile, Intake, csv_rows, json_document, json_rows
from engine.intake.rows import number, parse

TOOL = "LLMServingSim"
SIMULATED = [
    "instance id",
    "request id",
    "model",
    "input",
    "output",
    "arrival",
    "end_time",
    "latency",
    "queuing_delay",
    "TTFT",
    "TPOT",
    "ITL",
]
MEASURED = frozenset(
    ["request_id", "input_toks", "output_toks", "arrival_time", "queued_ts", "first_token_ts", "last_token_ts"]
)
META = frozenset(("vllm_version", "engine_kwargs", "dataset_path"))
_SIM_COLUMNS = [
    "request_id",
    "source_trace_id",
    "source_outer_index",
    "phase",
    "status",
    "tool_status",
    "flags",
    "worker_id",
    "dispatched_ns",
    "first_admit_ns",
    "first_visible_ns",
    "last_visible_ns",
    "end_ns",
    "input_tokens",
    "output_tokens",
]
_RUN_COLUMNS = [
    "request_id",
    "source_trace_id",
    "source_outer_index",
    "phase",
    "status",
    "tool_status",
    "flags",
    "dispatched_ns",
    "received_ns",
    "first_admit_ns",
    "first_visible_ns",
    "last_visible_ns",
    "end_ns",
    "input_tokens",
    "output_tokens",
]
_CHUNKS = ("request_id", "ordinal", "time_ns", "tokens", "visible")
_STEP = 1_000
_WORKLOAD = "the workload"
"""Both sides number the requests of one workload file."""


class LlmServingSim:
    """The simulated CSV is told by its exact columns, the measured rows by their keys."""

    name = "llmservingsim"
    describes = "LLMServingSim: the CSV of a simulation, and the measured requests (JSON Lines) that it is held against"

    def find(self, intake: Intake) -> Sequence[Part]:
        """One part per file, each of which names the other side where there is just one in the input."""
        simulated = [file for file in intake.files if csv_head(file.head) == SIMULATED]
        measured = [file for file in intake.files if has_row(file.head, MEASURED)]
        parts = [self._part(intake, file, True, _other(file, measured), None) for file in simulated]
        for file in measured:
            meta = next(iter(intake.beside(file, lambda near: first_keys(near.head).keys() >= META)), None)
            parts.append(self._part(intake, file, False, _other(file, simulated), meta))
        return parts

    def _part(
        self, intake: Intake, file: InputFile, simulated: bool, other: InputFile | None, meta: InputFile | None
    ) -> Part:
        side = "simulated" if simulated else "measured"
        above = file.name.split("/")[:-1]
        name = " ".join((*above[-2:-1], file.base.partition(".")[0], side))
        uses = [Use(file, f"a row per {side} request")] + ([Use(meta, "engine and machine")] if meta else [])
        notes = []
        if other:
            notes.append(f"The other side of the pair is {other.name}.")
        if simulated:
            notes.append("Nothing is known of the timing model: a pair with this replay is no blind prediction.")
        return Part(
            format=self.name,
            tool=TOOL if simulated else "vLLM, run by LLMServingSim",
            version=None,
            name=name,
            kind="replay" if simulated else "measured",
            uses=tuple(uses),
            run=partial(_simulated if simulated else _measured, intake, name, file, other, meta),
            notes=tuple(notes),
        )


def _other(file: InputFile, others: list[InputFile]) -> InputFile | None:
    """The one file of the other side; with several, the one whose folder shares the longest beginning."""
    if len(others) < 2:
        return next(iter(others), None)

    def shared(other: InputFile) -> int:
        pairs = zip(file.name.split("/"), other.name.split("/"), strict=False)
        return next((place for place, (a, b) in enumerate(pairs) if a != b), 0)

    ranked = sorted(others, key=shared)
    return ranked[-1] if shared(ranked[-1]) > shared(ranked[-2]) else None


def _pair(role: str, other: InputFile | None) -> dict[str, Any]:
    return {"role": role, "other": {"file": other.name, "sha256": other.sha256} if other else None}


@dataclass
class Table:
    """The requests being read, and how often a row says twice what it says once."""

    requests: Spool
    chunks: Spool | None = None
    span: Span = field(default_factory=Span)
    ids: set[str] = field(default_factory=set)
    ends_apart: int = 0
    lengths_apart: int = 0
    models: dict[str, int] = field(default_factory=dict)


def _simulated(
    intake: Intake,
    name: str,
    file: InputFile,
    other: InputFile | None,
    meta: InputFile | None,
    store: Path,
    options: Options,
) -> str:
    bad = BadRows(options.skip_bad_rows)
    table = Table(Spool("requests", _SIM_COLUMNS, intake.scratch), Spool("chunks", _CHUNKS, intake.scratch))
    for line, cells in csv_rows(file, bad):
        try:
            _take_simulated(table, cells)
        except ValueError as error:
            bad.add(f"{file.name} line {line}", str(error))
        if table.requests.rows % _STEP == 0:
            options.step(None, f"{table.requests.rows:,} requests")
    run = ClientRun(
        "llmservingsim",
        TOOL,
        None,
        name,
        Identity(),
        kind="replay",
        requests=table.requests,
        chunks=table.chunks,
        phases=table.span.phases,
        origin_ns=table.span.start,
        checks=list(_simulated_checks(table)),
        not_recorded=["Passes of the scheduler and the cache: the CSV has requests only.", "The timing model."],
        sources=[file],
        bad=bad,
        lineage=foreign_lineage({}, simulator=TOOL, pair=_pair("simulated", other)),
    )
    model = next(iter(table.models)) if len(table.models) == 1 else None
    run.know(file.name, [("model", "name", model), ("topology", "replicas", None)])
    run.define(
        "format llmservingsim",
        first_token=words.FIRST_SIMULATED,
        end_of_latency=words.END_CONTENT,
        token_source=words.TOKENS_SIMULATED,
        tpot=words.TPOT_OURS,
        itl="gaps between simulated tokens, pooled",
    )
    return seal(run, store, options)


def _take_simulated(table: Table, cells: dict[str, str]) -> None:
    request_id = _new_id(table, cells["request id"].strip())
    arrival, end = cell_count(cells, "arrival"), cell_count(cells, "end_time")
    if arrival is None:
        raise ValueError("arrival is empty, expected nanoseconds")
    gaps = [number(gap) for gap in _gaps(cells)]
    ttft, queued = cell_count(cells, "TTFT"), cell_count(cells, "queuing_delay")
    first = None if ttft is None else arrival + ttft
    written, prompt = cell_count(cells, "output"), cell_count(cells, "input")
    made = len(gaps) + 1 if first is not None else 0
    # Older versions write the length of prompt and output into this column, newer ones that of the output.
    table.lengths_apart += written is not None and made not in (written, written - (prompt or 0))
    found, wrong = times(arrival, first, end if first is not None else None, end)
    model = cells["model"].strip()
    table.models[model] = table.models.get(model, 0) + 1
    table.span.take(arrival, found["end_ns"])
    finished = found["first_visible_ns"] is not None
    table.requests.append(
        {
            **_source(request_id),
            **found,
            "phase": "profile",
            "status": "ok",
            "tool_status": "finished",
            "flags": flags.joined((*wrong, *([] if finished else [flags.ZERO_OUTPUT]))),
            "worker_id": cells["instance id"].strip() or None,
            "first_admit_ns": None if queued is None else arrival + queued,
            "input_tokens": prompt,
            "output_tokens": made,
        }
    )
    if first is None or any(gap is None or gap < 0 for gap in gaps):
        return
    at = first
    for ordinal, gap in enumerate([0.0, *(gap or 0.0 for gap in gaps)]):
        at += round(gap)
        row = {"request_id": request_id, "ordinal": ordinal, "time_ns": at, "tokens": 1, "visible": True}
        if table.chunks is not None:
            table.chunks.append(row)
    table.ends_apart += end is not None and at != end


def _gaps(cells: dict[str, str]) -> list[Any]:
    found, problem = parse(cells["ITL"].strip().encode() or b"[]")
    if problem or not isinstance(found, list):
        raise ValueError(f"ITL is {cells['ITL']!r:.40}, expected a list of nanoseconds")
    return found


def _new_id(table: Table, request_id: str) -> str:
    if request_id in table.ids or not request_id:
        raise ValueError(f"request {request_id!r:.40} comes twice" if request_id else "a request without an id")
    table.ids.add(request_id)
    return request_id


def _source(request_id: str) -> dict[str, Any]:
    """The request's number in the workload, which both sides use."""
    digits = request_id.rpartition("-")[2]
    place = int(digits) if digits.isdigit() and len(digits) < 18 else None
    return {"request_id": request_id, "source_trace_id": _WORKLOAD, "source_outer_index": place}


def _simulated_checks(table: Table) -> Iterator[Check]:
    rows = table.requests.rows
    detail = f"arrival + TTFT + all gaps is not the end in {table.ends_apart:,} of {rows:,} requests"
    yield Check("times_add_up", "fail" if table.ends_apart else "pass" if rows else "unknown", detail)
    detail = (
        f"the output column is neither gaps + 1 nor input + gaps + 1 in {table.lengths_apart:,} of {rows:,} requests"
    )
    yield Check("lengths_agree", "fail" if table.lengths_apart else "pass" if rows else "unknown", detail)
    detail = f"requests are of {len(table.models)} models: {', '.join(list(table.models)[:3])}"
    yield Check("one_model", "pass" if len(table.models) == 1 else "unknown", detail)


def _measured(
    intake: Intake,
    name: str,
    file: InputFile,
    other: InputFile | None,
    meta: InputFile | None,
    store: Path,
    options: Options,
) -> str:
    bad = BadRows(options.skip_bad_rows)
    table = Table(Spool("requests", _RUN_COLUMNS, intake.scratch))
    offset, spread = _offset(file)
    for line, row in json_rows(file, bad):
        try:
            _take_measured(table, row, offset)
        except ValueError as error:
            bad.add(f"{file.name} line {line}", str(error))
        if table.requests.rows % _STEP == 0:
            options.step(None, f"{table.requests.rows:,} requests")
    document = mapping(json_document(meta)) if meta else {}
    run = ClientRun(
        "llmservingsim",
        "vLLM, run by LLMServingSim",
        None,
        name,
        Identity(),
        requests=table.requests,
        phases=table.span.phases,
        origin_ns=table.span.start,
        profile_start_unix_ns=table.span.first,
        checks=[_clock_check(table, offset, spread), *_meta_checks(document, table)],
        not_recorded=["A client: times of tokens are those of the engine itself.", "Passes, cache, chunks."],
        sources=[file, *([meta] if meta else [])],
        bad=bad,
        lineage={"pair": _pair("measured", other), "engine_clock_offset_ns": offset},
    )
    if meta:
        run.know(meta.name, _identity(document))
    run.define(
        "format llmservingsim",
        first_token=words.FIRST_ENGINE,
        end_of_latency=words.END_CONTENT,
        token_source="the engine's own count",
        tpot=words.TPOT_OURS,
        itl=words.ITL_NONE,
    )
    return seal(run, store, options)


def _offset(file: InputFile) -> tuple[int, int]:
    """What the engine's clock lacks to the arrivals', and how far single requests are from it, in nanoseconds.

    The request that was queued soonest after it came is taken to have been queued at once.
    """
    waits = []
    for _, row in json_rows(file, BadRows(skip=True)):
        arrival, queued = ns(number(row.get("arrival_time"))), ns(number(row.get("queued_ts")))
        if arrival is not None and queued is not None:
            waits.append(queued - arrival)
    return (-min(waits), max(waits) - min(waits)) if waits else (0, 0)


def _take_measured(table: Table, row: dict[str, Any], offset: int) -> None:
    request_id = _new_id(table, text(row.get("request_id")) or "")
    arrival = ns(number(row.get("arrival_time")))
    if arrival is None:
        raise ValueError("arrival_time is missing, expected seconds")
    keys = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
    queued, scheduled, first, last = (None if (at := ns(number(row.get(key)))) is None else at + offset for key in keys)
    output = count(row.get("output_toks"))
    if not output:
        first = last = None
    found, wrong = times(arrival, first, last, last)
    table.span.take(arrival, found["end_ns"])
    table.requests.append(
        {
            **_source(request_id),
            **found,
            "phase": "profile",
            "status": "ok",
            "tool_status": "finished",
            "flags": flags.joined((*wrong, *([] if output else [flags.ZERO_OUTPUT]))),
            "received_ns": queued,
            "first_admit_ns": scheduled,
            "input_tokens": count(row.get("input_toks")),
            "output_tokens": output,
        }
    )


def _clock_check(table: Table, offset: int, spread: int) -> Check:
    detail = (
        f"arrivals are times of day and the engine's times are not: {offset / 1e9:.6f} s were added to the latter, so "
        f"that the soonest request was queued at once; others wait up to {spread / 1e6:.3f} ms longer"
    )
    return Check("one_clock", "unknown" if table.requests.rows else "fail", detail)


def _meta_checks(document: dict[str, Any], table: Table) -> Iterator[Check]:
    asked = count(document.get("num_requests"))
    if asked is not None:
        detail = f"{table.requests.rows:,} rows, {asked:,} requests were asked for"
        yield Check("rows_counted", "pass" if asked == table.requests.rows else "fail", detail)


def _identity(document: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    asked, cache = mapping(document.get("engine_kwargs")), mapping(document.get("kv_cache"))
    yield "source", "engine", "vllm"
    yield "source", "version", text(document.get("vllm_version"))
    yield "model", "name", text(document.get("model"))
    yield "model", "weights_dtype", text(asked.get("dtype"))
    yield "topology", "tp", count(asked.get("tensor_parallel_size"))
    yield "topology", "attention_dp", count(asked.get("data_parallel_size"))
    yield "scheduler", "max_num_seqs", count(asked.get("max_num_seqs"))
    yield "scheduler", "max_num_batched_tokens", count(asked.get("max_num_batched_tokens"))
    yield "capacity", "kv_blocks", count(cache.get("num_gpu_blocks"))
    yield "capacity", "block_size", count(cache.get("block_size"))
    yield "capacity", "prefix_caching", cache.get("enable_prefix_caching")
    yield "capacity", "memory_fraction", number(cache.get("gpu_memory_utilization"))
    yield "hardware", "part", text(dig(document, "hardware", "device_name"))
    yield "hardware", "count", count(dig(document, "hardware", "device_count"))
    yield "hardware", "memory_bytes", count(dig(document, "hardware", "device_total_memory_bytes"))
    yield "trace", "digest", text(document.get("dataset_hash"))
    yield "trace", "rows", count(document.get("num_requests"))
