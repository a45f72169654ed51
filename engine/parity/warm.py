"""What the pool held when a recording began, as far as what happened later tells."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from engine.parity.stored import StoredBlocks
from engine.serving.members import Members
from engine.serving.record import EVICT, STORE


@dataclass(slots=True)
class RecordedEvents:
    """Stored and evicted blocks in the engine's order, one entry per block, with the engine's own hashes.

    ``places`` holds the number of the event and its pass, None where nobody recorded the pass.
    """

    kind: npt.NDArray[np.int8]
    hashes: list[int]
    places: list[tuple[int, int | None]]


@dataclass(slots=True)
class HeldAtStart:
    """Contents to put into the pool, in this order, before the first pass: each a chain of block keys from a
    prompt's first block on. ``hashes`` are the engine's by key, None where nothing tells them."""

    chains: list[list[int]] = field(default_factory=list)
    hashes: dict[int, int | None] = field(default_factory=dict)


def held_at_start(
    batches: Members,
    keys: list[list[int]],
    stored: StoredBlocks,
    events: RecordedEvents,
    num_held: int | None,
    block_size: int,
) -> HeldAtStart:
    """What was held must have been hit or evicted without having been stored, or it never mattered.

    Free blocks are evicted in the order in which they were let go, so the order of those evictions is the order in
    the free list. What was hit first goes behind them, as it was not evicted before; and the contents that
    were neither (up to ``num_held`` distinct ones) go in between.

    Args:
        batches: members of the passes; ``index`` counts the entries of ``keys``.
        keys: block keys of each request.
        stored: the engine's hashes of the requests' blocks.
        events: what was stored and evicted.
        num_held: distinct contents that the pool held, None where nobody counted them.
        block_size: tokens per block.
    """
    held = HeldAtStart()
    if num_held == 0:
        return held
    hit = _hit_before_stored(batches, keys, block_size)
    for request, length in hit:
        for position, key in enumerate(keys[request][:length]):
            held.hashes[key] = held.hashes.get(key) or stored.hash_of(request, position)
    named = set(held.hashes.values())
    evicted = [block for block in _evicted_before_stored(events) if block not in named]
    # A hit content whose hash is not known may be among them: what was hit is evicted after all that was not.
    unnamed = sum(block is None for block in held.hashes.values())
    surplus = unnamed if num_held is None else len(set(evicted)) + len(held.hashes) - num_held
    evicted = evicted[: len(evicted) - max(0, min(surplus, unnamed))]
    new_key = 1 + max((key for chain in keys for key in chain), default=0)
    for block in evicted:
        held.hashes[new_key] = block
        held.chains.append([new_key])
        new_key += 1
    held.chains += [[new_key + n] for n in range(-surplus)]
    held.chains += [keys[request][:length] for request, length in hit]
    return held


def _hit_before_stored(batches: Members, keys: list[list[int]], block_size: int) -> list[tuple[int, int]]:
    """(request, blocks) whose hits end in a content that nobody had stored and nobody named here had hit."""
    present: set[int] = set()
    computed: dict[int, int] = {}
    found: list[tuple[int, int]] = []
    for request, before, tokens in zip(
        batches.index.tolist(), batches.computed_before.tolist(), batches.scheduled_tokens.tolist(), strict=True
    ):
        chain = keys[request]
        if computed.get(request) != before:  # admitted, first or again
            new = [n for n, key in enumerate(chain[: before // block_size]) if key not in present]
            if new:
                found.append((request, new[-1] + 1))
        computed[request] = before + tokens
        present.update(chain[: computed[request] // block_size])
    return found


def _evicted_before_stored(events: RecordedEvents) -> list[int]:
    held: Counter[int] = Counter()
    found: list[int] = []
    for kind, block in zip(events.kind.tolist(), events.hashes, strict=True):
        if kind == STORE:
            held[block] += 1
        elif kind == EVICT and held[block] > 0:
            held[block] -= 1
        else:
            found.append(block)
    return found
