"""One request of a GuideLLM report, of any generation, as a row of ``requests``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from engine.importers.clients import flags
from engine.importers.clients.times import in_order, times
from engine.importers.clients.values import count, dig, mapping, ns, text
from engine.intake.rows import number

COLUMNS = (
    *("request_id", "conversation_id", "turn_index", "phase", "status", "tool_status", "flags"),
    *("error_type", "error_message", "scheduled_ns", "dispatched_ns", "first_visible_ns", "first_output_ns"),
    *("last_visible_ns", "end_ns", "input_tokens", "requested_output_tokens", "output_tokens", "cached_tokens"),
)
OUTCOMES = {"successful": "ok", "incomplete": "canceled", "errored": "error"}
"""Our status of the three lists of a report."""
_STATUS = {"successful": "completed", "incomplete": "cancelled", "errored": "errored"}
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_MESSAGE = 1000


@dataclass(frozen=True)
class Request:
    """A request as the report tells it; times are epoch seconds, None where the report has none."""

    outcome: str
    """``successful``, ``incomplete`` or ``errored``."""
    row: Mapping[str, Any]
    scheduled: float | None
    start: float | None
    first: float | None
    first_output: float | None
    last: float | None
    end: float | None
    answered: bool
    """Whether the response came to its regular end, with content or without."""
    iterations: int | None
    """Chunks with content, where the report counts them."""
    output_tokens: int | None

    @classmethod
    def of(cls, outcome: str, row: Any) -> Request:
        """Read a request of the layout of 0.4 and later, or of an older one.

        Raises:
            ValueError: it is no object.
        """
        if not isinstance(row, dict):
            raise ValueError("expected an object per request")
        tokens = count(row.get("output_tokens"))
        timings = mapping(dig(row, "info", "timings"))
        if timings:
            at = {name: number(timings.get(name)) for name in _TIMINGS}
            return cls(
                outcome,
                row,
                at["targeted_start"],
                at["request_start"],
                at["first_token_iteration"] or at["first_iteration"],
                at["first_output_token_iteration"],
                at["last_token_iteration"] or at["last_iteration"],
                at["request_end"] or at["resolve_end"],  # a failed response has the second alone
                at["request_end"] is not None and at["first_request_iteration"] is not None,
                count(timings.get("token_iterations")),
                tokens,
            )
        old = mapping(row.get("scheduler_info"))
        start, end = number(row.get("start_time")), number(row.get("end_time"))
        first, last = number(row.get("first_token_time")), number(row.get("last_token_time"))
        planned = number(old.get("targeted_start_time"))
        return cls(outcome, row, planned, start, first, None, last, end, False, None, tokens)

    @property
    def empty(self) -> bool:
        """Whether the server finished without content: an error to GuideLLM, and nothing wrong with the request."""
        if self.outcome == "successful":
            return self.output_tokens == 0
        return self.outcome == "errored" and self.answered and self.iterations == 0

    @property
    def before(self) -> float | None:
        """When it was sent, or was to be."""
        return self.scheduled if self.start is None else self.start

    def entry(self, request_id: str, phase: str) -> dict[str, Any]:
        """The row of ``requests``; an error ends, and has no latencies."""
        status = "ok" if self.empty else OUTCOMES[self.outcome]
        visible = status in ("ok", "canceled") and not self.empty
        columns, noticed = times(
            ns(self.start),
            ns(self.first) if visible else None,
            ns(self.last) if visible else None,
            ns(self.end),
        )
        first_output = ns(self.first_output) if visible and columns["first_visible_ns"] is not None else None
        (first_output, _, _), wrong = in_order(columns["first_visible_ns"], first_output, None, None)
        error = text(dig(self.row, "info", "error")) or text(self.row.get("error"))
        return {
            **columns,
            "request_id": request_id,
            "conversation_id": text(dig(self.row, "info", "conversation_id")),
            "turn_index": count(dig(self.row, "info", "turn_index")),
            "phase": phase,
            "status": status,
            "tool_status": text(dig(self.row, "info", "status")) or _STATUS[self.outcome],
            "flags": flags.joined([*noticed, *[flags.TIMES_WRONG] * wrong, *self._flags(status)]),
            "error_type": error_type(error) if status != "ok" else None,
            "error_message": error[:_MESSAGE] if error else None,
            "scheduled_ns": ns(self.scheduled),
            "first_output_ns": first_output,
            "input_tokens": count(self.row.get("prompt_tokens")),
            "requested_output_tokens": requested_tokens(self.row.get("request_args")),
            "output_tokens": 0 if self.empty else self.output_tokens,
            "cached_tokens": count(self.row.get("cached_tokens")) if self.outcome == "successful" else None,
        }

    def _flags(self, status: str) -> list[str]:
        if self.empty:
            return [flags.ZERO_OUTPUT]
        found = []
        if status == "error" and (self.first is not None or self.iterations):
            found.append(flags.UNFINISHED)
        if status == "ok" and self.output_tokens is None:
            found.append(flags.NO_TOKEN_COUNT)
        if self.iterations and self.output_tokens and self.iterations < self.output_tokens:
            found.append(flags.BURST)
        return found


_TIMINGS = (
    "targeted_start",
    "request_start",
    "first_request_iteration",
    "first_token_iteration",
    "first_output_token_iteration",
    "last_token_iteration",
    "first_iteration",
    "last_iteration",
    "request_end",
    "resolve_end",
)


def error_type(error: str | None) -> str | None:
    """The kind of an error: the name before its first parenthesis or colon."""
    if not error:
        return None
    for mark in ("(", ":"):
        name = error.partition(mark)[0].strip()
        if name and name.isidentifier():
            return name[:80]
    return error[:80]


def requested_tokens(arguments: Any) -> int | None:
    """The output length that a request asked for, from its arguments, which a report keeps as text."""
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            return None
    for place in (dig(arguments, "body"), arguments):
        for name in _LIMITS:
            found = count(dig(place, name))
            if found is not None:
                return found
    return None
