"""Which chunks of a stream are content, told from how many there are: a role chunk may come first, a finish chunk last.

A tool that keeps gaps between all chunks says nothing about their content. With a token a chunk, a stream of n tokens
has n - 1 gaps if every chunk is content, n with a role chunk or a finish chunk of its own, n + 1 with both. Chat
endpoints begin with a role chunk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.importers.clients import flags


@dataclass(frozen=True)
class Content:
    """Ordinals of the first and the last chunk with content; None where the counts cannot tell."""

    first: int | None
    last: int | None
    noticed: frozenset[str] = frozenset()

    @property
    def chunks(self) -> int | None:
        """How many chunks have content."""
        return None if self.first is None or self.last is None else self.last - self.first + 1


@dataclass(frozen=True)
class Framing:
    """What stands around the content of a run's streams."""

    role: bool
    """The first chunk of a stream comes before its content."""
    finish: bool | None
    """A chunk of its own comes after the content; None: the counts do not tell."""
    usual_tokens: int | None = None
    """The output length of more than half of the responses."""

    def content(self, gaps: int, tokens: int) -> Content:
        """Where the content of a response of ``tokens`` tokens lies among ``gaps`` + 1 chunks.

        Where role and finish chunk are usual, a response of as many gaps as tokens lacks a finish chunk, or two
        tokens came in one chunk; it is taken for cut off where it is shorter than what is usual.
        """
        first, last = int(self.role), gaps
        noticed: set[str] = set()
        finished = bool(self.finish)
        if self.role and self.finish and gaps == tokens:
            finished = self.usual_tokens is None or tokens >= self.usual_tokens
            noticed.add(flags.UNFINISHED_OR_BURST if finished else flags.UNFINISHED)
        if last < first:
            return Content(None, None)  # one chunk of an unknown kind
        last = max(first, last - finished)
        if last - first + 1 < tokens and not noticed:
            noticed.add(flags.BURST)
        return Content(first, last, frozenset(noticed))


def framing_of(chat: bool, responses: Iterable[tuple[int, int]]) -> Framing:
    """How the streams of a run are framed, from (tokens, gaps) of its responses with content.

    Told by what most responses have; where bursts leave no such, the finish chunk stays unknown.
    """
    seen = [(tokens, gaps) for tokens, gaps in responses if tokens > 0]
    usual = _majority([tokens for tokens, _ in seen])
    more = Counter(gaps - tokens for tokens, gaps in seen if -1 <= gaps - tokens <= 1)
    if not seen or sum(more.values()) * 2 < len(seen):
        return Framing(chat, None, usual)
    extra = max(more, key=lambda surplus: (more[surplus], surplus))
    if chat:
        return Framing(extra >= 0, extra == 1, usual)
    return Framing(False, {-1: False, 0: True}.get(extra), usual)


def _majority(values: Sequence[int]) -> int | None:
    if not values:
        return None
    value, times = Counter(values).most_common(1)[0]
    return value if times * 2 > len(values) else None
