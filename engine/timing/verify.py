"""What verifying drafts costs, on top of a source that prices decodes of one token each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np

from engine.bundle.schema import RESOLUTIONS
from engine.timing.contract import Covering, PassQueries, PassTimes, PassTimeSource, decode_run

REFUSED = RESOLUTIONS.index("refused")


def priced(source: PassTimeSource, knobs: Mapping[str, Any]) -> PassTimeSource:
    """The source as the speculation that ``knobs`` ask for wants it; itself where there is none.

    A source with a true ``knows_width`` prices verification and drafting itself and is left as it is.
    """
    tokens, pricing, cost = (knobs[name] for name in ("spec_tokens", "spec_pricing", "spec_draft_cost"))
    if not tokens or getattr(source, "knows_width", False):
        return source
    return VerifyTiming(source, tokens, pricing, cost) if cost else FreeDrafts(source, tokens, pricing, cost)


class VerifyTiming:
    """Decodes that compute a token and its drafts.

    ``pricing`` is *tokens*: as many decoding requests as there are tokens to verify, which read the KV of the requests
    once; or *as_measured*: as the source prices the requests, for one that was measured under this very speculation.
    Each of the ``draft_tokens`` adds ``draft_cost`` of what a pass takes in which the same requests decode one token.
    """

    def __init__(self, source: PassTimeSource, draft_tokens: int, pricing: str, draft_cost: float) -> None:
        self._source = source
        self.between_ns = source.between_ns
        self._width = 1 if pricing == "as_measured" else 1 + draft_tokens
        self._drafting = draft_tokens * draft_cost
        self._said = {"draft_tokens": draft_tokens, "pricing": pricing, "draft_cost": draft_cost}

    def pass_ns(
        self,
        prefill_requests: int,
        new_tokens: int,
        prefill_kv_tokens: int,
        decode_requests: int,
        decode_kv_tokens: int,
    ) -> int:
        """See :class:`PassTimeSource`."""
        source = self._source
        duration = source.pass_ns(
            prefill_requests, new_tokens, prefill_kv_tokens, decode_requests * self._width, decode_kv_tokens
        )
        if self._drafting and decode_requests:
            duration += int(self._drafting * source.pass_ns(0, 0, 0, decode_requests, decode_kv_tokens) + 0.5)
        return duration

    def explain(self, queries: PassQueries) -> PassTimes:
        """See :class:`PassTimeSource`; drafting counts as decoding."""
        return self._answered(queries, self._source.explain)

    def marked(self, queries: PassQueries) -> PassTimes:
        """See :class:`engine.timing.contract.Covering`, which the source must be; drafting may be refused too."""
        return self._answered(queries, cast(Covering, self._source).marked)

    def _answered(self, queries: PassQueries, answer: Callable[[PassQueries], PassTimes]) -> PassTimes:
        times = answer(replace(queries, decode_requests=queries.decode_requests * self._width))
        at = np.flatnonzero(queries.decode_requests)
        if not self._drafting or not len(at):
            return times
        none = np.zeros(len(at), np.int64)
        alone = PassQueries(none, none, none, queries.decode_requests[at], queries.decode_kv_tokens[at])
        plain = answer(alone)
        decode_ns, resolution = times.decode_ns.copy(), times.resolution.copy()
        decode_ns[at] += np.floor(self._drafting * plain.total_ns + 0.5).astype(np.int64)
        resolution[at[plain.resolution == REFUSED]] = REFUSED
        return replace(times, decode_ns=decode_ns, resolution=resolution)

    def describe(self) -> dict[str, Any]:
        """The source's own description, with what verification adds."""
        return {**self._source.describe(), "speculation": self._said}


class FreeDrafts(VerifyTiming):
    """The same where drafting takes no time, so that runs of decodes can be asked of the source itself."""

    def decode_run(
        self, decode_requests: int, contexts: Iterable[int], now_ns: int, until_ns: int
    ) -> tuple[list[int], list[int], int]:
        """See :class:`engine.timing.contract.DecodeRuns`."""
        return decode_run(self._source, decode_requests * self._width, contexts, now_ns, until_ns)
