"""The ``chunks`` of a replay. Tokens exist only as ranges of passes until a batch of rows is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from engine.bundle.arrays import coded, numbers
from engine.replay.blocks import spans
from engine.replay.result import Ints, Responses

BATCH_ROWS = 500_000
"""About how many rows a batch of the tables that grow with tokens holds."""


def ranges(rows_per_pass: Ints) -> Iterator[tuple[int, int]]:
    """Consecutive passes with about BATCH_ROWS rows together, as (first, last + 1)."""
    ends = np.cumsum(rows_per_pass)
    first = 0
    while first < len(ends):
        done = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, done + BATCH_ROWS, side="right")))
        yield first, last
        first = last


def chunks(responses: Responses, names: Sequence[str], rank: Ints) -> Iterator[pa.RecordBatch]:
    """One row per token that reached its client, in order of time, of request and of token.

    Args:
        responses: what the clients saw.
        names: of the requests, by index.
        rank: of each request when sorted by name.
    """
    seen_ns, first_seen_ns, count = responses.pass_seen_ns, responses.first_seen_ns, len(responses.pass_seen_ns)
    order = np.argsort(rank[responses.index], kind="stable")  # of one pass, by name
    index, begin, end = responses.index[order], responses.first_pass[order], responses.last_pass[order] + 1
    ordinal_at_zero = responses.first_ordinal[order] - begin
    # Tokens sampled before the first of their request is seen are seen with it, and so written before those of pass
    # ``until`` (which may be one past the last).
    until = np.searchsorted(seen_ns, first_seen_ns)[index]
    held = np.clip(until - begin, 0, end - begin)
    held_ordinal, begin = begin + ordinal_at_zero, begin + held
    rows = np.bincount(begin, minlength=count + 1) - np.bincount(end, minlength=count + 1)
    rows = np.cumsum(rows) + np.bincount(until, held, minlength=count + 1).astype(np.int64)
    for first, last in ranges(rows if rows[count:].any() else rows[:count]):
        low, high = np.maximum(begin, first), np.minimum(end, last)
        lengths = np.maximum(high - low, 0)
        key = spans(low, lengths) * len(begin) + np.repeat(np.arange(len(begin)), lengths)
        key.sort()  # by pass, then by name: a request has one stretch at a time
        at, stretch = np.divmod(key, len(begin))
        who, ordinal, time_ns = index[stretch], ordinal_at_zero[stretch] + at, seen_ns[at]
        late = np.flatnonzero((held > 0) & (until >= first) & (until < last))
        if len(late):
            also = np.repeat(index[late], held[late])
            who = np.concatenate([who, also])
            ordinal = np.concatenate([ordinal, spans(held_ordinal[late], held[late])])
            time_ns = np.concatenate([time_ns, first_seen_ns[also]])
            by_time = np.lexsort((ordinal, rank[who], time_ns))
            who, ordinal, time_ns = who[by_time], ordinal[by_time], time_ns[by_time]
        columns = {
            "request_id": coded(who, names),
            "ordinal": numbers(ordinal),
            "time_ns": numbers(time_ns),
            "tokens": numbers(np.ones(len(who), np.int64)),
            "visible": numbers(np.ones(len(who), np.bool_)),
        }
        yield pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
