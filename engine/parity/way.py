"""How long requests need from their client to the engine, estimated from the passes that took them.

Nobody records when a request reaches the engine's input; the engine looks there between two passes. So the pass that
took a request only bounds its way: long enough to have missed the look before, short enough for the one that found it.
The rule is the one that says best, for requests it was not fitted on, which pass takes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.timing.host import request_latency

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LOOKS = ("end of the pass before", "start of the pass")
"""When the engine may look at its input for a pass."""
TERMS = ("constant_ms", "per_1000_tokens_ms", "per_request_beside_ms")
"""What a rule adds up; each rule has the first one, two or three of them. *Beside* are other requests that were
dispatched so shortly before or after that they were on their way at the same time."""
FOLDS = 10
FEWEST, MOST = 30, 2000
"""Requests below which nothing but the constant is estimated, and how many at most decide."""
SOFTNESS = 0.25
"""Share of the ways' scatter over which a bound counts partly, so that the search has a slope to follow."""


@dataclass(frozen=True, slots=True)
class Sightings:
    """Requests of known dispatch in the engine's order, and the looks between which each reached it (ms; the later one
    found it).

    Row 0 of ``low`` and ``high`` is for the first of ``LOOKS``, row 1 for the other.
    """

    dispatched: Floats
    tokens: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True, slots=True)
class Way:
    """The estimated way: ``look`` indexes ``LOOKS``, ``terms`` are the first few of ``TERMS``.

    ``in_order``: no request was seen to overtake another, so one that comes up with the one before comes with it.
    ``held_out`` has, by look and by number of terms, the share of requests whose pass a rule says that was fitted on
    others; ``explained`` counts the requests of all whose pass this rule says.
    """

    look: int
    terms: tuple[float, ...]
    window_ms: float
    in_order: bool
    requests: int
    explained: int
    held_out: dict[str, list[float]]

    def arrivals(self, dispatched: Floats, tokens: Floats) -> Floats:
        """When requests of the given dispatch times and prompt tokens reach the engine (ms)."""
        design = _design(dispatched, tokens, self.window_ms)[:, : len(self.terms)]
        arrivals: Floats = dispatched + design @ np.array(self.terms)
        if self.in_order:
            order = np.argsort(dispatched, kind="stable")
            arrivals[order] = np.maximum.accumulate(arrivals[order])
        return arrivals

    @property
    def constant_ms(self) -> float:
        """The part that does not depend on the request: what a cancel needs."""
        return self.terms[0]

    def to_json(self) -> dict[str, Any]:
        """The rule and what it rests on (JSON-ready)."""
        return {
            "look": LOOKS[self.look],
            **{name: round(value, 3) for name, value in zip(TERMS, self.terms, strict=False)},
            "beside_within_ms": round(self.window_ms, 3) if len(self.terms) > 2 else None,
            "in_order": self.in_order,
            "requests": self.requests,
            "explained": self.explained,
            "held_out": {look: [round(share, 4) for share in shares] for look, shares in self.held_out.items()},
        }


