"""How far a core agrees with a recording, and where it first does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Batch = list[tuple[str, int, int]]
"""Request id, tokens computed before and tokens scheduled of each member, in scheduling order."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first pass whose batches differ. Everything is as it stands after scheduling; None is not recorded.

    ``missing`` and ``extra`` are the members that only the recording and only the replay has.
    """

    pass_index: int
    measured: Batch
    replay: Batch
    measured_waiting: list[str]
    replay_waiting: list[str]
    measured_free_blocks: int | None
    replay_free_blocks: int | None

    @property
    def missing(self) -> Batch:
        """Members of the measured batch alone."""
        return [member for member in self.measured if member not in self.replay]

    @property
    def extra(self) -> Batch:
        """Members of the replayed batch alone."""
        return [member for member in self.replay if member not in self.measured]

    def describe(self) -> str:
        """In words, one line per fact."""
        return "\n".join(
            [
                f"pass {self.pass_index} is the first whose batches differ",
                f"  only measured: {in_words(self.missing)}",
                f"  only replayed: {in_words(self.extra)}",
                f"  measured batch: {in_words(self.measured)}",
                f"  replayed batch: {in_words(self.replay)}",
                f"  waiting: measured {', '.join(self.measured_waiting) or 'nobody'}; "
                f"replayed {', '.join(self.replay_waiting) or 'nobody'}",
                f"  free blocks: measured {_count(self.measured_free_blocks)}; "
                f"replayed {_count(self.replay_free_blocks)}",
            ]
        )


@dataclass(frozen=True, slots=True)
class BlockEvent:
    """A block that was stored, or removed. ``event`` is the number of a recorded event; the core has none.

    ``block`` is the engine's hash, None of a block of the core that corresponds to none of the engine's.
    """

    stored: bool
    block: int | None
    pass_index: int | None
    event: int | None = None

    def describe(self) -> str:
        """In words."""
        block = "a block of no recorded hash" if self.block is None else f"block {self.block:016x}"
        return (
            f"{'stored' if self.stored else 'removed'} {block}"
            f"{'' if self.pass_index is None else f' in pass {self.pass_index}'}"
            f"{'' if self.event is None else f' (event {self.event})'}"
        )


@dataclass(frozen=True, slots=True)
class BlockDivergence:
    """The first place in the order of stored and removed blocks at which they differ, counted from 0.

    None: that side has no further block.
    """

    place: int
    measured: BlockEvent | None
    replay: BlockEvent | None

    def describe(self) -> str:
        """In words, one line per fact."""
        sides = (("measured", self.measured), ("replayed", self.replay))
        return "\n".join(
            [
                f"block {self.place:,} of those stored and removed (counted from 0) is the first that differs",
                *(f"  {side}: {event.describe() if event else 'no further block'}" for side, event in sides),
            ]
        )


@dataclass(frozen=True, slots=True)
class ParityResult:
    """How far a core agrees with a recording. Counts of cache events are None where none were recorded.

    ``stored`` and ``removed`` count recorded blocks; ``stored_equal`` and ``removed_equal`` those that the core stored
    or evicted at the same place in the order, under a one-to-one pairing of our contents with the engine's hashes (the
    first pairing holds). ``ordered_equal`` counts the blocks of both kinds that agree in their common order.
    """

    core: str
    passes: int
    equal_passes: int
    first_divergence: Divergence | None
    stored: int | None = None
    stored_equal: int | None = None
    replay_stored: int | None = None
    removed: int | None = None
    removed_equal: int | None = None
    replay_removed: int | None = None
    ordered_equal: int | None = None
    first_block_divergence: BlockDivergence | None = None
    unknown_requests: int = 0
    """Requests of the passes that the client's record does not have; what they are is inferred."""
    unnamed_requests: int = 0
    """Requests that hit blocks whose content the recording does not tell; the core cannot find those hits."""

    @property
    def exact(self) -> bool:
        """Every pass and every stored and removed block agrees, and the core has none besides."""
        events = self.stored is None or (
            self.stored == self.stored_equal == self.replay_stored
            and self.removed == self.removed_equal == self.replay_removed
            and self.stored + (self.removed or 0) == self.ordered_equal
        )
        return self.passes == self.equal_passes and events

    def summary(self) -> dict[str, Any]:
        """The result in figures (JSON-ready), as ``TimedParity.summary`` has them."""
        first = self.first_divergence
        return {
            "passes": self.passes,
            "equal": self.equal_passes,
            "share": self.equal_passes / self.passes if self.passes else None,
            "first": None if first is None else first.pass_index,
            "stored": self.stored,
            "stored_equal": self.stored_equal,
            "removed": self.removed,
            "removed_equal": self.removed_equal,
        }

    def describe(self) -> str:
        """In words: what agrees, what had to be inferred, and where the first differences are."""
        blocks = blocks_in_words((self.stored_equal, self.stored), (self.removed_equal, self.removed))
        blocks = blocks or "cache events not recorded"
        lines = [f"{self.core:<9} {self.equal_passes:,} of {self.passes:,} passes equal; {blocks}"]
        if (self.stored, self.removed) != (self.replay_stored, self.replay_removed):
            lines.append(
                f"  measured: {self.stored:,} blocks stored, {self.removed:,} removed; "
                f"replayed: {self.replay_stored:,} stored, {self.replay_removed:,} removed"
            )
        if self.unknown_requests or self.unnamed_requests:
            lines.append(
                f"  requests that the client's record does not have: {self.unknown_requests:,}; that hit blocks of "
                f"unknown content, which the core cannot find: {self.unnamed_requests:,}"
            )
        lines += [first.describe() for first in (self.first_divergence, self.first_block_divergence) if first]
        return "\n".join(lines)


def in_words(batch: Batch) -> str:
    """The members of a batch."""
    words = (f"{name} ({tokens} token{'s' * (tokens != 1)} after {before})" for name, before, tokens in batch)
    return ", ".join(words) or "nobody"


def blocks_in_words(stored: tuple[int | None, int | None], removed: tuple[int | None, int | None]) -> str:
    """How many blocks are equal in order, each of how many; empty where nobody counted them."""
    if None in (*stored, *removed):
        return ""
    return "stored {:,} of {:,}, removed {:,} of {:,} blocks equal in order".format(*stored, *removed)


def _count(value: int | None) -> str:
    return "not recorded" if value is None else str(value)
