"""Fields that many formats have: lengths and times by their several names, hash ids; and what is said of them."""

from __future__ import annotations

from array import array
from typing import Any

from engine.errors import GapscopeError
from engine.jsonl import Type
from engine.traces.tree import Edge, Turn

MS = 1_000_000
LATEST_NS = 1 << 62
MOST_TOKENS = 10**8
"""Of one prompt or output: far beyond any model, and few enough to count their blocks."""
LENGTH = Type(f"a whole number from 1 to {MOST_TOKENS:.0e}", lambda v: type(v) is int and 1 <= v <= MOST_TOKENS)
OUTPUT = Type(f"a whole number from 0 to {MOST_TOKENS:.0e}", lambda v: type(v) is int and 0 <= v <= MOST_TOKENS)


def prompt_length(row: dict[str, Any]) -> Any:
    """The length of a prompt.

    Raises:
        KeyError: no field has it.
    """
    return row["input_length"] if "input_length" in row else row["input_tokens"]


def has_length(row: dict[str, Any]) -> bool:
    """Whether a row has the length of a prompt."""
    return "input_length" in row or "input_tokens" in row


def output_length(row: dict[str, Any]) -> Any:
    """The length of an output.

    Raises:
        KeyError: no field has it.
    """
    return row["output_length"] if "output_length" in row else row["output_tokens"]


def has_output(row: dict[str, Any]) -> bool:
    """Whether a row has the length of an output."""
    return "output_length" in row or "output_tokens" in row


def to_ns(value: float, unit: int = MS) -> int:
    """A time in units of ``unit`` nanoseconds (milliseconds) as nanoseconds.

    Raises:
        ValueError, OverflowError: not a number, or one that needs more than 64 bits.
        TypeError: something else than a number.
    """
    at = round(value * unit)
    if abs(at) > LATEST_NS:
        raise ValueError(at)
    return at


def arrival_of(row: dict[str, Any]) -> int | None:
    """When a request arrived, in ns; None where it does not say."""
    at = row.get("timestamp")
    if at is None:
        at = row.get("created_time")
    return None if at is None else to_ns(at)


def hash_ids_of(values: list[int]) -> array[int]:
    """Hash ids side by side; those that need the 64th bit come out negative, which names them as well."""
    try:
        return array("q", values)
    except OverflowError:
        return array("q", array("Q", values).tobytes())


def due_at(turn: Turn, number: int, conversation_id: str, at_ns: int) -> None:
    """Let turn ``number`` of a conversation be sent ``at_ns`` after its play began, and after the turn before it."""
    turn.edges = (Edge(conversation_id, number - 1, "completion", 0, "sequence"),)
    turn.not_before_ns = turn.start_ns = at_ns


def sampled(requests: int) -> str:
    """The note on requests without output."""
    return f"{requests}, played with one token, which a server must sample"


def prompts_as_text(first: str, count: int) -> GapscopeError:
    """Why ``count`` prompts that are text cannot be played; ``first`` is where the first of them stands."""
    return GapscopeError(
        f"{first} and {count - 1} more give the prompt as text, whose length in tokens only the model's tokenizer "
        "knows; expected input_length beside it."
    )
