"""Two sources: one that covers some queries, and one that answers the rest, named in every answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from engine.bundle.schema import RESOLUTIONS
from engine.timing.contract import Covering, PassQueries, PassTimes, PassTimeSource, Refused

REFUSED = RESOLUTIONS.index("refused")


class ChainTiming:
    """The first source where it covers a query, the second elsewhere.

    Neither is brought to the level of the other: where they meet, a step in the durations shows how far apart they are.
    """

    def __init__(self, first: Covering, second: PassTimeSource) -> None:
        self.between_ns = first.between_ns
        self._first, self._second = first, second
        self._outside: set[tuple[int, ...]] = set()

    def pass_ns(
        self,
        prefill_requests: int,
        new_tokens: int,
        prefill_kv_tokens: int,
        decode_requests: int,
        decode_kv_tokens: int,
    ) -> int:
        """See :class:`PassTimeSource`."""
        query = (prefill_requests, new_tokens, prefill_kv_tokens, decode_requests, decode_kv_tokens)
        if query not in self._outside:
            try:
                return self._first.pass_ns(*query)
            except Refused:
                self._outside.add(query)
        return self._second.pass_ns(*query)

    def explain(self, queries: PassQueries) -> PassTimes:
        """The same answers for whole arrays; ``sources`` are those of both, in order."""
        times = self._first.marked(queries)
        at = np.flatnonzero(times.resolution == REFUSED)
        if not len(at):
            return times
        rest = self._second.explain(queries.at(at))
        merged = replace(
            times,
            sources=(*times.sources, *rest.sources),
            site_names=(*times.site_names, *rest.site_names),
            **{name: getattr(times, name).copy() for name in _BY_QUERY},
        )
        shifts = {"source": len(times.sources), "sites": len(times.site_names)}
        for name in _BY_QUERY:
            getattr(merged, name)[at] = getattr(rest, name) + shifts.get(name, 0)
        return merged

    def describe(self) -> dict[str, Any]:
        """The first source's description, and that of what answers where it does not (``fallback``)."""
        return {**self._first.describe(), "fallback": self._second.describe()}


_BY_QUERY = ("prefill_ns", "decode_ns", "overhead_ns", "resolution", "source", "sites")
