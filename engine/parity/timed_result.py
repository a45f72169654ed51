"""How far a replay agrees with a recording when time decides who comes when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from engine.bundle.schema import DIVERGENCE_CAUSES, PARITY_CHECKS, TABLES
from engine.parity.result import Batch, blocks_in_words, in_words

DETAILED = 10_000
"""Divergences that are kept whole; of more only the causes are counted."""

CAUSES = dict(
    zip(
        DIVERGENCE_CAUSES,
        (
            "the request was estimated to reach the engine before a pass that went without it",
            "the request was in a pass before it was estimated to reach the engine",
            "requests reached the engine in another order than estimated",
            "a cancel reached the engine earlier or later than estimated",
            "the client's record does not have the request",
            "the request hit blocks whose content the recording does not tell",
            "same arrivals and same state, another batch: the engine schedules by other rules",
            "an earlier difference that changed no batch at its time",
            "the closed loop has parted from the recording",
        ),
        strict=True,
    )
)


@dataclass(frozen=True, slots=True)
class TimedDivergence:
    """A pass whose batches differ, and why. Everything is as it stands after scheduling; None is not recorded."""

    pass_index: int
    cause: str
    explanation: str
    measured: Batch
    replay: Batch
    measured_waiting: list[str]
    replay_waiting: list[str]
    measured_free_blocks: int | None
    replay_free_blocks: int | None

    def describe(self) -> str:
        """In words, one line per fact."""
        only = (("measured", self.measured, self.replay), ("replayed", self.replay, self.measured))
        waiting = (("measured", self.measured_waiting), ("replayed", self.replay_waiting))
        free = (("measured", self.measured_free_blocks), ("replayed", self.replay_free_blocks))
        return "\n".join(
            [
                f"pass {self.pass_index}: {self.cause}: {self.explanation}",
                *(f"  only {side}: {in_words([m for m in own if m not in other])}" for side, own, other in only),
                "  waiting: " + "; ".join(f"{side} {', '.join(names) or 'nobody'}" for side, names in waiting),
                "  free blocks: " + "; ".join(f"{side} {'unknown' if n is None else n}" for side, n in free),
            ]
        )


@dataclass(slots=True)
class TimedParity:
    """How many passes agree, and why the others do not.

    ``causes`` counts every pass that differs, ``divergences`` has the first of them whole. Counts of blocks are None
    where they were not compared. ``requests`` counts those whose arrival was estimated, ``on_time`` those of them that
    came for the pass that took them. ``matched`` says how many of the recorded requests the replay has, where they are
    paired by name, and ``anywhere`` how many recorded batches it forms in whatever pass.
    """

    check: str
    passes: int
    equal_passes: int = 0
    causes: dict[str, int] = field(default_factory=dict)
    divergences: list[TimedDivergence] = field(default_factory=list)
    stored: int | None = None
    stored_equal: int | None = None
    removed: int | None = None
    removed_equal: int | None = None
    way: dict[str, Any] | None = None
    requests: int = 0
    on_time: int = 0
    matched: int | None = None
    anywhere: int | None = None

    @property
    def share(self) -> float | None:
        """Share of passes that agree; None without passes."""
        return self.equal_passes / self.passes if self.passes else None

    @property
    def first(self) -> TimedDivergence | None:
        """The first divergence."""
        return self.divergences[0] if self.divergences else None

    def add(self, divergence: TimedDivergence) -> None:
        """Count a pass that differs, and keep it whole if not too many were."""
        self.causes[divergence.cause] = self.causes.get(divergence.cause, 0) + 1
        if len(self.divergences) < DETAILED:
            self.divergences.append(divergence)

    def summary(self) -> dict[str, Any]:
        """The result in figures (JSON-ready)."""
        return {
            "passes": self.passes,
            "equal": self.equal_passes,
            "share": self.share,
            "first": self.first.pass_index if self.first else None,
            "way": self.way,
            "requests": self.requests,
            "on_time": self.on_time,
            "matched": self.matched,
            "anywhere": self.anywhere,
            "causes": {cause: self.causes[cause] for cause in DIVERGENCE_CAUSES if cause in self.causes},
            "stored": self.stored,
            "stored_equal": self.stored_equal,
            "removed": self.removed,
            "removed_equal": self.removed_equal,
        }

    def describe(self, whole: int = 1) -> str:
        """In words: the shares, the causes, and the first ``whole`` divergences."""
        share = "" if self.share is None else f" ({100 * self.share:.2f} %)"
        blocks = blocks_in_words((self.stored_equal, self.stored), (self.removed_equal, self.removed))
        counted = f"{self.equal_passes:,} of {self.passes:,} passes equal{share}"
        lines = [f"by {self.check:<8} " + "; ".join(words for words in (counted, blocks) if words)]
        if self.way is not None:
            lines.append(
                f"  {way_in_words(self.way)}; it says the pass of {self.on_time:,} of {self.requests:,} requests"
            )
        if self.matched is not None:
            lines.append(
                f"  {self.matched:,} of {self.requests:,} recorded requests were sent in the replay, too; "
                f"{self.anywhere or 0:,} recorded batches were formed there in some pass"
            )
        lines += [f"  {self.causes[cause]:>6,} {cause}: {CAUSES[cause]}" for cause in CAUSES if cause in self.causes]
        lines += [divergence.describe() for divergence in self.divergences[:whole]]
        return "\n".join(lines)


def divergences_table(results: Sequence[TimedParity]) -> pa.Table:
    """The table ``divergences`` of a bundle."""
    rows = [(result.check, divergence) for result in results for divergence in result.divergences]
    rows.sort(key=lambda row: (PARITY_CHECKS.index(row[0]), row[1].pass_index))
    plain = [
        {
            "check": check,
            "pass_index": d.pass_index,
            "cause": d.cause,
            "explanation": d.explanation,
            "measured_members": _members(d.measured),
            "replay_members": _members(d.replay),
            "measured_waiting": d.measured_waiting,
            "replay_waiting": d.replay_waiting,
            "measured_free_blocks": d.measured_free_blocks,
            "replay_free_blocks": d.replay_free_blocks,
        }
        for check, d in rows
    ]
    return pa.Table.from_pylist(plain, TABLES["divergences"].schema)


def _members(batch: Batch) -> list[dict[str, Any]]:
    return [{"request_id": name, "computed_before": before, "scheduled_tokens": n} for name, before, n in batch]


def way_in_words(way: Mapping[str, Any]) -> str:
    """How long the way from the client to the engine is estimated to be, and when arrivals are taken."""
    terms = [f"{way['constant_ms']:.2f} ms"]
    if "per_1000_tokens_ms" in way:
        terms.append(f"{way['per_1000_tokens_ms']:.2f} ms per 1,000 prompt tokens")
    if "per_request_beside_ms" in way:
        terms.append(
            f"{way['per_request_beside_ms']:.2f} ms per request dispatched within {way['beside_within_ms']:.1f} ms"
        )
    return f"way to the engine: {' + '.join(terms)}, taken at the {way['look']}"
