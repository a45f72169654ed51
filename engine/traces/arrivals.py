"""Traces of arrivals and lengths only: BurstGPT, Azure, Splitwise and Vidur CSV, and the same as JSON.

Each row is a request of its own. Nothing is known of what prompts hold, so no prompt finds anything in a cache. Times
are seconds, or dates; columns are told by their names in any case.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine.collector import collector_paused
from engine.errors import GapscopeError
from engine.traces.fields import MOST_TOKENS, sampled, to_ns
from engine.traces.files import Head, name_of, place, rows
from engine.traces.tree import Conversation, Play, Segment, Trace, Turn

NAME = "arrivals with lengths (BurstGPT, Azure, Splitwise, Vidur), CSV or JSON"
S = 1_000_000_000
_LONGEST = 1 << 12  # of a line with the names of columns

_ARRIVAL = ("timestamp", "arrived_at", "arrival_timestamp", "arrival_time")
_PROMPT = ("request tokens", "contexttokens", "num_prefill_tokens", "prompt_size")
_OUTPUT = ("response tokens", "generatedtokens", "num_decode_tokens", "token_size")


def looks_like(head: Head) -> bool:
    """Whether a file that begins like this has the columns of such a trace."""
    names = list(head.row)
    if not names:
        try:
            names = next(csv.reader([head.line[:_LONGEST].decode("utf-8-sig", errors="replace")]), [])
        except csv.Error:
            return False
    return _columns(names) is not None


@collector_paused()
def read(path: Path, data: bytes) -> Trace:
    """The trace in ``data``.

    Raises:
        GapscopeError: a row whose time or tokens cannot be read, named by its line.
    """
    plays: list[Play] = []
    silent = 0
    for number, arrival, prompt, output in _json(path, data) if data.lstrip()[:1] in b"[{" else _csv(path, data):
        try:
            at, tokens, out = _time(arrival), _count(prompt), _count(output)
            if not tokens:
                raise ValueError
        except (TypeError, ValueError, OverflowError):
            raise GapscopeError(
                f"{place(path, data, number)}: arrival {arrival!r}, prompt {prompt!r}, output {output!r}; expected "
                "seconds or a date, at least 1 token and at least 0 tokens."
            ) from None
        name = f"row{len(plays)}"
        silent += out == 0
        turn = Turn(max(1, out), 0, (Segment(f"in:{name}", tokens),))
        plays.append(Play(name, [Conversation(name, [turn])], at))
    if not plays:
        raise GapscopeError(f"{path}: no rows below the names of the columns.")
    notes = {"prompts": "lengths only: no prompt finds anything in a cache"}
    if silent:
        notes["requests without output"] = sampled(silent)
    return Trace(name_of(path), "arrivals", "", plays, notes=notes)


def _columns(names: list[str]) -> tuple[str, str, str] | None:
    """The columns of arrival, prompt and output; None where one is missing."""
    by_name = {name.strip().lower(): name for name in names if isinstance(name, str)}
    found = [next((by_name[n] for n in known if n in by_name), None) for known in (_ARRIVAL, _PROMPT, _OUTPUT)]
    arrival, prompt, output = found
    return None if arrival is None or prompt is None or output is None else (arrival, prompt, output)


Row = tuple[int, Any, Any, Any]
"""Its number, arrival, prompt and output."""


def _csv(path: Path, data: bytes) -> Iterator[Row]:
    reader = csv.DictReader(io.StringIO(data.decode("utf-8-sig", errors="replace"), newline=""))
    try:
        columns = _columns(list(reader.fieldnames or ()))
        assert columns is not None  # by which it was told
        for row in reader:
            arrival, prompt, output = (row[column] for column in columns)
            yield reader.line_num, arrival, prompt, output
    except csv.Error as error:
        raise GapscopeError(f"{path}, line {reader.line_num}: not CSV ({error}).") from None


def _json(path: Path, data: bytes) -> Iterator[Row]:
    for number, row in rows(path, data):
        columns = _columns(list(row)) if isinstance(row, dict) else None
        if columns is None:
            raise GapscopeError(
                f"{place(path, data, number)}: expected an object with an arrival, prompt tokens and output tokens."
            )
        arrival, prompt, output = (row[column] for column in columns)
        yield number, arrival, prompt, output


def _time(value: Any) -> int:
    """Seconds or a date (of UTC where it names no zone) as ns.

    Raises:
        ValueError, TypeError, OverflowError: it is neither.
    """
    try:
        return to_ns(float(value), S)
    except ValueError:
        text = str(value).strip()
        whole, _, fraction = text.partition(".")
        digits = fraction[: len(fraction) - len(fraction.lstrip("0123456789"))]
        moment = datetime.fromisoformat(whole + fraction[len(digits) :])
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return round(moment.timestamp()) * S + round(float(f"0.{digits or 0}") * 1e9)


def _count(value: Any) -> int:
    """Tokens, which some tools write like 374.0.

    Raises:
        ValueError, TypeError, OverflowError: not a whole number from 0 on.
    """
    number = float(value)
    if not 0 <= number <= MOST_TOKENS or number != int(number):
        raise ValueError(value)
    return int(number)
