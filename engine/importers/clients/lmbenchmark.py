"""LMBenchmark (multi-round QA): a CSV with a row per request."""

from __future__ import annotations

from collections.abc import Sequence
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
from engine.importers.clients.values import cell, cell_count, csv_head, ns
from engine.importers.contract import Options, Part, Use
from engine.intake import BadRows, InputFile, Intake, csv_rows

TOOL = "LMBenchmark"
HEAD = frozenset(
    ["prompt_tokens", "generation_tokens", "ttft", "generation_time", "user_id", "question_id", "launch_time"]
)
_COLUMNS = [
    "request_id",
    "conversation_id",
    "turn_index",
    "lane",
    "phase",
    "status",
    "tool_status",
    "flags",
    "dispatched_ns",
    "first_visible_ns",
    "last_visible_ns",
    "end_ns",
    "input_tokens",
    "output_tokens",
]
_STEP = 5_000
_SLACK_NS = 1_000_000


class LmBenchmark:
    """Told by its exact columns; others may follow."""

    name = "lmbenchmark"
    describes = "the CSV of LMBenchmark's multi-round QA"

    def find(self, intake: Intake) -> Sequence[Part]:
        """One part per file."""
        return [self._part(intake, file) for file in intake.files if set(csv_head(file.head)) >= HEAD]

    def _part(self, intake: Intake, file: InputFile) -> Part:
        name = file.base.partition(".")[0]
        return Part(
            format=self.name,
            tool=TOOL,
            version=None,
            name=name,
            kind="measured",
            uses=(Use(file, "a row per request"),),
            run=partial(_import, intake, name, file),
        )


def _import(intake: Intake, name: str, file: InputFile, store: Path, options: Options) -> str:
    bad = BadRows(options.skip_bad_rows)
    requests, span, apart = Spool("requests", _COLUMNS, intake.scratch), Span(), 0
    for line, cells in csv_rows(file, bad):
        try:
            row, agrees = _row(str(line), cells)
        except ValueError as error:
            bad.add(f"{file.name} line {line}", str(error))
            continue
        apart += not agrees
        span.take(row["dispatched_ns"], row["last_visible_ns"], row["end_ns"])
        requests.append(row)
        if line % _STEP == 0:
            options.step(None, f"{line:,} rows")
    detail = f"launch + TTFT + generation time is not the time of finish in {apart:,} of {requests.rows:,} requests"
    run = ClientRun(
        "lmbenchmark",
        TOOL,
        None,
        name,
        Identity(),
        requests=requests,
        phases=span.phases,
        origin_ns=span.start,
        profile_start_unix_ns=span.first,
        checks=[Check("times_add_up", "fail" if apart else "pass" if requests.rows else "unknown", detail)],
        not_recorded=["Requests that failed: the tool writes rows of finished ones only.", "Chunks."],
        sources=[file],
        bad=bad,
    )
    run.know("format lmbenchmark", [("client", "streaming", True), ("client", "loop", "a rate per user")])
    run.define(
        "format lmbenchmark",
        first_token=words.FIRST_VISIBLE,
        end_of_latency=words.END_RESPONSE,
        token_source=words.TOKENS_USAGE,
        tpot=words.TPOT_OURS,
        itl=words.ITL_NONE,
    )
    return seal(run, store, options)


def _row(request_id: str, cells: dict[str, str]) -> tuple[dict[str, Any], bool]:
    """A row, and whether its times add up."""
    start, ttft, generation = (ns(cell(cells, name)) for name in ("launch_time", "ttft", "generation_time"))
    if start is None:
        raise ValueError("launch_time is empty, expected seconds since 1970")
    end = ns(cell(cells, "finish_time"))
    output = cell_count(cells, "generation_tokens")
    answered = bool(output) and ttft is not None and ttft > 0
    first = start + (ttft or 0) if answered else None
    found, wrong = times(start, first, end if answered else None, end)
    noticed = [] if answered else [flags.NO_TOKEN_COUNT if output is None else flags.ZERO_OUTPUT]
    user = cells["user_id"].strip()
    row = {
        "request_id": request_id,
        "conversation_id": f"user {user}",
        "turn_index": cell_count(cells, "question_id"),
        "lane": cell_count(cells, "user_id") if user.isdigit() else None,
        "phase": "profile",
        "status": "ok",
        "tool_status": "finished",
        "flags": flags.joined((*noticed, *wrong)),
        "input_tokens": cell_count(cells, "prompt_tokens"),
        "output_tokens": output,
        **found,
    }
    known = answered and ttft is not None and generation is not None and end is not None
    agrees = not known or abs(start + (ttft or 0) + (generation or 0) - (end or 0)) <= _SLACK_NS
    return row, agrees
