"""What an importer can notice about a request beyond its status; ``requests.flags`` joins them with ``; ``."""

from __future__ import annotations

from collections.abc import Iterable

UNFINISHED = "unfinished stream"
"""The response ended without a finish or usage chunk; the tool may call it a success."""
ZERO_OUTPUT = "zero output"
"""The server finished without content, whatever the tool calls it."""
BURST = "several tokens a chunk"
"""Fewer chunks than tokens: gaps between chunks are not gaps between tokens."""
UNFINISHED_OR_BURST = "unfinished stream, or several tokens in a chunk"
"""One chunk fewer than a finished stream of single tokens has; the files cannot tell which it is."""
FIRST_BURST = "several tokens in the first chunk"
ASKED_LENGTH = "output tokens are those asked for"
"""The tool counts what was requested where the server sent no usage."""
NO_TOKEN_COUNT = "output tokens not counted"
TIMES_WRONG = "times out of order"
"""A time lies before one that it must follow; the times concerned are NULL."""

NO_OUTCOME = "outcome not recorded"
"""The row says neither what came of the request nor that it failed."""

FLAGS = (
    UNFINISHED,
    UNFINISHED_OR_BURST,
    ZERO_OUTPUT,
    BURST,
    FIRST_BURST,
    ASKED_LENGTH,
    NO_TOKEN_COUNT,
    TIMES_WRONG,
    NO_OUTCOME,
)


def joined(flags: Iterable[str]) -> str | None:
    """The flags as one text in the order of FLAGS, NULL where there are none."""
    found = set(flags)
    unknown = found - set(FLAGS)
    if unknown:
        raise ValueError(f"unknown flag {min(unknown)}")
    return "; ".join(flag for flag in FLAGS if flag in found) or None
