"""When decoding requests opened and filled blocks, worked out from their stretches after the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from engine.serving.contract import Columns
from engine.serving.skipping.arrays import Ints, ceil_div, ranges


@dataclass(frozen=True, slots=True)
class Growth:
    """Rows of blocks, by stretch and in it by pass.

    ``opened_row`` and ``filled_row`` are the stretches, then the passes in which they did, and how many blocks. A block
    counts as filled in the pass that is scheduled with all of its tokens known.
    """

    opened_row: Ints
    opened_pass: Ints
    opened: Ints
    filled_row: Ints
    filled_pass: Ints
    filled: Ints

    def opened_in(self, num_passes: int) -> Ints:
        """Blocks opened in each pass."""
        return np.bincount(self.opened_pass, self.opened, minlength=num_passes).astype(np.int64)

    def filled_in(self, num_passes: int) -> Ints:
        """Blocks filled in each pass."""
        return np.bincount(self.filled_pass, self.filled, minlength=num_passes).astype(np.int64)


def steady_growth(stretches: Columns, block_size: int) -> Growth:
    """One token per pass: a block is opened and one is filled every ``block_size`` passes."""
    first, last, base = stretches["first_pass"], stretches["last_pass"], stretches["computed_after_first"]
    opened = ceil_div(base + last - first, block_size) - ceil_div(base, block_size)
    filled = (base + last - first) // block_size - base // block_size
    rows = np.arange(len(first))
    return Growth(
        opened_row=np.repeat(rows, opened),
        opened_pass=np.repeat(first + 1 + -base % block_size, opened) + block_size * ranges(opened),
        opened=np.ones(opened.sum(), np.int64),
        filled_row=np.repeat(rows, filled),
        filled_pass=np.repeat(first + block_size - base % block_size, filled) + block_size * ranges(filled),
        filled=np.ones(filled.sum(), np.int64),
    )


@dataclass(frozen=True, slots=True)
class Verified:
    """Every verification: its stretch, its pass, the tokens computed before it, and how many it sampled."""

    row: Ints
    pass_index: Ints
    before: Ints
    sampled: Ints


def verifications(stretches: Columns, bursts: Mapping[int, Ints]) -> Verified:
    """All of them, by stretch and in it by pass; ``bursts`` has what each stretch sampled after its first pass."""
    count = len(stretches["first_pass"])
    sampled = np.concatenate([np.empty(0, np.int64), *(bursts[row] for row in range(count))])
    lengths = stretches["last_pass"] - stretches["first_pass"]
    row = np.repeat(np.arange(count), lengths)
    total = np.cumsum(sampled) - sampled
    at_start = np.concatenate([total, [0]])[np.minimum(np.cumsum(lengths) - lengths, len(total))]
    return Verified(
        row=row,
        pass_index=stretches["first_pass"][row] + 1 + ranges(lengths),
        before=stretches["computed_after_first"][row] + total - at_start[row],
        sampled=sampled,
    )


def burst_growth(stretches: Columns, verified: Verified, block_size: int, width: int) -> Growth:
    """Bursts of tokens: room for all drafts is needed before it is known how many are accepted."""
    base = stretches["computed_after_first"][verified.row]
    first = np.ones(len(base), np.bool_)
    first[1:] = verified.row[1:] != verified.row[:-1]

    def change(now: Ints, at_start: Ints) -> Ints:
        before = np.concatenate([[0], now[:-1]])
        return now - np.where(first, at_start, before)

    opened = change(ceil_div(verified.before + width, block_size), ceil_div(base, block_size))
    filled = change((verified.before + 1) // block_size, base // block_size)
    opens, fills = np.flatnonzero(opened), np.flatnonzero(filled)
    return Growth(
        opened_row=verified.row[opens],
        opened_pass=verified.pass_index[opens],
        opened=opened[opens],
        filled_row=verified.row[fills],
        filled_pass=verified.pass_index[fills],
        filled=filled[fills],
    )
