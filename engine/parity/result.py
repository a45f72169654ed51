"""How far a core agrees with a recording, and where it first does not."""

from __future__ import annotations

from dataclasses import dataclass

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
                f"  only measured: {_in_words(self.missing)}",
                f"  only replayed: {_in_words(self.extra)}",
                f"  measured batch: {_in_words(self.measured)}",
                f"  replayed batch: {_in_words(self.replay)}",
                f"  waiting: measured {', '.join(self.measured_waiting) or 'nobody'}; "
                f"replayed {', '.join(self.replay_waiting) or 'nobody'}",
                f"  free blocks: measured {_count(self.measured_free_blocks)}; "
                f"replayed {_count(self.replay_free_blocks)}",
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


def _in_words(batch: Batch) -> str:
    words = (f"{name} ({tokens} token{'s' * (tokens != 1)} after {before})" for name, before, tokens in batch)
    return ", ".join(words) or "nobody"


def _count(value: int | None) -> str:
    return "not recorded" if value is None else str(value)
