"""What the SGLang core notes while it runs: flat lists of whole numbers, a fixed count of them per row."""

from __future__ import annotations

from array import array

from engine.serving.record import EVICT, STORE
from engine.serving.sglang.radix import Node
from engine.serving.sglang.request import Request
from engine.serving.skipping.arrays import Ints

SEGMENT = (
    "first",
    "decodes",
    "context",
    "squares",
    "used",
    "cached",
    "running",
    "queued_prefill.count",
    "queued_prefill.sum",
    "queued_prefill.squares",
    "queued_decode.count",
    "queued_decode.sum",
    "queued_decode.squares",
    "preempted",
)
CHUNK = ("pass_index", "index", "seq", "computed_before", "scheduled_tokens", "known")
DECODING = ("index", "seq", "first_pass", "computed", "since")


class Log:
    """Rows in the order they were written; ``engine.serving.sglang.record`` makes the tables from them.

    restarts
        the passes that did not simply follow the one before.
    starts, durations
        one per pass, in nanoseconds.
    segments
        passes up to the next segment's first in which only the decoding requests' contexts grow (``SEGMENT``): values
        as they stand in its first pass, pages that decoding requests open there not counted among those used. Under
        speculation the contexts follow from the bursts, and are 0 here.
    chunks
        prefill work (``CHUNK``).
    decoding, decoding_ends
        of each time that a request decoded (``DECODING``): the pass that ended its prefill, the tokens computed then,
        and its first decode step; and the step after its last.
    bursts
        under speculation, by row of ``decoding``: tokens sampled in each decode step.
    admissions, preemptions, events
        as the record has them. Events hold slices of ``event_keys``.
    """

    def __init__(self, record_events: bool) -> None:
        self.restarts: list[int] = []
        self.starts: list[int] = []
        self.durations: list[int] = []
        self.segments: list[int] = []
        self.chunks: list[int] = []
        self.decoding: list[int] = []
        self.decoding_ends: list[int] = []
        self.bursts: dict[int, Ints] = {}
        self.admissions: list[tuple[int, ...]] = []
        self.preemptions: list[tuple[int, ...]] = []
        self.events: list[tuple[int, ...]] = []
        self.event_keys: array[int] = array("q")
        self._record_events = record_events

    def evicted(self, node: Node, pass_index: int, index: int) -> None:
        """A leaf lost its content to a request's allocation; its tail is named first."""
        if self._record_events:
            self._event((EVICT, pass_index, index), node.keys[::-1], node.released_ns)

    def stored(self, request: Request, start: int, stop: int, pass_index: int) -> None:
        """The pages ``start`` to ``stop`` of a request were cached."""
        if self._record_events and stop > start:
            self._event((STORE, pass_index, request.index), request.chain.keys(start, stop), -1)

    def _event(self, what: tuple[int, int, int], keys: array[int], released_ns: int) -> None:
        self.events.append((*what, len(self.event_keys), len(keys), released_ns))
        self.event_keys += keys
