"""A record of AIPerf as a row of ``requests``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.importers.clients import flags
from engine.importers.clients.aiperf.streams import Response, usage_tokens
from engine.importers.clients.aiperf.tags import ALIASES, NS_OF, NS_PER_MS, SMALL, in_ns, is_time, tag_of
from engine.importers.clients.aiperf.values import count, dig, text, whole
from engine.intake.rows import number

COLUMNS = (
    "request_id",
    "source_trace_id",
    "source_kind",
    "source_outer_index",
    "source_inner_index",
    "conversation_id",
    "turn_index",
    "play_id",
    "parent_request_id",
    "agent_depth",
    "phase",
    "status",
    "tool_status",
    "flags",
    "error_type",
    "error_message",
    "scheduled_ns",
    "dispatched_ns",
    "first_visible_ns",
    "last_visible_ns",
    "end_ns",
    "first_output_ns",
    "input_tokens",
    "requested_output_tokens",
    "output_tokens",
    "reasoning_tokens",
    "cached_tokens",
)

NO_OUTCOME = "neither figures nor an error"
"""Our word for the outcome of a record that says neither."""
DURATIONS = ("time_to_first_token", "time_to_first_output_token", "request_latency", "inter_chunk_latency")
"""Tags of times that rows are made of."""
_MOMENTS = ("credit_issued_ns", "request_start_ns", "timestamp_ns", "request_ack_ns", "request_end_ns")
"""Keys of the metadata that are times since the epoch."""
_OF_THE_PROMPT = frozenset(["input_sequence_length", "error_isl", "requested_osl"])
"""Tags that a record can have without an answer."""
_NO_CONTENT = ("No responses with actual content", "no responses with content")
_CANCELED = "RequestCancellationError"
_MESSAGE_CHARS = 2_000
_LONGEST_MS = 1e12
"""No duration lasts thirty years, nor do the gaps of a response together."""


@dataclass(frozen=True)
class Record:
    """A line of the records (or of the raw records), taken apart."""

    metadata: Mapping[str, Any]
    metrics: Mapping[str, Any]
    error: Any
    """None where there is none."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Record:
        """The parts of a line.

        Raises:
            ValueError: a part of another type, in words.
        """
        metadata, metrics = row.get("metadata"), row.get("metrics")
        if not isinstance(metadata, dict):
            raise ValueError("no metadata, expected an object")
        if metrics is not None and not isinstance(metrics, dict):
            raise ValueError("metrics are no object")
        named = metrics or {}
        if ALIASES.keys() & named.keys():
            named = {tag_of(tag): entry for tag, entry in named.items()}
        return cls(metadata, named, row.get("error") or None)

    def value(self, tag: str) -> Any:
        """The value of a tag, None where the record lacks it."""
        entry = self.metrics.get(tag)
        return entry.get("value") if isinstance(entry, dict) else entry

    def unit(self, tag: str) -> Any:
        """The unit of a tag."""
        entry = self.metrics.get(tag)
        return entry.get("unit") if isinstance(entry, dict) else None

    @cached_property
    def gaps_ms(self) -> npt.NDArray[np.float64] | None:
        """Gaps between the chunks with content, NaN where one is no number; None where they are not kept."""
        gaps, factor = (
            self.value("inter_chunk_latency"),
            NS_OF.get(str(self.unit("inter_chunk_latency") or "ms").lower()),
        )
        if not isinstance(gaps, list) or factor is None:
            return None
        try:
            found = np.array(gaps, np.float64)
        except (TypeError, ValueError, OverflowError):
            found = np.array([math.nan if (told := number(gap)) is None else told for gap in gaps])
        found = found if found.ndim == 1 else np.full(len(gaps), math.nan)
        found = found if factor == NS_PER_MS else found * (factor / NS_PER_MS)
        found[~(np.abs(found) < _LONGEST_MS)] = math.nan
        return found

    def duration_ns(self, tag: str) -> int | None:
        """A duration in nanoseconds, by the unit that stands beside it."""
        return in_ns(self.value(tag), self.unit(tag))

    @property
    def warmup(self) -> bool:
        """Whether AIPerf counts it to the warm-up."""
        phase = self.metadata.get("benchmark_phase", self.metadata.get("credit_phase"))
        return str(phase).lower() == "warmup"

    @property
    def start_ns(self) -> int | None:
        """When the request was sent, in nanoseconds since the epoch."""
        found = count(self.metadata.get("request_start_ns"))
        return count(self.metadata.get("timestamp_ns")) if found is None else found

    @property
    def canceled(self) -> bool:
        """Whether the client canceled it."""
        return self.metadata.get("was_cancelled") is True or dig(self.error, "type") == _CANCELED

    @property
    def skipped(self) -> bool:
        """Whether its prompt was longer than the context, so that it was not sent or not answered."""
        return self.metadata.get("context_overflow_skip") is True

    @property
    def silent(self) -> bool:
        """Whether it says neither what the answer was nor that there was none."""
        return self.error is None and not self.canceled and not self.skipped and self.metrics.keys() <= _OF_THE_PROMPT

    @property
    def odd_units(self) -> list[tuple[str, Any]]:
        """Times whose unit is no unit of time: tag and unit."""
        found = [(tag, self.unit(tag)) for tag in DURATIONS if self.value(tag) is not None]
        return [(tag, unit) for tag, unit in found if unit and str(unit).lower() not in NS_OF]

    @property
    def odd_times(self) -> Iterator[tuple[str, Any]]:
        """Values in the place of a time that are none, by tag or key; a unit that nobody knows is another matter."""
        value: Any
        for tag, entry in self.metrics.items():
            value, unit = (entry.get("value"), entry.get("unit")) if type(entry) is dict else (entry, None)
            if type(value) in (float, int) and 0 <= value < SMALL:
                continue
            timed = is_time(unit) if unit else tag in DURATIONS
            if tag == "inter_chunk_latency":
                if timed and not self.gaps_usable:
                    yield tag, self._odd_gap
            elif timed and ((told := in_ns(value, unit)) is None or told < 0):
                yield tag, value
        for key in _MOMENTS:
            value = self.metadata.get(key)
            if value is not None and count(value) is None:
                yield key, value

    @cached_property
    def gaps_usable(self) -> bool:
        """Whether the gaps between chunks are times, and their sum, too."""
        gaps = self.gaps_ms
        return gaps is not None and bool(np.all(gaps >= 0)) and float(gaps.sum()) < _LONGEST_MS  # NaN is not

    @property
    def _odd_gap(self) -> Any:
        """The first gap that is no time; their sum where each is one; what is no list as it is."""
        gaps = self.gaps_ms
        if gaps is None:
            return self.value("inter_chunk_latency")
        odd = np.flatnonzero(~(gaps >= 0))
        return self.value("inter_chunk_latency")[odd[0]] if len(odd) else float(gaps.sum())

    @property
    def error_words(self) -> tuple[str | None, str | None]:
        """Type and message of the error, the HTTP status in the type."""
        if not isinstance(self.error, dict):
            return ("error", text(self.error)) if self.error is not None else (None, None)
        code, name = whole(self.error.get("code")), text(self.error.get("type")) or "error"
        message = text(self.error.get("message"))
        return (name if code is None else f"{name} ({code})"), message and message[:_MESSAGE_CHARS]


