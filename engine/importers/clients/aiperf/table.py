"""The records of a run, and its responses where they were kept, as the tables ``requests`` and ``chunks``."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.bundle import Spool
from engine.importers.clients import flags
from engine.importers.clients.aiperf.chunks import Chunks
from engine.importers.clients.aiperf.log import Log
from engine.importers.clients.aiperf.records import COLUMNS, Reading, Record, request_row
from engine.importers.clients.aiperf.streams import Response, response_of, usage_tokens
from engine.importers.clients.aiperf.summary import Summary
from engine.importers.clients.aiperf.tags import in_ns
from engine.importers.clients.aiperf.tally import Tally, wanted_for
from engine.importers.clients.aiperf.values import count, dig, text, whole
from engine.importers.clients.units import UnknownUnits
from engine.importers.clients.unusable import Unusable
from engine.importers.contract import Options
from engine.intake import BadRows, InputFile, Intake, json_rows

_STEP = 2_000
_SAME_NS = 2_000
"""A latency in the record and the same from the chunks differ by rounding only."""
NO_RECORD = "no record"


@dataclass
class Table:
    """Rows, and what was noticed on the way."""

    requests: Spool
    chunks: Chunks
    tallies: dict[str, Tally]
    first_ns: dict[str, int] = field(default_factory=dict)
    """Earliest credit, or start, by phase."""
    last_ns: dict[str, int] = field(default_factory=dict)
    skewed: int = 0
    cached_known: int = 0
    unfinished: int = 0
    responses: int = 0
    responses_agree: int = 0
    responses_differ: int = 0
    unrecorded: int = 0
    """Responses without a record."""
    silent: list[str] = field(default_factory=list)
    """Where the records are that say neither what the answer was nor that there was none."""
    odd_units: UnknownUnits = field(default_factory=UnknownUnits)
    odd_times: Unusable = field(default_factory=lambda: Unusable(aside=""))
    agentic: bool = False

    @property
    def rows(self) -> int:
        """Records of the run."""
        return sum(tally.rows for tally in self.tallies.values())


class Reader:
    """Reads the files of a run's requests, one after the other."""

    def __init__(self, intake: Intake, bad: BadRows, options: Options, summary: Summary | None) -> None:
        scratch = Path(tempfile.mkdtemp(dir=intake.scratch))
        stated = {"warmup": summary.warmup if summary else {}, "profile": summary.blocks if summary else {}}
        tallies = {phase: Tally(scratch, phase, wanted_for(blocks.keys())) for phase, blocks in stated.items()}
        self.table = Table(Spool("requests", COLUMNS, intake.scratch), Chunks(intake.scratch), tallies)
        self._bad = bad
        self._options = options
        self._seen: set[str] = set()
        self._responses: dict[str, Response] = {}
        self._turns: dict[str, list[tuple[int, str, int]]] = {}
        """Requests of a conversation: place in the trace, id, end."""

    def read(self, records: InputFile | None, raw: InputFile | None) -> Table:
        """Read both; raw records alone are the records, too."""
        if raw is not None:
            for request_id, kept, response, where in self._raw(raw):
                if records is None:
                    self._take(kept, request_id, response, Reading(True), where)
                else:
                    self._responses[request_id] = response
        if records is not None:
            # Whether the server reports usage is told by the first rows: a later one without is conspicuous.
            reading = Reading(b'"usage_' in records.head)
            for line, row in json_rows(records, self._bad):
                where = f"{records.name} line {line}"
                record = self._record(row, where)
                if record is not None:
                    request_id = text(record.metadata.get("x_request_id")) or f"line {line}"
                    self._take(record, request_id, self._responses.pop(request_id, None), reading, where)
                if line % _STEP == 0:
                    self._options.step(None, f"{line:,} records")
            if raw is not None and self._responses:
                self._take_unrecorded(raw)
        return self.table

    def _take_unrecorded(self, raw: InputFile) -> None:
        """Responses without a record: AIPerf writes none where there is neither a figure nor an error."""
        for line, row in json_rows(raw, BadRows(skip=True)):
            request_id = text(dig(row, "metadata", "x_request_id")) or f"line {line}"
            response = self._responses.pop(request_id, None)
            if response is not None:
                where = f"{raw.name} line {line}"
                self._take(Record.of(row), request_id, response, Reading(True), where, counted=False)

    def _raw(self, file: InputFile) -> Iterator[tuple[str, Record, Response, str]]:
        seen: set[str] = set()
        for line, row in json_rows(file, self._bad):
            where = f"{file.name} line {line}"
            record = self._record(row, where)
            if record is None:
                continue
            request_id = text(record.metadata.get("x_request_id")) or f"line {line}"
            if request_id in seen:
                self._bad.add(where, f"x_request_id {request_id} occurred before")
                continue
            seen.add(request_id)
            response = response_of(row)
            tokens = usage_tokens(response.usage)["output_tokens"]
            self.table.chunks.add_response(request_id, record.start_ns, response, tokens)
            response.chunks = []
            self.table.responses += 1
            yield request_id, record, response, where
            if line % _STEP == 0:
                self._options.step(None, f"{line:,} responses")

    def _record(self, row: dict[str, Any], where: str) -> Record | None:
        try:
            return Record.of(row)
        except ValueError as error:
            self._bad.add(where, str(error))
            return None

    def _take(
        self,
        record: Record,
        request_id: str,
        raw: Response | None,
        reading: Reading,
        where: str,
        counted: bool = True,
    ) -> None:
        """Make a row of a record; ``counted`` says whether the tool counts it, too."""
        if request_id in self._seen:
            self._bad.add(where, f"x_request_id {request_id} occurred before")
            return
        row = request_row(record, request_id, raw, reading)
        self._seen.add(request_id)
        row["parent_request_id"] = self._parent(record, request_id)
        table = self.table
        table.requests.append(row)
        if counted:
            table.tallies[row["phase"]].add(record, row["status"] != "in_flight")
        table.unrecorded += not counted
        if row["status"] == "in_flight":
            table.silent.append(where)
        for tag, unit in record.odd_units:
            table.odd_units.take(tag, unit, where)
        for name, value in record.odd_times:
            table.odd_times.note(name, f"in {where}", value)
        self._bounds(row)
        noticed = row["flags"] or ""
        table.skewed += flags.TIMES_WRONG in noticed
        table.unfinished += flags.UNFINISHED in noticed
        table.cached_known += row["cached_tokens"] is not None
        table.agentic |= row["source_trace_id"] is not None
        if raw is None and row["status"] == "ok":
            table.chunks.add_gaps(request_id, row.get("first_visible_ns"), record, row.get("output_tokens"))
        elif raw is not None and raw.first_ns is not None and record.error is None:
            self._agree(record, raw)

    def _bounds(self, row: dict[str, Any]) -> None:
        phase, table = row["phase"], self.table
        start = row["dispatched_ns"] if row["scheduled_ns"] is None else row["scheduled_ns"]
        if start is not None:
            table.first_ns[phase] = min(start, table.first_ns.get(phase, start))
        end = max(
            (row[c] for c in ("end_ns", "last_visible_ns", "dispatched_ns") if row.get(c) is not None), default=None
        )
        if end is not None:
            table.last_ns[phase] = max(end, table.last_ns.get(phase, end))

    def _agree(self, record: Record, raw: Response) -> None:
        told = [in_ns(record.value(tag), record.unit(tag)) for tag in ("time_to_first_token", "request_latency")]
        found = (raw.first_ns, raw.last_ns)
        if not raw.streamed or None in told:
            return
        same = all(abs(a - b) <= _SAME_NS for a, b in zip(told, found, strict=True) if a is not None and b is not None)
        self.table.responses_agree += same
        self.table.responses_differ += not same

    def _parent(self, record: Record, request_id: str) -> str | None:
        """The request after which a subagent was spawned: the last of its parent that had ended and precedes it."""
        meta = record.metadata
        place, own = whole(meta.get("source_outer_idx")), text(meta.get("x_correlation_id"))
        parent, start, end = text(meta.get("parent_correlation_id")), record.start_ns, count(meta.get("request_end_ns"))
        if place is None or own is None or start is None or end is None:
            return None
        if parent is None:
            self._turns.setdefault(own, []).append((place, request_id, end))
            return None
        before = [turn for turn in self._turns.get(parent, ()) if turn[0] < place and turn[2] <= start]
        return max(before)[1] if before else None


def unrecorded(table: Table, log: Log) -> dict[str, dict[str, int]]:
    """Requests that the log counts as sent and that no record tells of, added as rows; how many by phase and status."""
    added: dict[str, dict[str, int]] = {}
    for kind, phase in (("warmup", "warmup"), ("profiling", "profile")):
        counted = log.phases.get(kind)
        if counted is None or counted.sent is None:
            continue
        missing = max(counted.sent - table.tallies[phase].rows, 0)
        canceled = min(missing, counted.canceled or 0)
        added[phase] = {"canceled": canceled, "in_flight": missing - canceled}
        for status, number in added[phase].items():
            for index in range(1, number + 1):
                table.requests.append(
                    {
                        "request_id": f"{phase} {status} without a record {index}",
                        "phase": phase,
                        "status": status,
                        "error_type": NO_RECORD,
                    }
                )
    return added


def span(table: Table, phase: str) -> tuple[int | None, int | None]:
    """Earliest credit and latest end of a phase's rows."""
    return table.first_ns.get(phase), table.last_ns.get(phase)
