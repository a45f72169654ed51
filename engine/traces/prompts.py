"""Token ids of the prompts of a play: what a client sends, and what a recording must have been sent.

Where a trace has token ids they are used; elsewhere ids are made up from the name of the content, so that prompts are
equal exactly where the trace says that they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engine.traces import agentic, load_trace
from engine.traces.content import TokenIds, output_content
from engine.traces.tree import Conversation, Play, Trace

LOW, HIGH = 256, 8000
"""Made up ids lie in this range unless told otherwise: above most special tokens, and in every vocabulary."""

Hashes = npt.NDArray[np.uint64]
OutputOf = Callable[[str, int], TokenIds | None]
"""What a turn of a conversation put out; None: nobody knows."""


@dataclass(frozen=True)
class TokenSource:
    """Token ids by the name of their content.

    ``given`` are the trace's own. Others are made up from ``low`` to ``high`` - 1. Content of a play that shares
    nothing with other plays has a ``number`` other than 0, and is made up too. ``block_tokens`` is how many tokens a
    hash id of the trace stands for.
    """

    given: Mapping[str, TokenIds] = field(default_factory=dict)
    low: int = LOW
    high: int = HIGH
    block_tokens: int = 0

    def ids(self, content: str, tokens: int, number: int = 0) -> TokenIds:
        """So many tokens of this content."""
        own = self.given.get(content) if number == 0 else None
        if own is not None:
            return own[:tokens]
        seed = int.from_bytes(blake2b(f"{number}:{content}".encode(), digest_size=8).digest(), "little")
        mixed = _mixed(np.arange(tokens, dtype=np.uint64) + np.uint64(seed))
        return (self.low + mixed % np.uint64(self.high - self.low)).astype(np.uint32)


class PlayPrompts:
    """The prompts of one play, each the context of its conversation and what its turn adds.

    ``output_of`` tells what turns put out; with ``make_up``, what it does not know is made up, as long as the trace
    says. ``number`` tells the content of plays apart (see :class:`TokenSource`). Of each conversation the last prompt
    is kept, as the next one mostly goes on from it.
    """

    def __init__(
        self, play: Play, source: TokenSource, output_of: OutputOf, make_up: bool = True, number: int = 0
    ) -> None:
        self._talks: dict[str, Conversation] = {c.conversation_id: c for c in play.conversations}
        self._source = source
        self._output_of = output_of
        self._make_up = make_up
        self._number = number
        self._last: dict[str, tuple[int, TokenIds]] = {}

    def of(self, conversation_id: str, turn: int) -> TokenIds | None:
        """The prompt of a turn; None where an output in it is not known, or the play has no such turn."""
        talk = self._talks.get(conversation_id)
        if talk is None or not 0 <= turn < len(talk.turns):
            return None
        ids = talk.turns[turn].hash_ids
        prompt = self._grown(talk, turn) if ids is None else self._named(talk, turn, ids)
        if prompt is not None:
            self._last[conversation_id] = turn, prompt
        return prompt

    def _grown(self, talk: Conversation, turn: int) -> TokenIds | None:
        """From the nearest prompt before it that is known, or from the beginning."""
        parts: list[TokenIds] = []
        at: tuple[Conversation, int] | None = (talk, turn)
        while at is not None:
            talk, turn = at
            known = self._last.get(talk.conversation_id)
            if known is not None and known[0] == turn:
                parts.append(known[1])
                break
            parts += [self._source.ids(s.content, s.tokens, self._number) for s in reversed(talk.turns[turn].new_input)]
            at = self._before(talk, turn)
            if at is not None:
                output = self._output(*at)
                if output is None:
                    return None
                parts.append(output)
        return np.concatenate(parts[::-1]) if parts else np.empty(0, np.uint32)

    def _output(self, talk: Conversation, turn: int) -> TokenIds | None:
        output = self._output_of(talk.conversation_id, turn)
        if output is None and self._make_up:
            content, tokens = output_content(talk.conversation_id, turn), talk.turns[turn].output_tokens
            return self._source.ids(content, tokens, self._number)
        return output

    def _before(self, talk: Conversation, turn: int) -> tuple[Conversation, int] | None:
        """The turn whose context this one continues."""
        if turn:
            return talk, turn - 1
        if talk.mode == "fork" and talk.parent is not None and talk.after_turn is not None:
            return self._talks[talk.parent], talk.after_turn
        return None

    def _named(self, talk: Conversation, turn: int, hash_ids: Sequence[int]) -> TokenIds:
        """A prompt whose blocks the trace names; what the names leave over belongs to this turn alone."""
        tokens, count = talk.turns[turn].prompt_tokens or 0, len(hash_ids)
        size = self._source.block_tokens
        parts = [self._source.ids(f"block:{name}", size, self._number) for name in hash_ids]
        if count * size < tokens:
            rest = f"rest:{talk.conversation_id}:{turn}"
            parts.append(self._source.ids(rest, tokens - count * size, self._number))
        return np.concatenate(parts)[:tokens] if parts else np.empty(0, np.uint32)


def load_played(
    path: Path, read_as: Mapping[str, str] | None = None, low: int = LOW, high: int = HIGH
) -> tuple[Trace, TokenSource]:
    """A workload that is to be sent, or was, and the token ids of its contents.

    Raises:
        GapscopeError: as :func:`engine.traces.load_trace`.
    """
    trace = load_trace(path, read_as)
    given: Mapping[str, TokenIds] = {}
    if trace.format == agentic.FORMAT and not agentic.is_compact(path):
        given = agentic.read_with_ids(path)[1]
    return trace, TokenSource(given, low, high, trace.hash_block_tokens or 0)


def _mixed(values: Hashes) -> Hashes:
    """64-bit numbers that look drawn at random, by the steps of SplitMix64; the same on every machine."""
    values = values * np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