def estimate_way(seen: Sightings) -> Way:
    """The rule that predicts best which pass takes a request, judged on requests that it was not fitted on.

    First when the engine looks, by the best constant; then how many terms, of equally good rules the fewest. Of many
    requests that many, evenly thinned, decide. Without sightings the way takes no time.
    """
    count = len(seen.dispatched)
    if not count:
        return Way(0, (0.0,), 0.0, True, 0, 0, {})
    fold = np.arange(count) // -(-count // MOST) % FOLDS
    fold[np.arange(count) % -(-count // MOST) > 0] = FOLDS  # takes no part
    held_out = {name: [_held_out(seen, look, 1, fold)] for look, name in enumerate(LOOKS)}
    look = int(np.argmax([shares[0] for shares in held_out.values()]))
    shares = held_out[LOOKS[look]]
    if count >= FEWEST:
        shares += [_held_out(seen, look, terms, fold) for terms in range(2, len(TERMS) + 1)]
    found, window = _fit(seen, look, int(np.argmax(shares)) + 1, fold < FOLDS)
    order = np.argsort(seen.dispatched, kind="stable")
    in_order = bool((np.diff(seen.high[0][order] + seen.dispatched[order]) >= 0).all())
    way = Way(look, tuple(found.tolist()), window, in_order, count, 0, held_out)
    arrivals = way.arrivals(seen.dispatched, seen.tokens) - seen.dispatched
    return replace(way, explained=int(((arrivals > seen.low[look]) & (arrivals <= seen.high[look])).sum()))


def _held_out(seen: Sightings, look: int, terms: int, fold: Ints) -> float:
    """Share of requests whose pass is said by a rule that was fitted without their fold."""
    right = 0
    for n in range(FOLDS):
        fitted, window = _fit(seen, look, terms, (fold != n) & (fold < FOLDS))
        right += int(_explained(seen, look, fitted, window)[fold == n].sum())
    return right / int((fold < FOLDS).sum())


def _design(dispatched: Floats, tokens: Floats, window: float) -> Floats:
    order = np.sort(dispatched)
    beside = np.searchsorted(order, dispatched + window) - np.searchsorted(order, dispatched - window, side="right") - 1
    return np.stack([np.ones(len(dispatched)), tokens / 1000, np.maximum(beside, 0)], axis=1)


def _explained(seen: Sightings, look: int, terms: Floats, window: float) -> npt.NDArray[np.bool_]:
    way = _design(seen.dispatched, seen.tokens, window)[:, : len(terms)] @ terms
    right: npt.NDArray[np.bool_] = (way > seen.low[look]) & (way <= seen.high[look])
    return right


def _fit(seen: Sightings, look: int, terms: int, which: npt.NDArray[np.bool_]) -> tuple[Floats, float]:
    """The terms under which the most bounds hold, and the time within which requests count as beside each other.

    That is twice the constant that holds most bounds; from it the likeliest terms are searched, and from these the
    best.
    """
    low, high = np.maximum(seen.low[look][which], 0.0), np.maximum(seen.high[look][which], 0.0)
    constant = float(request_latency(np.stack([low, high], axis=1))["value"]) if which.any() else 0.0
    found, window = np.append(constant, np.zeros(terms - 1)), 2 * constant
    if terms == 1:
        return found, window
    design = _design(seen.dispatched, seen.tokens, window)[which, :terms]
    least = np.zeros(terms)  # nothing makes a way shorter
    likely = _climb(
        lambda v: _likelihood(design @ v[:-1], low, high, np.exp(v[-1])),
        np.append(found, 0.0),
        np.append(least, -np.inf),
    )
    soft = SOFTNESS * np.exp(likely[-1])

    def held(values: Floats) -> float:
        way = design @ values
        return float((_step((high - way) / soft) - _step((low - way) / soft)).sum())

    return _climb(held, likely[:-1], least), window


def _likelihood(way: Floats, low: Floats, high: Floats, scatter: float) -> float:
    """Log likelihood of the bounds where ways scatter around the rule as a logistic distribution."""
    held = _step((high - way) / scatter) - _step((low - way) / scatter)
    return float(np.log(np.maximum(held, 1e-9)).sum())


def _climb(height: Callable[[Floats], float], start: Floats, least: Floats) -> Floats:
    """Where ``height`` is greatest near ``start``, nowhere below ``least``: by the best step along one axis, halved
    where none leads higher."""
    found, best, step = start, height(start), 0.5
    while step > 0.005:
        moves = [np.maximum(found + sign * step * axis, least) for axis in np.eye(len(start)) for sign in (1.0, -1.0)]
        heights = [height(move) for move in moves]
        at = int(np.argmax(heights))
        if heights[at] > best + 1e-9:
            found, best = moves[at], heights[at]
        else:
            step /= 2
    return found


def _step(x: Floats) -> Floats:
    """From 0 to 1 around 0, smoothly."""
    out: Floats = 0.5 * (1.0 + np.tanh(x / 2))
    return out
