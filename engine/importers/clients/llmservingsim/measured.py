"""The measured side: a row per request as the engine saw it, and what the engine was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine import definitions as words
from engine.bundle import Check, Spool
from engine.identity import Identity
from engine.importers.clients import flags
from engine.importers.clients.llmservingsim.table import Table, new_id, pair, source_of, take_all
from engine.importers.clients.run import ClientRun, seal
from engine.importers.clients.times import times
from engine.importers.clients.values import count, dig, mapping, ns, text
from engine.importers.contract import Options
from engine.intake import BadRows, InputFile, Intake, json_document, json_rows
from engine.intake.rows import number

_COLUMNS = [
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


def import_measured(
    intake: Intake,
    name: str,
    file: InputFile,
    other: InputFile | None,
    meta: InputFile | None,
    store: Path,
    options: Options,
) -> str:
    """Import the measured side; returns its id.

    Raises:
        GapscopeError: rows that cannot be used, or as the writer says.
    """
    bad = BadRows(options.skip_bad_rows)
    table = Table(Spool("requests", _COLUMNS, intake.scratch))
    offset, spread = _offset(file)
    take_all(table, json_rows(file, bad), lambda row: _take(table, row, offset), file.name, bad, options)
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
        lineage={"pair": pair("measured", other), "engine_clock_offset_ns": offset},
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


def _take(table: Table, row: dict[str, Any], offset: int) -> None:
    request_id = new_id(table, text(row.get("request_id")) or "")
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
            **source_of(request_id),
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
