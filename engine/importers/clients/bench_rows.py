"""The parallel arrays in which vLLM's and SGLang's load generators keep the details of each request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.errors import GapscopeError
from engine.importers.clients.unusable import Unusable
from engine.importers.clients.values import count, ns
from engine.importers.clients.within import Spans
from engine.importers.contract import Options
from engine.intake import BadRows
from engine.intake.rows import number

CHUNKS = ("request_id", "ordinal", "time_ns", "after_ns", "tokens", "visible")
Kinds = Mapping[str, type[str] | type[float]]
"""Arrays of text, and of seconds (float)."""
_STEP = 2_000


@dataclass
class Totals:
    """What the rows add up to, in the tool's own terms; latencies in milliseconds."""

    ttft: list[float] = field(default_factory=list)
    itl: list[float] = field(default_factory=list)
    ok: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    spans: Spans = field(default_factory=Spans)
    unusable: Unusable = field(default_factory=Unusable)

    def succeeded(
        self, input_tokens: int | None, output_tokens: int | None, ttft: float | None, between: list[float] | None
    ) -> None:
        """Count a success by the tool's own numbers; ``ttft`` and ``between`` in seconds."""
        self.ok += 1
        self.input_tokens += input_tokens or 0
        self.output_tokens += output_tokens or 0
        self.itl += [gap * 1e3 for gap in between or ()]
        if ttft is not None:
            self.ttft.append(ttft * 1e3)

    def sums(self, total_throughput: str) -> dict[str, float]:
        """What a header states of it, by its keys; ``total_throughput`` is how the tool calls that of all tokens."""
        return {
            "completed": self.ok,
            "total_input_tokens": self.input_tokens,
            "total_output_tokens": self.output_tokens,
            "request_throughput": self.ok,
            "output_throughput": self.output_tokens,
            total_throughput: self.input_tokens + self.output_tokens,
        }


def arrays(document: Mapping[str, Any], names: tuple[str, ...], where: str) -> dict[str, list[Any]]:
    """The arrays of these names that a document has; they must be of one length.

    Raises:
        GapscopeError: one is no list, or their lengths differ.
    """
    found = {name: document[name] for name in names if document.get(name) is not None}
    for name, values in found.items():
        if not isinstance(values, list):
            raise GapscopeError(f"{where}: {name} is no list, expected one value per request. Save the result again.")
    lengths = {name: len(values) for name, values in found.items() if values}
    if len(set(lengths.values())) > 1:
        words = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise GapscopeError(f"{where}: the arrays have different lengths ({words}), expected one value per request.")
    return {name: values for name, values in found.items() if values}


def seconds(value: Any) -> float | None:
    """A time in seconds, before 0 too; None of what is no number and of what no clock reaches."""
    found = number(value)
    return None if ns(found) is None else found


def gaps(values: Any) -> list[float] | None:
    """Gaps between chunks in seconds; None where they are no list of times of 0 or more, or no time together."""
    if not isinstance(values, list):
        return None
    found = [number(value) for value in values]
    kept = [gap for gap in found if gap is not None and gap >= 0]
    return kept if len(kept) == len(found) and ns(sum(kept)) is not None else None


def are_gaps(values: Any) -> bool:
    """Whether these are gaps as a tool writes them: numbers, ``NaN`` among them, or nothing at all."""
    return values is None or (isinstance(values, list) and all(type(value) in (int, float) for value in values))


def requests_in(
    held: Mapping[str, list[Any]],
    names: tuple[str, ...],
    kinds: Kinds,
    unusable: Unusable,
    bad: BadRows,
    where: str,
    options: Options,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Id and values of each request in parallel arrays; those of another type than ``kinds`` says are bad rows.

    ``output_lens`` must be counts and ``itls`` gaps; float stands for seconds, and those that are no times are counted.
    """
    total = len(held["ttfts"])
    looked_at = [name for name in names if kinds.get(name) is float or name in ("itls", "queue_times")]
    columns = [held.get(name, [None] * total) for name in names]
    for place, values in enumerate(zip(*columns, strict=True)):
        row = dict(zip(names, values, strict=True))
        problem = _problem(row, kinds)
        if problem:
            bad.add(f"{where} request {place}", problem)
            continue
        for name in looked_at:
            unusable.take(name, place, row[name], signed=name == "start_times")
        yield str(place), row
        if place % _STEP == 0:
            options.step(place / total, f"{place:,} of {total:,} requests")


def _problem(row: Mapping[str, Any], kinds: Kinds) -> str | None:
    if row["output_lens"] is not None and count(row["output_lens"]) is None:
        return f"output_lens is {row['output_lens']!r:.40}, expected a count"
    for name, kind in kinds.items():
        if kind is float and row[name] is not None and not isinstance(row[name], int | float):
            return f"{name} is {row[name]!r:.40}, expected seconds"
    if not are_gaps(row["itls"]):
        return "itls holds something else than gaps in seconds"
    for name, kind in kinds.items():
        if kind is str and row[name] is not None and not isinstance(row[name], str):
            return f"{name} is {row[name]!r:.40}, expected text"
    return None


def failure(message: str) -> dict[str, Any]:
    """Columns of ``requests`` of a request that failed."""
    kind = message.partition(":")[0].strip()[:80] or "error"
    return {"status": "error", "tool_status": "error", "error_type": kind, "error_message": message[:1000]}
