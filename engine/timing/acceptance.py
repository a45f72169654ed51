"""How many tokens a verification yields on average, from how likely drafts are accepted.

Of k drafts with one rate a, ``(1 - a^(k + 1)) / (1 - a)``. Drafters get less certain the further they go: a chain that
decays accepts draft j (from 0) with ``min(0.99, a d^j)`` if those before it were. With d near 0.95 such a chain brings
the length measured at one depth to others.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import GapscopeError

MOST_ACCEPTED = 0.99
"""Of a draft in a chain that decays: none is certain."""


def acceptance_length(rates: Sequence[float]) -> float:
    """Mean tokens per verification: the sampled one, and each draft that is accepted with all those before it.

    ``rates`` are the probabilities of each draft to be accepted if those before it were.
    """
    length = reached = 1.0
    for rate in rates:
        reached *= rate
        length += reached
    return length


def chain(rate: float, decay: float, drafts: int) -> tuple[float, ...]:
    """The rates of a chain; without decay (1) all are ``rate``."""
    if decay == 1.0:
        return (rate,) * drafts
    return tuple(min(MOST_ACCEPTED, rate * decay**j) for j in range(drafts))


def rate_of_length(length: float, drafts: int, decay: float = 1.0) -> float:
    """The rate of the chain whose mean length at ``drafts`` drafts is ``length``; it then tells other depths.

    Raises:
        GapscopeError: a length that no such chain has.
    """
    most = _length(1.0, decay, drafts)
    if not 1.0 <= length <= most:
        raise GapscopeError(
            f"A mean length of {length:g}: expected 1 to {most:.4g} tokens per verification of {drafts} drafts"
            f"{'' if decay == 1.0 else f' that decay by {decay:g}'}."
        )
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _length(middle, decay, drafts) < length else (low, middle)
    return high


def _length(rate: float, decay: float, drafts: int) -> float:
    if decay == 1.0:
        return sum(rate**position for position in range(drafts + 1))
    return acceptance_length(chain(rate, decay, drafts))
