"""The requests of inference-perf, and what its figures are made of."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from engine.bundle import Check, Spool
from engine.errors import GapscopeError
from engine.importers.clients import flags
from engine.importers.clients.span import Span
from engine.importers.clients.times import times
from engine.importers.clients.values import count, dig, mapping, ns, text
from engine.importers.clients.within import Spans
from engine.importers.contract import Options
from engine.intake import BadRows, InputFile, Intake, json_document
from engine.intake.rows import number

_COLUMNS = [
    "request_id",
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
    "output_tokens",
]
_CHUNKS = ("request_id", "ordinal", "time_ns", "tokens", "visible")
_STEP = 2_000


@dataclass
class Table:
    """The requests being read, and what the tool's figures are made of."""

    requests: Spool
    chunks: Spool
    span: Span = field(default_factory=Span)
    spans: Spans = field(default_factory=Spans)
    values: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    succeeded: int = 0
    failed: int = 0
    differ: int = 0
    asked: int = 0


def read_rows(file: InputFile, bad: BadRows, intake: Intake, options: Options) -> Table:
    """Every request of a list.

    Raises:
        GapscopeError: it is no list, or holds what cannot be used.
    """
    options.step(None, "reading the requests")
    document = json_document(file)
    if not isinstance(document, list):
        raise GapscopeError(f"{file.name} holds no list: expected the requests of inference-perf.")
    table = Table(Spool("requests", _COLUMNS, intake.scratch), Spool("chunks", _CHUNKS, intake.scratch))
    for place, item in enumerate(document):
        where = f"{file.name} request {place + 1}"
        start = ns(number(dig(item, "start_time")))
        if start is None:
            bad.add(where, "no start_time in seconds")
            continue
        _take(table, f"{place}", item, start)
        if place % _STEP == 0:
            options.step(place / len(document), f"{place:,} requests")
    return table


def _take(table: Table, request_id: str, item: dict[str, Any], start: int) -> None:
    info, error = mapping(item.get("info")), item.get("error")
    response = mapping(info.get("response_metrics")) or info
    end = ns(number(item.get("end_time")))
    prompt = count(dig(info, "request_metrics", "text", "input_tokens"))
    prompt = count(info.get("input_tokens")) if prompt is None else prompt
    output = count(response.get("output_tokens"))
    row: dict[str, Any] = {"request_id": request_id, "phase": "profile", "input_tokens": prompt}
    table.spans.take(request_id, start / 1e9, None if end is None else end / 1e9)
    if error:
        table.failed += 1
        kind = text(dig(error, "error_type")) or ("error" if isinstance(error, dict) else text(error))
        table.span.take(start, end)
        table.requests.append(
            {
                **row,
                "status": "error",
                "tool_status": "failure",
                "error_type": kind,
                "error_message": text(dig(error, "error_msg")) or text(error),
                "dispatched_ns": start,
                "end_ns": end,
            }
        )
        return
    table.succeeded += 1
    stamps = [ns(number(value)) for value in _stamps(response)]
    visible = [stamp for stamp in stamps if stamp is not None]
    noticed = set()
    if not visible or output == 0:
        noticed.add(flags.ZERO_OUTPUT)
        visible, output = [], output or 0
    elif output is None:
        noticed.add(flags.NO_TOKEN_COUNT)
    elif len(visible) < output:
        noticed.add(flags.BURST)
    first, last = (visible[0], visible[-1]) if visible else (None, None)
    found, wrong = times(start, first, last, end)
    table.span.take(start, *visible[-1:], end)
    table.requests.append(
        {
            **row,
            **found,
            "status": "ok",
            "tool_status": "success",
            "flags": flags.joined((*noticed, *wrong)),
            "output_tokens": output,
        }
    )
    one_each = len(visible) == output
    for ordinal, stamp in enumerate(visible):
        table.chunks.append(
            {
                "request_id": request_id,
                "ordinal": ordinal,
                "time_ns": stamp,
                "tokens": 1 if one_each else None,
                "visible": True,
            }
        )
    _gather(table, response, (start, end, visible), prompt, output)


def _stamps(response: dict[str, Any]) -> list[Any]:
    found = response.get("output_token_times") or response.get("chunk_times")
    return found if isinstance(found, list) else []


def _gather(
    table: Table,
    response: dict[str, Any],
    at: tuple[int, int | None, list[int]],
    prompt: int | None,
    output: int | None,
) -> None:
    """What the tool's figures are made of, in seconds."""
    start, end, visible = at
    usage = count(dig(response, "server_usage", "completion_tokens"))
    if usage is not None and output is not None:
        table.asked += 1
        table.differ += usage != output
    values = table.values
    if prompt is not None:
        values["prompt_len"].append(prompt)
    if output is not None:
        values["output_len"].append(output)
    if end is not None:
        values["request_latency"].append((end - start) / 1e9)
        if output:
            values["normalized_time_per_output_token"].append((end - start) / 1e9 / output)
    if visible:
        values["time_to_first_token"].append((visible[0] - start) / 1e9)
        values["inter_token_latency"] += [(b - a) / 1e9 for a, b in pairwise(visible)]
        if output and output > 1:
            values["time_per_output_token"].append((visible[-1] - visible[0]) / 1e9 / (output - 1))


def tokens_check(table: Table) -> Check:
    """Whether the client's and the server's counts of output tokens are the same."""
    if not table.asked:
        return Check("token_counts_agree", "unknown", "no request has both the client's and the server's count")
    detail = f"the client's count of output tokens is not the server's in {table.differ:,} of {table.asked:,} requests"
    return Check("token_counts_agree", "fail" if table.differ else "pass", detail)
