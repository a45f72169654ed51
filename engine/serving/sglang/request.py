"""A request as the SGLang core keeps it between events."""

from __future__ import annotations

from typing import NamedTuple

from engine.serving.contract import ServedRequest
from engine.serving.sglang.radix import Chain, Node
from engine.serving.skipping.request import Flight


class Request:
    """A request's state. *Known* tokens are its prompt and what it has sampled; *computed* ones have KV.

    Of a decoding request, ``computed`` and ``sampled`` are as after the decode step ``since``, the one before its
    first. Its pages are ``shared`` ones, which the radix tree holds up to ``node``, and after them its own.
    """

    __slots__ = (
        "aborted",
        "admissions",
        "cached_tokens",
        "chain",
        "computed",
        "decoding",
        "first_admit_ns",
        "first_admit_pass",
        "first_token_ns",
        "flight",
        "index",
        "joined",
        "most_computed",
        "node",
        "output_tokens",
        "preemptions",
        "prompt_tokens",
        "received_ns",
        "recomputed_tokens",
        "row",
        "sampled",
        "seq",
        "shared",
        "since",
        "slot",
        "used",
        "verified",
    )

    def __init__(self, request: ServedRequest, now_ns: int, root: Node) -> None:
        self.index = request.index
        self.prompt_tokens = request.prompt_tokens
        self.output_tokens = request.output_tokens
        self.chain = Chain(request.index, request.block_keys)
        self.received_ns = now_ns
        self.joined = -1  # its turn when it last joined the queue
        self.node = root
        self.shared = 0
        self.used = 0  # by the tree's clock, when it cached something last
        self.computed = 0
        self.most_computed = 0  # before the last retraction
        self.recomputed_tokens = 0
        self.sampled = 0
        self.decoding = False
        self.since = -1
        self.slot = -1  # it opens a page in the decode steps s with s % page == slot
        self.flight: Flight | None = None  # what is ahead of it under speculation
        self.verified = 0  # decode steps in which drafts were verified
        self.row = -1  # of its time of decoding in the log
        self.seq = -1
        self.admissions = 0
        self.preemptions = 0
        self.first_admit_ns = -1
        self.first_admit_pass = -1
        self.first_token_ns = -1
        self.cached_tokens = -1  # hit at its first admission
        self.aborted = False

    @property
    def known(self) -> int:
        """Tokens that there are: prompt and sampled (of one that is not decoding)."""
        return self.prompt_tokens + self.sampled


class Work(NamedTuple):
    """What one request computes of its prompt in one pass."""

    request: Request
    computed_before: int
    tokens: int
