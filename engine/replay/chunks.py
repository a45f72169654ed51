"""The ``chunks`` of a replay. Tokens exist only as ranges of passes until a batch of rows is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from engine.arrays import coded, numbers
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


def chunks(
    responses: Responses, names: Sequence[str], rank: Ints, workers: Sequence[tuple[int, int]]
) -> Iterator[pa.RecordBatch]:
    """One row per pass that sampled for a request, as its client saw it, in order of time, of request and of token.

    That is a token, or under speculation what was accepted at once.

    Args:
        responses: what the clients saw.
        names: of the requests, by index.
        rank: of each request when sorted by name.
        workers: for each its passes, as (first, last + 1).
    """
    seen_ns, count = responses.pass_seen_ns, len(responses.pass_seen_ns)
    seen = [_Seen(responses, rank, begin, end) for begin, end in workers]
    in_time = seen_ns if len(seen) == 1 else np.sort(seen_ns)
    rows = np.zeros(count + 1, np.int64)  # about, by pass in order of time; after the last what is seen still later
    for own in seen:
        rows[np.searchsorted(in_time, own.seen_ns)] += own.rows
        at = np.searchsorted(in_time, own.first_seen_ns)
        rows += np.bincount(at, own.held, minlength=count + 1).astype(np.int64)
    after = _BEFORE_ALL
    for _, last in ranges(rows if rows[count:].any() else rows[:count]):
        until = int(in_time[last - 1]) if last <= count else _AFTER_ALL
        if until == after:
            continue  # passes of several workers that are seen at one time are written together
        parts = [own.between(after, until) for own in seen]
        after = until
        who, ordinal, time_ns, tokens = (np.concatenate([part[column] for part in parts]) for column in range(4))
        if len(parts) > 1:
            who, ordinal, time_ns, tokens = _sorted(who, ordinal, time_ns, tokens, rank)
        columns = {
            "request_id": coded(who, names),
            "ordinal": numbers(ordinal),
            "time_ns": numbers(time_ns),
            "tokens": numbers(tokens),
            "visible": numbers(np.ones(len(who), np.bool_)),
        }
        yield pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


_BEFORE_ALL, _AFTER_ALL = -(1 << 62), 1 << 62


class _Seen:
    """The tokens of one worker, which come in order of its passes.

    Tokens sampled before the first of their request is seen are *held*: they are seen with it.
    """

    def __init__(self, responses: Responses, rank: Ints, begin: int, end: int) -> None:
        own = np.flatnonzero((responses.first_pass >= begin) & (responses.first_pass < end))
        own = own[np.argsort(rank[responses.index[own]], kind="stable")]  # of one pass, by name
        self.seen_ns = responses.pass_seen_ns[begin:end]
        self._rank = rank
        self._index = responses.index[own]
        first, self._last = responses.first_pass[own] - begin, responses.last_pass[own] + 1 - begin
        self._ordinal_at_zero = responses.first_ordinal[own] - first
        self._bursts, self._burst_at_zero = responses.bursts, responses.first_burst[own] - first
        self.first_seen_ns = responses.first_seen_ns[self._index]
        self.held = np.clip(np.searchsorted(self.seen_ns, self.first_seen_ns) - first, 0, self._last - first)
        self._sampled_first = first
        self._first = first + self.held
        count = end - begin
        ends = np.bincount(self._last, minlength=count + 1)
        self.rows: Ints = np.cumsum(np.bincount(self._first, minlength=count + 1) - ends)[:count]

    def between(self, after_ns: int, until_ns: int) -> tuple[Ints, Ints, Ints, Ints]:
        """Request, ordinal, time and number of the tokens seen after the one and not after the other time, in order."""
        first, last = np.searchsorted(self.seen_ns, [after_ns, until_ns], side="right")
        low, high = np.maximum(self._first, first), np.minimum(self._last, last)
        lengths = np.maximum(high - low, 0)
        key = spans(low, lengths) * len(low) + np.repeat(np.arange(len(low)), lengths)
        key.sort()  # by pass, then by name: a request has one stretch at a time
        at, stretch = np.divmod(key, len(low)) if len(low) else (key, key)
        who, ordinal, time_ns = self._index[stretch], self._ordinal_at_zero[stretch] + at, self.seen_ns[at]
        tokens = self._tokens(stretch, at)
        late = np.flatnonzero((self.held > 0) & (self.first_seen_ns > after_ns) & (self.first_seen_ns <= until_ns))
        if not len(late):
            return who, ordinal, time_ns, tokens
        held = self.held[late]
        stretch, at = np.repeat(late, held), spans(self._sampled_first[late], held)
        return _sorted(
            np.concatenate([who, self._index[stretch]]),
            np.concatenate([ordinal, self._ordinal_at_zero[stretch] + at]),
            np.concatenate([time_ns, self.first_seen_ns[stretch]]),
            np.concatenate([tokens, self._tokens(stretch, at)]),
            self._rank,
        )

    def _tokens(self, stretch: Ints, at: Ints) -> Ints:
        """How many each of these stretches sampled in the pass."""
        if not len(self._bursts):
            return np.ones(len(at), np.int64)
        return self._bursts[self._burst_at_zero[stretch] + at]


def _sorted(who: Ints, ordinal: Ints, time_ns: Ints, tokens: Ints, rank: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    order = np.lexsort((ordinal, rank[who], time_ns))
    return who[order], ordinal[order], time_ns[order], tokens[order]
