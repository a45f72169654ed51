"""What the timing source was asked about the passes of a replay, and what it answered in parts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from engine.replay.result import Ints, ReplayResult
from engine.replay.workers import has_ranks
from engine.timing.contract import PassQueries, PassTimes

QUERY_COLUMNS = (
    "num_prefill_requests",
    "sum_prefill_tokens",
    "sum_prefill_kv_tokens",
    "num_decode_requests",
    "sum_decode_kv_tokens",
)
"""Of a pass, in the order of ``PassTimeSource.pass_ns``."""
_OF_THE_LARGEST = ("sum_prefill_kv_tokens", "sum_decode_kv_tokens")
"""What ranks that are priced together do side by side, each for its own; the rest adds up."""


@dataclass(frozen=True, slots=True)
class Priced:
    """``queries`` as they were put, their ``answers``, and the same answers by pass (``times``).

    Both are one row per pass, unless the ranks of a step were priced as one batch: then there is one query per step.
    """

    queries: tuple[Ints, ...]
    answers: PassTimes
    times: PassTimes


def priced(result: ReplayResult) -> Priced:
    """Ask the source once more, for parts and provenance."""
    passes = result.record.passes
    columns = tuple(passes[name] for name in QUERY_COLUMNS)
    if not has_ranks(result.knobs) or result.knobs["dp_price"] != "combined":
        times = result.timing.explain(PassQueries(*columns))
        return Priced(columns, times, times)
    steps = passes["worker"] * (int(passes["step"].max(initial=0)) + 1) + passes["step"]
    _, first, step = np.unique(steps, return_index=True, return_inverse=True)
    together = []
    for name, column in zip(QUERY_COLUMNS, columns, strict=True):
        whole = np.zeros(len(first), np.int64)
        (np.maximum if name in _OF_THE_LARGEST else np.add).at(whole, step, column)
        together.append(whole)
    answers = result.timing.explain(PassQueries(*together))
    by_pass = {
        name: getattr(answers, name)[step]
        for name in ("prefill_ns", "decode_ns", "overhead_ns", "resolution", "source", "sites")
    }
    return Priced(tuple(together), answers, replace(answers, **by_pass))
