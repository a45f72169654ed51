"""Reduced captures: passes as CSV with the shape and the latency of each, and what they were taken on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa

from engine.importers.clients.values import cell, cell_count, csv_head
from engine.importers.fpm.records import BLOCK_ROWS, SCHEMA
from engine.intake import BadRows, InputFile, Intake, csv_rows

DETAIL = {
    "counter_id": "counter",
    "sum_prefill_tokens": "sum_prefill_tokens",
    "num_prefill_requests": "num_prefill_requests",
    "sum_prefill_kv_tokens": "sum_prefill_kv_tokens",
    "var_prefill_length": "var_prefill_length",
    "num_decode_requests": "num_decode_requests",
    "sum_decode_kv_tokens": "sum_decode_kv_tokens",
    "var_decode_kv_tokens": "var_decode_kv_tokens",
    "queued_prefill_requests": "queued_num_prefill_requests",
    "queued_prefill_tokens": "queued_sum_prefill_tokens",
    "queued_var_prefill_length": "queued_var_prefill_length",
    "queued_decode_requests": "queued_num_decode_requests",
    "queued_decode_kv_tokens": "queued_sum_decode_kv_tokens",
    "queued_var_decode_kv_tokens": "queued_var_decode_kv_tokens",
}
PHASE = {
    "counter_id": "counter",
    "ctx_tokens": "sum_prefill_tokens",
    "ctx_requests": "num_prefill_requests",
    "ctx_kv_tokens": "sum_prefill_kv_tokens",
    "decode_requests": "num_decode_requests",
    "decode_kv_tokens": "sum_decode_kv_tokens",
    "queued_ctx_tokens": "queued_sum_prefill_tokens",
    "queued_ctx_requests": "queued_num_prefill_requests",
    "queued_decode_requests": "queued_num_decode_requests",
    "queued_decode_kv_tokens": "queued_sum_decode_kv_tokens",
}
BARE = {"num_context_tokens": "sum_prefill_tokens", "num_decode_tokens": "num_decode_requests"}
FORMS: tuple[tuple[str, Mapping[str, str], frozenset[str]], ...] = (
    ("detail", DETAIL, frozenset(DETAIL) | {"latency_ms"}),
    ("phase", PHASE, frozenset(PHASE) | {"latency_ms"}),
    ("bare", BARE, frozenset({"num_context_tokens", "num_decode_tokens", "latency_ms"})),
)
"""From the most to the least that they say: name, columns, and the columns that tell them."""


def form_of(file: InputFile) -> int | None:
    """Place in ``FORMS`` of a CSV file, None of any other."""
    head = set(csv_head(file.head))
    return next((place for place, (_, _, needed) in enumerate(FORMS) if needed <= head), None)


def capture_name(intake: Intake, file: InputFile) -> str:
    """What a capture is called: its folder, or what was given."""
    return file.folder.rpartition("/")[2] or (intake.name if intake.path.is_dir() else intake.name.partition(".")[0])


def read_capture(file: InputFile, bad: BadRows) -> Iterator[tuple[Sequence[int], pa.RecordBatch]]:
    """Lines and columns (``SCHEMA``) of the passes of a capture, block by block; others are bad rows."""
    place = form_of(file)
    assert place is not None
    columns = FORMS[place][1]
    rows = csv_rows(file, bad)
    while block := list(islice(rows, BLOCK_ROWS)):
        numbers, out = [], []
        for line, cells in block:
            try:
                out.append(_row(cells, columns))
            except ValueError as error:
                bad.add(f"{file.name} line {line}", str(error))
                continue
            numbers.append(line)
        yield numbers, pa.RecordBatch.from_pylist(out, SCHEMA)


def _row(cells: Mapping[str, str], columns: Mapping[str, str]) -> dict[str, Any]:
    held = dict(cells)
    row: dict[str, Any] = {}
    for theirs, ours in columns.items():
        row[ours] = cell(held, theirs) if "var_" in ours else cell_count(held, theirs)
    latency = cell(held, "latency_ms")
    row["wall_s"] = None if latency is None else latency / 1e3
    row["worker_id"] = held.get("worker_id", "").strip() or None
    row["dp_rank"] = cell_count(held, "dp_rank") if "dp_rank" in held else None
    row["segment"] = held.get("workload_segment", "").strip() or None
    if columns is BARE and row["sum_prefill_tokens"] == 0:
        row["num_prefill_requests"] = 0  # how many share the tokens of the others is not said
    if row["sum_prefill_tokens"] is None or row["num_decode_requests"] is None:
        raise ValueError("tokens or requests are missing, expected the shape of a pass")
    return row
