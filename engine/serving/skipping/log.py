"""What the skipping core notes while it runs: flat lists of whole numbers, a fixed count of them per row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class Log:
    """Rows in the order they were written; ``engine.serving.skipping.record`` makes the tables from them.

    restarts
        the passes that did not simply follow the one before.
    starts, durations
        one per pass, in nanoseconds.
    segments
        ``first_pass, decodes, context, context_squares, used_blocks, running``: passes up to the next segment's first
        in which only the decoding requests' contexts grow; values as they stand before the first pass, its decoding
        requests' new blocks not counted among those used.
    chunks
        ``pass_index, index, seq, computed_before, scheduled_tokens, known_tokens`` of prefill work.
    admissions
        ``index, ordinal, pass_index, hit_blocks``; the row number is the ``seq``.
    preemptions
        ``index, pass_index, num_blocks, known_tokens``.
    reserves
        ``pass_index, index, blocks`` taken between two passes, before the one named, for who is still to come.
    joins
        ``seq, blocks`` of who came with its prompt computed: registered when it runs, and taken before.
    stretches, stretch_ends
        ``index, seq, first_pass, computed_after_first``, and the last pass of each.
    bursts
        under speculation, by row of ``stretches``: tokens sampled in each pass after the first.
    restores
        ``seq, blocks`` that an admission loads from the host.
    copies
        ``pass_index, blocks`` registered there that hold what another block held already.
    """

    __slots__ = (
        "admissions",
        "bursts",
        "chunks",
        "copies",
        "durations",
        "joins",
        "num_admissions",
        "preemptions",
        "reserves",
        "restarts",
        "restores",
        "segments",
        "starts",
        "stretch_ends",
        "stretches",
    )

    def __init__(self) -> None:
        self.restarts: list[int] = []
        self.starts: list[int] = []
        self.durations: list[int] = []
        self.segments: list[int] = []
        self.chunks: list[int] = []
        self.admissions: list[int] = []
        self.num_admissions = 0
        self.preemptions: list[int] = []
        self.restores: list[int] = []
        self.reserves: list[int] = []
        self.joins: list[int] = []
        self.stretches: list[int] = []
        self.stretch_ends: list[int] = []
        self.bursts: dict[int, npt.NDArray[np.int64]] = {}
        self.copies: list[int] = []
