"""A request as the skipping core keeps it between events."""

from __future__ import annotations

from array import array

from engine.serving.contract import ServedRequest
from engine.serving.record import private_key
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

    __slots__ = (
        "aborted_in",
        "admissions",
        "cached_tokens",
        "computed",
        "contested",
        "cursor",
        "decoding",
        "first_token_ns",
        "flight",
        "gone_in",
        "held",
        "index",
        "keyed",
        "keys",
        "most_computed",
        "output_tokens",
        "path",
        "prompt_tokens",
        "received_in",
        "received_ns",
        "recomputed_tokens",
        "row",
        "sampled",
        "seq",
        "since",
        "slot",
        "splits",
        "tail",
        "total_blocks",
        "verified",
    )

    def __init__(self, request: ServedRequest, now_ns: int, next_pass: int) -> None:
        self.index = request.index
        self.prompt_tokens = request.prompt_tokens
        self.output_tokens = request.output_tokens
        self.received_ns = now_ns
        self.received_in = next_pass  # the pass that comes next, here and below
        self.aborted_in = -1
        self.gone_in = -1  # out of the queue, where it was put back though it was done
        self.keys: Keys = _NO_KEYS  # as given, for the blocks it can come to fill
        self.total_blocks = 0  # blocks it can come to fill
        self.path: list[Node] = []
        self.tail: Node | None = None  # the node of ``path`` that its given keys end with
        self.splits = -1  # of the tree when ``path`` was found
        self.cursor = 0  # the node of ``path`` that its next block is in
        self.held: list[Run] = []
        self.keyed = 0
        self.computed = 0
        self.most_computed = 0  # before the last preemption
        self.recomputed_tokens = 0
        self.sampled = 0
        self.decoding = False
        self.contested = False
        self.since = -1
        self.slot = -1  # it opens a block in the passes p with p % block_size == slot
        self.row = -1  # of its open stretch
        self.flight: Flight | None = None  # what is ahead of it under speculation
        self.verified = 0  # passes in which drafts were verified
        self.seq = -1
        self.admissions = 0
        self.cached_tokens = -1  # hit at its first admission
        self.first_token_ns = -1  # end of the pass that sampled it

    def content(self, start: int, stop: int) -> Keys:
        """Keys of its blocks from position ``start`` up to ``stop``, those that nobody gave included."""
        given = self.keys[start:stop]
        if start + len(given) < stop:
            given.extend(private_key(self.index, at) for at in range(start + len(given), stop))
        return given