@dataclass(frozen=True)
class Reading:
    """What the rows of a run have in common."""

    usage_expected: bool
    """Whether the server reports its counts, so that a response without them is conspicuous."""


def request_row(record: Record, request_id: str, raw: Response | None, reading: Reading) -> dict[str, Any]:
    """The row of a record, times since the epoch; ``raw`` is its response where it was kept."""
    meta = record.metadata
    start = record.start_ns
    row: dict[str, Any] = {
        "request_id": request_id,
        "source_trace_id": text(meta.get("source_trace_id")),
        "source_kind": text(meta.get("source_kind")),
        "source_outer_index": whole(meta.get("source_outer_idx")),
        "source_inner_index": whole(meta.get("source_inner_idx")),
        "conversation_id": text(meta.get("conversation_id")),
        "turn_index": whole(meta.get("turn_index")),
        "play_id": text(meta.get("root_correlation_id")) or text(meta.get("x_correlation_id")),
        "agent_depth": count(meta.get("agent_depth")),
        "phase": "warmup" if record.warmup else "profile",
        "dispatched_ns": start,
        "input_tokens": _tokens(record, "input_sequence_length", "error_isl", "usage_prompt_tokens"),
        "requested_output_tokens": _tokens(record, "requested_osl"),
        "cached_tokens": _tokens(record, "usage_prompt_cache_read_tokens"),
    }
    if raw is not None:
        counts = usage_tokens(raw.usage)
        _fill(row, {name: counts[name] for name in ("input_tokens", "cached_tokens")})
        _fill(row, {"requested_output_tokens": raw.asked_tokens})
    noticed = _times(row, record, start)
    noticed |= _outcome(row, record, raw, reading)
    if row["status"] == "ok" and row.get("output_tokens") != 0:
        noticed |= _latencies(row, record, raw, start)
    row["flags"] = flags.joined(noticed)
    return row


