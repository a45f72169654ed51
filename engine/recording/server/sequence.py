"""Numbered messages of a publisher: which are missing, repeated, or of a new start; and the account of it."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any
from zlib import crc32

_REMEMBERED = 4096
"""Messages whose content is remembered, to tell one that came twice from one of a publisher that began again."""


@dataclass
class Ledger:
    """What a subscriber got, and what it did not."""

    messages: int = 0
    events: int = 0
    gaps: int = 0
    lost_messages: int = 0
    """Messages that are missing after all: gaps less what was replayed."""
    replayed: int = 0
    duplicates: int = 0
    restarts: int = 0
    malformed: int = 0
    first_seq: int | None = None
    last_seq: int | None = None

    @property
    def complete(self) -> bool:
        """Whether everything that was published since the first message is there, of one publisher."""
        return not (self.lost_messages or self.malformed or self.restarts)

    @property
    def words(self) -> str:
        """The account in one sentence."""
        if self.first_seq is None and not self.malformed:
            return "no message came"
        parts = [f"{self.messages:,} messages with {self.events:,} events, numbers {self.first_seq} to {self.last_seq}"]
        for count, what in (
            (self.lost_messages, f"lost in {self.gaps:,} gaps"),
            (self.replayed, "replayed"),
            (self.duplicates, "came twice"),
            (self.restarts, "restarts of the publisher"),
            (self.malformed, "could not be read"),
        ):
            if count:
                parts.append(f"{count:,} {what}")
        return ", ".join(parts) + ("" if not self.complete else ", none missing")

    def as_dict(self) -> dict[str, Any]:
        """The figures by name."""
        return {**asdict(self), "complete": self.complete}


class Step(Enum):
    """What a message is, by its number and content."""

    FIRST = "first"
    NEXT = "next"
    GAP = "gap"
    DUPLICATE = "duplicate"
    RESTART = "restart"


class Sequence:
    """The numbers of one publisher, which counts its messages from 0 and begins again when it is restarted."""

    def __init__(self) -> None:
        self.expected: int | None = None
        self._seen: OrderedDict[int, int] = OrderedDict()

    def take(self, seq: int, payload: bytes) -> Step:
        """Note a message; ``expected`` is the number after it, or after the last one when it is a duplicate."""
        expected, content = self.expected, crc32(payload)
        if expected is not None and seq < expected:
            if self._seen.get(seq) == content:
                return Step.DUPLICATE
            self._seen.clear()
            step = Step.RESTART
        elif expected is None:
            step = Step.FIRST
        else:
            step = Step.NEXT if seq == expected else Step.GAP
        self.expected = seq + 1
        self._seen[seq] = content
        if len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        return step
