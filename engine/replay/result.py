"""What a replay did, in memory: columns, from which the tables of a bundle are made (:mod:`engine.replay.tables`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.bundle import Phase
from engine.serving.cluster import NO_TIME, pass_ranges
from engine.serving.contract import ServerRecord
from engine.serving.members import first_bursts, tokens_in
from engine.timing.contract import PassTimeSource
from engine.traces.tree import Trace
from engine.workload.client import Client
from engine.workload.content import BlockKeys
from engine.workload.primed import PRIMER_TOKENS

Ints = npt.NDArray[np.int64]
NONE = -1
"""Stands for *none* in columns of pass indices."""
_NEVER = 1 << 61


@dataclass(slots=True)
class Responses:
    """What each request's client saw, by request index; of one that is not ok, up to when it ended.

    The stretches are those of the server record, without the tokens that were sampled too late. A token of pass p is
    seen at ``pass_seen_ns[p]``, but not before the first of its request, at ``first_seen_ns``.
    """

    index: Ints
    first_pass: Ints
    last_pass: Ints
    first_ordinal: Ints  # passes of the request that sampled before the stretch
    tokens: Ints  # by request
    last_visible_pass: Ints  # by request; NONE without output
    pass_seen_ns: Ints  # by pass
    first_seen_ns: Ints  # by request; meaningless without output
    bursts: Ints  # tokens per pass, where several can be sampled at once; else empty
    first_burst: Ints  # where those of each stretch begin


@dataclass(slots=True)
class ReplayResult:
    """A finished replay. ``knobs`` are complete, with the latencies that were really used; ``asked`` are they before.

    ``aborted_ns`` says when the engine dropped a canceled request. ``host`` holds figures of the machine that ran the
    replay; nothing else depends on it.
    """

    trace: Trace
    asked: dict[str, Any]
    knobs: dict[str, Any]
    timing: PassTimeSource
    keys: BlockKeys
    client: Client
    record: ServerRecord
    aborted_ns: dict[int, int]
    host: dict[str, float] = field(default_factory=dict)

    @property
    def num_passes(self) -> int:
        """Forward passes of the whole replay."""
        return len(self.record.passes["start_ns"])

    @property
    def num_requests(self) -> int:
        """Requests that were sent."""
        return len(self.client.sent)

    @property
    def end_ns(self) -> int:
        """When the last pass or response ended, or the admission deadline if that is later."""
        ends = [self.client.deadline_ns or 0, int(self.record.passes["end_ns"].max(initial=0))]
        return max(ends + self.client.sent.end_ns)

    @property
    def phases(self) -> list[Phase]:
        """Primers, warm-up, profile, grace and drain, as far as the replay has them.

        Where lanes prime themselves and warm up side by side, the warm-up begins when the last primer ended.
        """
        client, end = self.client, self.end_ns
        primers = [client.sent.end_ns[n] for n, (phase, _) in enumerate(client.primed) if phase == "primer"]
        primed = max(primers, default=client.start_ns)
        phases = [Phase("primer", client.start_ns, primed)] if primers else []
        if primed < 0:
            phases.append(Phase("warmup", primed, 0))
        if client.deadline_ns is None or client.cancel_ns is None:
            return [*phases, Phase("profile", 0, end)]
        phases.append(Phase("profile", 0, client.deadline_ns))
        if client.cancel_ns > client.deadline_ns:
            phases.append(Phase("grace", client.deadline_ns, client.cancel_ns))
        if end > client.cancel_ns:
            phases.append(Phase("drain", client.cancel_ns, end))
        return phases

    def prompt_tokens(self) -> Ints:
        """Tokens of each request's prompt."""
        sent = self.client.sent
        return np.array([c.walk.prompt_tokens[t] for c, t in zip(sent.conversation, sent.turn, strict=True)], np.int64)

    def asked_tokens(self) -> Ints:
        """Output tokens that were asked of each request."""
        sent, primed = self.client.sent, len(self.client.primed)
        turns = [c.conversation.turns[t].output_tokens for c, t in zip(sent.conversation, sent.turn, strict=True)]
        return np.array([PRIMER_TOKENS] * primed + turns[primed:], np.int64)

    def responses(self) -> Responses:
        """Token-sampling passes as the clients saw them.

        Who gave up at a time still saw what reached it at that very time.
        """
        stretches, count = self.record.stretches, self.num_requests
        index, first, last = (stretches[name] for name in ("index", "first_pass", "last_pass"))
        bursts, first_burst = self.record.bursts, first_bursts(self.record)
        seen_ns = self.record.passes["end_ns"] + self.client.host.chunk_ns
        first_seen_ns = self._first_seen(seen_ns)
        if not all(self.client.sent.ok):
            end_ns = np.array(self.client.sent.end_ns, np.int64)
            listened = np.zeros(len(index), np.int64)  # passes up to which the client of each stretch listened
            for begin, end in pass_ranges(self.record):
                own = slice(*np.searchsorted(first, [begin, end]))
                listened[own] = begin + np.searchsorted(seen_ns[begin:end], end_ns[index[own]], side="right")
            listened[(first_seen_ns > end_ns)[index]] = 0
            cut = np.where(np.array(self.client.sent.ok)[index], self.num_passes, listened)
            last = np.minimum(last, cut - 1)
            keep = last >= first
            index, first, last, first_burst = index[keep], first[keep], last[keep], first_burst[keep]
        order = np.lexsort(
            (first, index)
        )  # a request's stretches in order of time, also where workers follow each other
        index, first, last, first_burst = index[order], first[order], last[order], first_burst[order]
        lengths = last - first + 1
        tokens = np.bincount(index, tokens_in(bursts, first_burst, lengths), minlength=count).astype(np.int64)
        before = np.cumsum(lengths) - lengths
        starts = np.searchsorted(index, np.arange(count))
        some = tokens > 0
        ends = np.searchsorted(index, np.arange(count), side="right") - 1
        last_visible = np.full(count, NONE, np.int64)
        last_visible[some] = last[ends[some]]
        first_ordinal = before - before[starts[index]] if len(index) else before
        return Responses(
            index, first, last, first_ordinal, tokens, last_visible, seen_ns, first_seen_ns, bursts, first_burst
        )

    def _first_seen(self, seen_ns: Ints) -> Ints:
        """When each request's first token is seen, if it sampled any; ``seen_ns`` is when those of each pass are."""
        served = self.record.requests
        first_ns = seen_ns[served["first_token_pass"]] if len(seen_ns) else np.zeros(self.num_requests, np.int64)
        moved = self.record.transfers
        if moved is not None:  # it comes with the prompt's KV, or never
            arrived = np.where(moved["end_ns"] == NO_TIME, _NEVER, moved["end_ns"] + self.client.host.chunk_ns)
            first_ns[moved["index"]] = arrived
        if self.client.host.keeps_order:
            return first_ns
        uncached = self.prompt_tokens() - np.maximum(served["cached_tokens"], 0)
        return first_ns + self.client.host.first_ns(uncached)