def _fill(row: dict[str, Any], values: Mapping[str, int | None]) -> None:
    """Take values where the record has none."""
    row |= {column: value for column, value in values.items() if row.get(column) is None and value is not None}


def _tokens(record: Record, *tags: str) -> int | None:
    return next((found for tag in tags if (found := count(record.value(tag))) is not None), None)


def _times(row: dict[str, Any], record: Record, start: int | None) -> set[str]:
    """When it was allowed and when it ended; times that come before what they must follow are left out."""
    meta = record.metadata
    credit, end = whole(meta.get("credit_issued_ns")), whole(meta.get("request_end_ns"))
    acked = whole(meta.get("request_ack_ns"))
    late = start is not None and credit is not None and (credit > start or credit < 0)
    early = start is not None and end is not None and end < start
    skewed = late or early or (start is not None and acked is not None and acked < start)
    row["scheduled_ns"] = None if late else credit
    row["end_ns"] = None if early else end
    lacking = start is None and ("request_start_ns" in meta or "timestamp_ns" in meta)
    return {flags.TIMES_WRONG} if skewed or lacking else set()


def _outcome(row: dict[str, Any], record: Record, raw: Response | None, reading: Reading) -> set[str]:
    kind, message = record.error_words
    broken = raw is not None and raw.error is not None
    if record.canceled:
        row |= {"status": "canceled", "tool_status": "error", "error_type": kind, "error_message": message}
        return set()
    if record.skipped:
        row |= {"status": "rejected", "tool_status": "skipped", "error_type": kind or "context overflow"}
        row["error_message"] = message
        return set()
    if record.error is not None:
        row |= {"status": "error", "tool_status": "error", "error_type": kind, "error_message": message}
        empty = message is not None and any(words in message for words in _NO_CONTENT)
        if empty and not broken:
            row |= {"status": "ok", "output_tokens": 0, "error_type": None, "error_message": None}
            row["tool_status"] = f"error: {kind}"
            return {flags.ZERO_OUTPUT}
        return {flags.UNFINISHED} if broken else set()
    if record.silent and (raw is None or raw.bare):
        row |= {"status": "in_flight", "tool_status": NO_OUTCOME}
        return {flags.NO_OUTCOME}
    row |= {"status": "ok", "tool_status": "success"}
    if raw is not None and not raw.bare and raw.streamed:
        if raw.error is not None:
            row |= {
                "status": "error",
                "error_type": "error inside the stream",
                "error_message": raw.error[:_MESSAGE_CHARS],
            }
        return set() if raw.complete and raw.error is None else {flags.UNFINISHED}
    counted = any(tag.startswith("usage_") for tag in record.metrics)
    return {flags.UNFINISHED} if reading.usage_expected and not counted else set()


def _latencies(row: dict[str, Any], record: Record, raw: Response | None, start: int | None) -> set[str]:
    row["output_tokens"] = _tokens(record, "output_sequence_length")
    row["reasoning_tokens"] = _tokens(record, "reasoning_token_count", "usage_reasoning_tokens")
    if raw is not None:
        counts = usage_tokens(raw.usage)
        _fill(row, {name: counts[name] for name in ("output_tokens", "reasoning_tokens")})
    first = record.duration_ns("time_to_first_token")
    output = record.duration_ns("time_to_first_output_token")
    last = record.duration_ns("request_latency")
    if raw is not None and raw.streamed and raw.first_ns is not None:
        first, output, last = raw.first_ns, raw.first_output_ns, raw.last_ns
    noticed = set()
    if (first or 0) < 0 or (last or 0) < 0 or (None not in (first, last) and last < first):  # type: ignore[operator]
        first = output = last = None
        noticed.add(flags.TIMES_WRONG)
    if output is not None and first is not None and output < first:
        output = None
        noticed.add(flags.TIMES_WRONG)
    if start is not None:
        after = {"first_visible_ns": first, "first_output_ns": output, "last_visible_ns": last}
        row |= {column: start + value for column, value in after.items() if value is not None}
    tokens, gaps = row["output_tokens"], record.gaps_ms
    if tokens is None:
        noticed.add(flags.NO_TOKEN_COUNT)
    chunks = None if gaps is None else len(gaps) + 1
    if raw is not None and raw.streamed:
        chunks = raw.contents
    if tokens is not None and chunks is not None and 0 < chunks < tokens:
        noticed.add(flags.BURST)
    return noticed
