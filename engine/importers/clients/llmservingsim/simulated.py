"""The simulated side: a CSV with a row per request and the gaps between its tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine import definitions as words
from engine.bundle import Check, Spool
from engine.identity import Identity
from engine.importers.clients import flags
from engine.importers.clients.llmservingsim.table import CHUNKS, TOOL, Table, new_id, pair, source_of, take_all
from engine.importers.clients.run import ClientRun, seal
from engine.importers.clients.times import times
from engine.importers.clients.values import cell_count
from engine.importers.contract import Options
from engine.importers.foreign_replay import foreign_lineage
from engine.intake import BadRows, InputFile, Intake, csv_rows
from engine.intake.rows import number, parse

_COLUMNS = [
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


def import_simulated(
    intake: Intake,
    name: str,
    file: InputFile,
    other: InputFile | None,
    meta: InputFile | None,
    store: Path,
    options: Options,
) -> str:
    """Import the simulated side as a replay; returns its id.

    Raises:
        GapscopeError: rows that cannot be used, or as the writer says.
    """
    bad = BadRows(options.skip_bad_rows)
    table = Table(Spool("requests", _COLUMNS, intake.scratch), Spool("chunks", CHUNKS, intake.scratch))
    take_all(table, csv_rows(file, bad), lambda cells: _take(table, cells), file.name, bad, options)
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
        checks=list(_checks(table)),
        not_recorded=["Passes of the scheduler and the cache: the CSV has requests only.", "The timing model."],
        sources=[file],
        bad=bad,
        lineage=foreign_lineage({}, simulator=TOOL, pair=pair("simulated", other)),
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


def _take(table: Table, cells: dict[str, str]) -> None:
    request_id = new_id(table, cells["request id"].strip())
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
            **source_of(request_id),
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


def _checks(table: Table) -> Iterator[Check]:
    rows = table.requests.rows
    detail = f"arrival + TTFT + all gaps is not the end in {table.ends_apart:,} of {rows:,} requests"
    yield Check("times_add_up", "fail" if table.ends_apart else "pass" if rows else "unknown", detail)
    detail = (
        f"the output column is neither gaps + 1 nor input + gaps + 1 in {table.lengths_apart:,} of {rows:,} requests"
    )
    yield Check("lengths_agree", "fail" if table.lengths_apart else "pass" if rows else "unknown", detail)
    detail = f"requests are of {len(table.models)} models: {', '.join(list(table.models)[:3])}"
    yield Check("one_model", "pass" if len(table.models) == 1 else "unknown", detail)
