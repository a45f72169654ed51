"""What the skipping core notes while it runs: flat lists of whole numbers, a fixed count of them per row."""

from __future__ import annotations


class Log:
    """Rows in the order they were written; ``engine.serving.skipping_record`` makes the tables from them.

    restarts
        ``pass_index, start_ns`` of the passes that did not simply follow the one before.
    durations
        one per pass, in nanoseconds.
    segments
        ``first_pass, decodes, context, context_squares, used_blocks, running, waiting``: passes up to the next
        segment's first in which only decoding requests' contexts grow; values as they stand before the first pass,
        its decoding requests' new blocks not counted among those used.
    queues
        ``pass_index``, then count, sum and sum of squares of the known tokens of the waiting requests, for those
        never admitted and for those preempted; the latest row up to a segment's first pass holds for the segment.
    prefills
        ``pass_index, requests, new_tokens, read_tokens, known, known_squares, completed`` of passes with prefill.
    odd_decodes
        ``pass_index, context`` of the work that is a decode though its request is in the middle of its prefill.
    preempted
        ``pass_index, requests``.
    chunks, admissions, preemptions
        rows of the tables of the same names.
    stretches, stretch_ends
        ``index, seq, first_pass, computed_after_first``, and the last pass of each.
    copies
        ``pass_index, blocks`` registered there that hold what another block held already.
    """

    __slots__ = (
        "admissions",
        "chunks",
        "copies",
        "durations",
        "num_admissions",
        "odd_decodes",
        "preempted",
        "preemptions",
        "prefills",
        "queues",
        "restarts",
        "segments",
        "stretch_ends",
        "stretches",
    )

    def __init__(self) -> None:
        self.restarts: list[int] = []
        self.durations: list[int] = []
        self.segments: list[int] = []
        self.queues: list[int] = []
        self.prefills: list[int] = []
        self.odd_decodes: list[int] = []
        self.preempted: list[int] = []
        self.chunks: list[int] = []
        self.admissions: list[int] = []
        self.num_admissions = 0
        self.preemptions: list[int] = []
        self.stretches: list[int] = []
        self.stretch_ends: list[int] = []
        self.copies: list[int] = []
