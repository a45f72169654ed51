"""Speculative decoding as the scheduler sees it: drafts verified per decode, and how many of them are accepted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.errors import GapscopeError
from engine.timing.acceptance import chain, rate_of_length

Ints = npt.NDArray[np.int64]
MASK = (1 << 64) - 1
ODD = 0x9E3779B97F4A7C15
MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014)."""


@dataclass(frozen=True, slots=True)
class Speculation:
    """``draft_tokens`` tokens are drafted for every decoding request and verified in its next pass.

    ``acceptance`` has the probability that the draft at each position is accepted if those before it were; a pass
    samples one token and the drafts up to the first rejection. Draws follow from ``seed``, the request and the ordinal
    of its verification alone, so a change elsewhere in the run does not move them.

    Raises:
        GapscopeError: no drafts, not one probability per draft, or one outside 0 to 1.
    """

    draft_tokens: int
    acceptance: tuple[float, ...]
    seed: int = 42

    def __post_init__(self) -> None:
        if self.draft_tokens < 1 or len(self.acceptance) != self.draft_tokens:
            raise GapscopeError(
                f"Speculation with {self.draft_tokens} draft tokens and {len(self.acceptance)} acceptance "
                "probabilities: expected at least one draft and one probability for each."
            )
        if not all(0 <= p <= 1 for p in self.acceptance):
            raise GapscopeError(f"Acceptance probabilities {self.acceptance}: expected numbers from 0 to 1.")

    @property
    def width(self) -> int:
        """Tokens that a decoding request computes in a pass: the last sampled and the drafts."""
        return 1 + self.draft_tokens

    @property
    def mean_length(self) -> float:
        """Expected tokens sampled per verification: 1 and the sum of the products of leading probabilities."""
        return 1 + float(np.cumprod(self.acceptance).sum())

    def lengths(self, index: int, first: int, count: int) -> Ints:
        """Tokens (1 to :attr:`width`) that verifications ``first`` to ``first + count - 1`` of a request sample."""
        start = _mix_number(_mix_number(self.seed & MASK) + index * ODD)
        ordinals = np.arange(first, first + count, dtype=np.uint64)
        bits = _mix(np.uint64(start) + ordinals * np.uint64(ODD))
        uniform = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
        reached = np.cumprod(self.acceptance)[::-1]  # ascending: how likely each position is accepted
        lengths: Ints = 1 + self.draft_tokens - np.searchsorted(reached, uniform, side="right").astype(np.int64)
        return lengths

    def until(self, index: int, first: int, tokens: int) -> Ints:
        """The same for as many verifications as it takes to sample ``tokens``; the last is cut to what is asked for."""
        if tokens < 1:
            return np.empty(0, np.int64)
        lengths = self.lengths(index, first, tokens)
        total = np.cumsum(lengths)
        last = int(np.searchsorted(total, tokens))
        lengths = lengths[: last + 1]
        lengths[last] -= total[last] - tokens
        return lengths


def acceptance_of(
    text: str, mean_length: float, draft_tokens: int, decay: float = 1.0, measured_tokens: int = 0
) -> tuple[float, ...]:
    """Acceptance by position from what a user gives: probabilities, or the mean tokens per verification.

    ``text`` has one probability for all positions or one for each, comma-separated. Without it, the one probability is
    taken whose mean length of ``measured_tokens`` drafts (0: of all) is ``mean_length``. One probability is that of the
    first draft, and decays from draft to draft (:mod:`engine.timing.acceptance`).

    Raises:
        GapscopeError: neither or both are given, a text that is no list of probabilities, a length out of reach.
    """
    k = draft_tokens
    if bool(text.strip()) == (mean_length > 0):
        raise GapscopeError(
            f"Knobs spec_acceptance={text!r} and spec_mean_length={mean_length:g}: expected exactly one of them, as "
            "probabilities by position or as the mean tokens per verification."
        )
    if mean_length > 0:
        depth = measured_tokens or k
        try:
            return chain(rate_of_length(mean_length, depth, decay), decay, k)
        except GapscopeError as error:
            raise GapscopeError(f"Knob spec_mean_length: {error}") from None
    try:
        given = tuple(float(part) for part in text.split(","))
    except ValueError:
        given = ()
    if len(given) == 1 and 0 <= given[0] <= 1:
        return chain(given[0], decay, k)
    if len(given) != k or not all(0 <= p <= 1 for p in given):
        raise GapscopeError(
            f"Knob spec_acceptance={text!r}: expected one probability from 0 to 1, or {k} of them separated by commas, "
            f"one for each of spec_tokens={k} drafts."
        )
    return given


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    first, second = (np.uint64(m) for m in MULTIPLIERS)
    values = (values ^ (values >> np.uint64(30))) * first
    values = (values ^ (values >> np.uint64(27))) * second
    mixed: npt.NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return mixed


def _mix_number(value: int) -> int:
    value &= MASK
    value = ((value ^ (value >> 30)) * MULTIPLIERS[0]) & MASK
    value = ((value ^ (value >> 27)) * MULTIPLIERS[1]) & MASK
    return value ^ (value >> 31)
