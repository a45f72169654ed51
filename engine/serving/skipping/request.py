"""A request as the skipping core keeps it between events."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from engine.serving.contract import ServedRequest
from engine.serving.skipping.arrays import Ints
from engine.serving.skipping.pool import Run
from engine.serving.skipping.prefix_tree import Keys, Node

_NO_KEYS: Keys = array("q")


class Flight:
    """The passes ahead of a request under speculation, from the one after ``since`` on.

    Per pass: computed tokens before it, tokens sampled in it, blocks held from it on.
    """

    __slots__ = ("before", "bursts", "held")

    def __init__(self, before: Ints, bursts: Ints, held: Ints) -> None:
        self.before = before
        self.bursts = bursts
        self.held = held


class ScheduledRequest:
    """A request's state. A decoding one is described by its stretch alone and brought up to date when it ends.

    ``computed`` and ``sampled`` are as of pass ``since``, the first of the stretch, while it decodes. ``keyed``
    counts its blocks that hold content for others to hit; for a decoding request it lags until somebody looks.
    """

    # Most of it never changes for most requests, so it stands here and not in every one of them.
    aborted_in = -1  # the pass that came next
    keys: Keys = _NO_KEYS  # as given, for the blocks it can come to fill
    total_blocks = 0  # blocks it can come to fill
    path: Sequence[Node] = ()
    tail: Node | None = None  # the node of ``path`` that its given keys end with
    splits = -1  # of the tree when ``path`` was found
    cursor = 0  # the node of ``path`` that its next block is in
    keyed = 0
    computed = 0
    most_computed = 0  # before the last preemption
    recomputed_tokens = 0
    sampled = 0
    decoding = False
    contested = False
    since = -1
    slot = -1  # it opens a block in the passes p with p % block_size == slot
    row = -1  # of its open stretch
    flight: Flight | None = None  # what is ahead of it under speculation
    verified = 0  # passes in which drafts were verified
    seq = -1
    admissions = 0
    cached_tokens = -1  # hit at its first admission
    first_token_ns = -1  # end of the pass that sampled it

    def __init__(self, request: ServedRequest, now_ns: int, next_pass: int) -> None:
        self.index = request.index
        self.prompt_tokens = request.prompt_tokens
        self.output_tokens = request.output_tokens
        self.received_ns = now_ns
        self.received_in = next_pass  # the pass that comes next
        self.held: list[Run] = []
