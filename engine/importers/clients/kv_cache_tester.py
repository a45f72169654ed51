"""kv-cache-tester: CSV with a row per request and the time of every chunk, of trace replays and of cache-rate tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from engine import definitions as words
from engine.bundle import Check, Spool, spooled
from engine.identity import Identity
from engine.importers.clients import flags
from engine.importers.clients.reproduce import reported_rows
from engine.importers.clients.run import REPORTED_COLUMNS, ClientRun, seal
from engine.importers.clients.span import Span
from engine.importers.clients.times import times
from engine.importers.clients.values import cell, cell_count, csv_head, folder_name, ns, truth
from engine.importers.contract import Options, Part, Use
from engine.intake import BadRows, InputFile, Intake, csv_rows
from engine.intake.rows import number, parse

TOOL = "kv-cache-tester"
REPLAY = frozenset(
    [
        "user_id",
        "request_idx",
        "trace_id",
        "input_tokens",
        "output_tokens_actual",
        "cache_hit_blocks",
        "cache_miss_blocks",
        "ttft",
        "ttlt",
        "request_start_time",
        "request_complete_time",
        "success",
    ]
)
CACHE_RATE = frozenset(
    [
        "request_id",
        "phase_id",
        "context_size",
        "cached_tokens",
        "unique_tokens",
        "output_tokens",
        "ttft",
        "ttlt",
        "launch_time",
        "finish_time",
    ]
)
_BLOCKS = ("cache_hit_blocks", "cache_miss_blocks", "theoretical_cache_hit_blocks")
_COLUMNS = [
    "request_id",
    "source_trace_id",
    "source_kind",
    "source_outer_index",
    "conversation_id",
    "turn_index",
    "play_id",
    "lane",
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
    "requested_output_tokens",
    "output_tokens",
]
_CHUNKS = ("request_id", "ordinal", "time_ns", "tokens", "visible")
_STEP = 1_000
_SLACK = 0.02


class KvCacheTester:
    """Told by its exact columns; others may follow."""

    name = "kv-cache-tester"
    describes = "detailed results of kv-cache-tester (trace replay or cache rate), CSV"

    def find(self, intake: Intake) -> Sequence[Part]:
        """One part per file."""
        parts = []
        for file in intake.files:
            head = set(csv_head(file.head))
            if head >= REPLAY or head >= CACHE_RATE:
                parts.append(self._part(intake, file, head >= REPLAY))
        return parts

    def _part(self, intake: Intake, file: InputFile, replay: bool) -> Part:
        name = " ".join(filter(None, (folder_name(intake, file), file.base.partition(".")[0])))
        what = "a row per request of a trace replay" if replay else "a row per request of a cache-rate test"
        return Part(
            format=self.name,
            tool=TOOL,
            version=None,
            name=name,
            kind="measured",
            uses=(Use(file, what),),
            run=partial(_import, intake, name, file, replay),
        )


@dataclass
class Table:
    """The requests being read."""

    requests: Spool
    chunks: Spool
    lanes: dict[str, int] = field(default_factory=dict)
    span: Span = field(default_factory=Span)
    blocks: dict[str, int] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)
    itl_asked: int = 0
    itl_apart: int = 0
    lengths_asked: int = 0
    lengths_apart: int = 0


def _import(intake: Intake, name: str, file: InputFile, replay: bool, store: Path, options: Options) -> str:
    bad = BadRows(options.skip_bad_rows)
    table = Table(Spool("requests", _COLUMNS, intake.scratch), Spool("chunks", _CHUNKS, intake.scratch))
    for line, cells in csv_rows(file, bad):
        try:
            _take(table, line, cells, replay)
        except ValueError as error:
            bad.add(f"{file.name} line {line}", str(error))
        if table.requests.rows % _STEP == 0:
            options.step(None, f"{table.requests.rows:,} requests")
    run = ClientRun(
        "kv-cache-tester",
        TOOL,
        None,
        name,
        Identity(),
        requests=table.requests,
        chunks=table.chunks,
        phases=table.span.phases,
        origin_ns=table.span.start,
        profile_start_unix_ns=table.span.first,
        checks=list(_checks(table)),
        not_recorded=["Cached tokens: hits are what the client expects of an endless cache, not what the server did."],
        sources=[file],
        bad=bad,
    )
    shares = list(_shares(table, file.base))
    if shares:
        run.reported = spooled("reported", shares, REPORTED_COLUMNS, intake.scratch)
    run.know("format kv-cache-tester", [("client", "streaming", True), ("client", "loop", "closed")])
    run.know(file.name, [("client", "lanes", len(table.lanes) or None)])
    run.define(
        "format kv-cache-tester",
        first_token=words.FIRST_VISIBLE,
        end_of_latency=words.END_CONTENT,
        token_source="counted by the client, server usage where it is sent",
        tpot=words.TPOT_OURS,
        itl=words.ITL_CHUNKS,
    )
    return seal(run, store, options)


def _take(table: Table, line: int, cells: dict[str, str], replay: bool) -> None:
    names = ("request_start_time", "request_complete_time") if replay else ("launch_time", "finish_time")
    start, end = (ns(cell(cells, name)) for name in names)
    if start is None:
        raise ValueError(f"{names[0]} is empty, expected seconds since 1970")
    row = {**(_replay_columns(table, line, cells) if replay else _rate_columns(cells, line)), "phase": "profile"}
    row["request_id"] = _unique(table, row["request_id"])
    if truth(cells.get("success", "true")) is False:
        row |= {"status": "error", "tool_status": "success False", "output_tokens": None, "dispatched_ns": start}
        row |= {"end_ns": end, "error_type": "error", "error_message": cells.get("error_message", "").strip() or None}
        table.span.take(start, end)
        table.requests.append(row)
        return
    stamps, tokens = _chunk_times(cells)
    ttft, ttlt = ns(cell(cells, "ttft")), ns(cell(cells, "ttlt"))
    first = stamps[0] if stamps else ns(cell(cells, "prefill_complete_time"))
    first = start + ttft if first is None and ttft else first
    last = stamps[-1] if stamps else start + ttlt if ttlt else first
    noticed = set()
    if row["output_tokens"] == 0 or (first is None and not row["output_tokens"]):
        noticed.add(flags.ZERO_OUTPUT)
        row["output_tokens"], first, last, stamps = 0, None, None, []
    elif row["output_tokens"] is None:
        noticed.add(flags.NO_TOKEN_COUNT)
    elif stamps and len(stamps) < row["output_tokens"]:
        noticed.add(flags.BURST)
        if tokens and tokens[0] and tokens[0] > 1:
            noticed.add(flags.FIRST_BURST)
    found, wrong = times(start, first, last, end)
    row |= {**found, "status": "ok", "tool_status": "success", "flags": flags.joined((*noticed, *wrong))}
    table.span.take(start, found["last_visible_ns"], found["end_ns"])
    table.requests.append(row)
    for ordinal, stamp in enumerate(stamps):
        table.chunks.append(
            {
                "request_id": row["request_id"],
                "ordinal": ordinal,
                "time_ns": stamp,
                "tokens": tokens[ordinal] if tokens else None,
                "visible": True,
            }
        )
    _ask(table, cells, row, tokens)


def _replay_columns(table: Table, line: int, cells: dict[str, str]) -> dict[str, Any]:
    user, trace = cells["user_id"].strip(), cells["trace_id"].strip()
    index = cell_count(cells, "request_idx")
    lane = table.lanes.setdefault(user, len(table.lanes))
    for name in _BLOCKS:
        if name in cells:
            table.blocks[name] = table.blocks.get(name, 0) + (cell_count(cells, name) or 0)
    return {
        "request_id": f"{user}:{trace}:{line if index is None else index}",
        "source_trace_id": trace or None,
        "source_kind": cells.get("request_type", "").strip() or None,
        "source_outer_index": index,
        "conversation_id": f"{user}:{trace}",
        "turn_index": index,
        "play_id": f"{user}:{trace}",
        "lane": lane,
        "input_tokens": cell_count(cells, "input_tokens"),
        "requested_output_tokens": cell_count(cells, "output_tokens_expected"),
        "output_tokens": cell_count(cells, "output_tokens_actual"),
    }


def _rate_columns(cells: dict[str, str], line: int) -> dict[str, Any]:
    return {
        "request_id": cells["request_id"].strip() or str(line),
        "source_kind": cells["phase_id"].strip() or None,
        "input_tokens": cell_count(cells, "context_size"),
        "output_tokens": cell_count(cells, "output_tokens"),
    }


def _unique(table: Table, request_id: str) -> str:
    """Ids come again where a user plays a trace again."""
    seen = table.ids[request_id] = table.ids.get(request_id, 0) + 1
    return request_id if seen == 1 else f"{request_id}#{seen}"


def _chunk_times(cells: dict[str, str]) -> tuple[list[int], list[int | None] | None]:
    """Times of the chunks, and their tokens where there are as many of these.

    Raises:
        ValueError: a cell is no list of numbers.
    """
    stamps = []
    for value in _list(cells, "token_timestamps"):
        stamp = ns(number(value))
        if stamp is not None:
            stamps.append(stamp)
    tokens: list[int | None] = [
        int(n) if (n := number(value)) is not None else None for value in _list(cells, "tokens_per_chunk")
    ]
    return stamps, tokens if len(tokens) == len(stamps) else None


def _list(cells: dict[str, str], column: str) -> list[Any]:
    written = cells.get(column, "").strip()
    if not written:
        return []
    found, problem = parse(written.encode())
    if problem or not isinstance(found, list):
        raise ValueError(f"{column} is {written!r:.40}, expected a list of numbers")
    return found


def _ask(table: Table, cells: dict[str, str], row: dict[str, Any], tokens: list[int | None] | None) -> None:
    """Compare what a row says twice: its ITL and the times, its tokens and those of the chunks."""
    itl, first, last = ns(cell(cells, "itl")), row["first_visible_ns"], row["last_visible_ns"]
    made = row["output_tokens"]
    if itl and first is not None and last is not None and made and made > 1:
        table.itl_asked += 1
        expected = (last - first) / (made - 1)
        table.itl_apart += abs(expected - itl) > _SLACK * max(expected, itl)
    if tokens and made and None not in tokens:
        table.lengths_asked += 1
        table.lengths_apart += sum(n for n in tokens if n is not None) != made


def _checks(table: Table) -> Iterator[Check]:
    verdict = "unknown" if not table.itl_asked else "fail" if table.itl_apart else "pass"
    detail = (
        f"the ITL of a row is not (last - first) / (output tokens - 1), by over {_SLACK:.0%}, in "
        f"{table.itl_apart:,} of {table.itl_asked:,} requests"
    )
    yield Check("itl_agrees", verdict, detail)
    verdict = "unknown" if not table.lengths_asked else "fail" if table.lengths_apart else "pass"
    detail = (
        f"the tokens of the chunks are not the output tokens in {table.lengths_apart:,} of {table.lengths_asked:,} "
        "requests"
    )
    yield Check("chunk_tokens", verdict, detail)


def _shares(table: Table, source: str) -> Iterator[dict[str, Any]]:
    """The cache's theoretical hit rates, from the tool's own columns."""
    total = table.blocks.get(_BLOCKS[0], 0) + table.blocks.get(_BLOCKS[1], 0)
    if not total:
        return
    rates = {
        "theoretical_cache_hit_rate": (_BLOCKS[0], "blocks the user had sent before / blocks, over all rows"),
        "theoretical_infinite_cache_hit_rate": (_BLOCKS[2], "blocks anyone had sent before / blocks, over all rows"),
    }
    for name, (column, definition) in rates.items():
        if column in table.blocks:
            share = table.blocks[column] / total
            yield from reported_rows(
                "run", name, {"value": share}, source, unit="share", definition=f"{definition}; no measurement"
            )
