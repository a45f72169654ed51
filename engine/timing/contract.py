"""The seam between the event loop and whatever says how long a forward pass takes.

``pass_ns`` is called once per simulated pass and must be cheap; ``explain`` answers the same queries for whole
arrays after the run, with parts, resolution and provenance. The two must agree to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from engine.errors import GapscopeError

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PassQueries:
    """n batch geometries, one array of length n per axis.

    ``new_tokens`` are freshly computed by prefill requests, ``prefill_kv_tokens`` are read by them (hits and
    earlier chunks); ``decode_kv_tokens`` is the sum of the decode requests' computed tokens before the pass.
    """

    prefill_requests: Ints
    new_tokens: Ints
    prefill_kv_tokens: Ints
    decode_requests: Ints
    decode_kv_tokens: Ints

    def __len__(self) -> int:
        return len(self.prefill_requests)

    @property
    def axes(self) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        """The arrays, in the order of the arguments of ``pass_ns``."""
        requests, tokens, kv = self.prefill_requests, self.new_tokens, self.prefill_kv_tokens
        return requests, tokens, kv, self.decode_requests, self.decode_kv_tokens

    def at(self, where: Any) -> PassQueries:
        """Some of them: what a numpy index, mask or slice picks."""
        return PassQueries(*(axis[where] for axis in self.axes))

    def first(self, chosen: npt.NDArray[np.bool_]) -> tuple[int, ...] | None:
        """The first of those chosen, as the arguments of ``pass_ns``; None where none is."""
        found = np.flatnonzero(chosen)
        return tuple(int(axis[found[0]]) for axis in self.axes) if len(found) else None


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Answers to n queries. ``resolution`` indexes ``engine.bundle.schema.RESOLUTIONS`` (0 is worst).

    ``source`` names the link of the chain that answered (an index into ``sources``); ``sites`` names what it was
    read from (an index into ``site_names``).
    """

    prefill_ns: Ints
    decode_ns: Ints
    overhead_ns: Ints
    resolution: npt.NDArray[np.int8]
    source: npt.NDArray[np.int8]
    sources: tuple[str, ...]
    sites: npt.NDArray[np.int32]
    site_names: tuple[str, ...]

    @property
    def total_ns(self) -> Ints:
        """Duration of each pass in nanoseconds."""
        return self.prefill_ns + self.decode_ns + self.overhead_ns


class DecodeRuns(Protocol):
    """A source that can price many passes in one call, which saves more than it takes to price them."""

    def decode_run(
        self, decode_requests: int, contexts: Iterable[int], now_ns: int, until_ns: int
    ) -> tuple[list[int], list[int], int]:
        """Passes that only decode, one after the other from ``now_ns`` on, with these KV sums.

        Ends with ``contexts`` or with the last pass that starts before ``until_ns``, as calls of ``pass_ns`` would.
        Returns when they start, how long they last, and when the next may start.
        """


class PassTimeSource(Protocol):
    """One way of knowing how long a pass takes."""

    between_ns: int
    """Host time from the end of a pass to the start of the next when the engine has work."""

    def pass_ns(
        self,
        prefill_requests: int,
        new_tokens: int,
        prefill_kv_tokens: int,
        decode_requests: int,
        decode_kv_tokens: int,
    ) -> int:
        """Duration of one pass, at least 1 ns.

        Raises:
            GapscopeError: the query is refused and the user asked for ``on_refused = abort``.
        """

    def explain(self, queries: PassQueries) -> PassTimes:
        """Parts, resolution and provenance; ``explain(q).total_ns`` equals ``pass_ns`` of each query."""

    def describe(self) -> dict[str, Any]:
        """JSON-ready identity and lineage: kind, data digests, runs and phases fitted on, corrections, hold-out."""


class Refused(GapscopeError):
    """A query lies outside what a source covers."""


class Covering(PassTimeSource, Protocol):
    """A source that can be followed by another: of a query that it refuses, ``pass_ns`` raises :class:`Refused`."""

    def marked(self, queries: PassQueries) -> PassTimes:
        """As ``explain``, but a query that is refused has that resolution, and any times."""


def decode_run(
    source: PassTimeSource, decode_requests: int, contexts: Iterable[int], now_ns: int, until_ns: int
) -> tuple[list[int], list[int], int]:
    """What :class:`DecodeRuns` says, of any source."""
    at_once: DecodeRuns | None = getattr(source, "decode_run", None) and cast(DecodeRuns, source)
    if at_once is not None:
        return at_once.decode_run(decode_requests, contexts, now_ns, until_ns)
    starts: list[int] = []
    durations: list[int] = []
    for context in contexts:
        duration = source.pass_ns(0, 0, 0, decode_requests, context)
        starts.append(now_ns)
        durations.append(duration)
        now_ns += duration + source.between_ns
        if now_ns >= until_ns:
            break
    return starts, durations, now_ns
