"""The exact composition of batches, rebuilt from a :class:`~engine.serving.contract.ServerRecord`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.serving.contract import ServerRecord

Ints = npt.NDArray[np.int64]
Member = tuple[int, int, int]
"""Index of the request, tokens computed before, tokens of this pass."""


@dataclass(frozen=True, slots=True)
class Members:
    """One entry per request and pass, ordered by pass and, within a pass, in scheduling order."""

    pass_index: Ints
    index: Ints
    computed_before: Ints
    scheduled_tokens: Ints

    def __len__(self) -> int:
        return len(self.pass_index)

    def offsets(self, first_pass: int, last_pass: int) -> Ints:
        """Where the batch of each pass of ``first_pass .. last_pass`` begins, and after them where the last ends."""
        return np.searchsorted(self.pass_index, np.arange(first_pass, last_pass + 2))

    def batch(self, at: int) -> list[Member]:
        """The batch of one pass, in scheduling order."""
        low, high = np.searchsorted(self.pass_index, [at, at + 1])
        columns = (self.index, self.computed_before, self.scheduled_tokens)
        return list(zip(*(column[low:high].tolist() for column in columns), strict=True))


def members(record: ServerRecord, first_pass: int = 0, last_pass: int | None = None) -> Members:
    """The batches of the passes ``first_pass .. last_pass`` (both included; None: to the end).

    A long run has more members than memory for them: writers go through it range by range.
    """
    last = len(record.passes["start_ns"]) - 1 if last_pass is None else last_pass
    chunks = {name: values[_within(record, first_pass, last)] for name, values in record.prefill_chunks.items()}
    decodes = _decodes(record, first_pass, last)
    pass_index = np.concatenate([chunks["pass_index"], decodes["pass_index"]])
    seq = np.concatenate([chunks["seq"], decodes["seq"]])
    order = np.lexsort((seq, pass_index))
    return Members(
        pass_index=pass_index[order],
        index=np.concatenate([chunks["index"], decodes["index"]])[order],
        computed_before=np.concatenate([chunks["computed_before"], decodes["computed_before"]])[order],
        scheduled_tokens=np.concatenate(
            [chunks["scheduled_tokens"], np.full_like(decodes["seq"], record.verify_width)]
        )[order],
    )


def _within(record: ServerRecord, first_pass: int, last_pass: int) -> npt.NDArray[np.bool_]:
    passes = record.prefill_chunks["pass_index"]
    within: npt.NDArray[np.bool_] = (passes >= first_pass) & (passes <= last_pass)
    return within


def _decodes(record: ServerRecord, first_pass: int, last_pass: int) -> dict[str, Ints]:
    """Every pass of a stretch after its first, cut to the range; what the earlier ones sampled is computed before."""
    stretches = record.stretches
    begin = np.maximum(stretches["first_pass"] + 1, first_pass)
    end = np.minimum(stretches["last_pass"], last_pass) + 1
    counts = np.maximum(end - begin, 0)
    ordinal = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    pass_index = np.repeat(begin, counts) + ordinal
    steps = pass_index - np.repeat(stretches["first_pass"], counts)
    return {
        "pass_index": pass_index,
        "index": np.repeat(stretches["index"], counts),
        "seq": np.repeat(stretches["seq"], counts),
        "computed_before": np.repeat(stretches["computed_after_first"], counts) + sampled_before(record, counts, steps),
    }


def sampled_before(record: ServerRecord, counts: Ints, steps: Ints) -> Ints:
    """Tokens that stretches sampled after their first pass and before their pass number ``steps`` (from 1 on).

    ``counts`` says how many of the ``steps`` belong to each stretch, in order.
    """
    return tokens_in(record.bursts, np.repeat(first_bursts(record), counts) + 1, steps - 1)


def computed_at_end(record: ServerRecord) -> Ints:
    """Tokens that had been computed, rejected drafts not among them, when each stretch ended."""
    stretches = record.stretches
    later = stretches["last_pass"] - stretches["first_pass"]
    return stretches["computed_after_first"] + tokens_in(record.bursts, first_bursts(record) + 1, later)


def tokens_in(bursts: Ints, first: Ints, counts: Ints) -> Ints:
    """Tokens of ``counts`` passes each, the bursts from ``first`` on; one per pass where there are no bursts."""
    if not len(bursts):
        return counts
    total = np.concatenate([[0], np.cumsum(bursts)])
    return total[first + counts] - total[first]


def first_bursts(record: ServerRecord) -> Ints:
    """Where the bursts of each stretch begin."""
    lengths = record.stretches["last_pass"] - record.stretches["first_pass"] + 1
    return np.cumsum(lengths) - lengths
