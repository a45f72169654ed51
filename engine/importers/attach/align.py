"""How far an engine's clock is from the client's: by recorded times of day, by requests known to both, or given.

Every request that both sides know bounds the offset ``o`` that is added to the engine's times: it was dispatched
before the engine took it, ``o >= dispatched - taken``, and its first token reached the client after the pass that made
it had ended, ``o <= first visible - made`` (the same holds for its last token).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.bundle import Check

Times = npt.NDArray[np.float64]
METHODS = {
    "wall": "recorded wall times",
    "ids": "request ids",
    "given": "a given offset",
}


@dataclass(frozen=True)
class Bounds:
    """What each joined request says of the offset, in nanoseconds: at least ``lower``, at most ``upper``.

    Both are int64 with one value per request; :data:`NOTHING` where a request says nothing.
    """

    lower: npt.NDArray[np.int64]
    upper: npt.NDArray[np.int64]


NOTHING = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Alignment:
    """The offset in use, and what the requests say about it.

    ``residual_ns`` of a request that bounds the offset from both sides is how far the offset lies from the middle of
    its bounds; ``spread_ns`` is what lies between the residuals' 5th and 95th percentile.
    """

    method: str
    offset_ns: int
    n: int
    """Requests that bound the offset."""
    residual_ns: dict[str, int] | None
    spread_ns: int
    violations: int
    """Requests whose bounds the offset violates."""
    worst_ns: int
    """The largest violation."""
    by_ids_ns: tuple[int, int] | None
    """The least and the largest offset that suit the requests best, whatever is in use."""

    @property
    def words(self) -> str:
        """The alignment as the identity says it."""
        return "; ".join([f"engine times moved onto the client's clock by {METHODS[self.method]}", *self._asked()])

    def _asked(self) -> list[str]:
        """What the requests ask for, in words."""
        if self.by_ids_ns is None:
            return []
        low, high = (end - self.offset_ns for end in self.by_ids_ns)
        if low <= 0 <= high:
            return [f"the requests leave {_ms(low, sign=True)} to {_ms(high, sign=True)} open"]
        return [f"the requests ask for {_ms(low if low > 0 else high, sign=True)} more"]

    def to_json(self) -> dict[str, Any]:
        """As the lineage keeps it."""
        return {
            "method": self.method,
            "offset_ns": self.offset_ns,
            "n": self.n,
            "residual_ns": self.residual_ns,
            "spread_ns": self.spread_ns,
            "violations": self.violations,
            "largest_violation_ns": self.worst_ns,
            "offset_by_ids_ns": None if self.by_ids_ns is None else list(self.by_ids_ns),
        }

    def check(self) -> Check:
        """``clocks_aligned``: no request's bounds are violated by more than the spread of the residuals."""
        if not self.n:
            return Check(
                "clocks_aligned", "unknown", f"by {METHODS[self.method]}; no request is known to both sides to tell"
            )
        detail = f"by {METHODS[self.method]}; {self.n} requests bound the offset, {self.violations} are violated"
        if self.violations:
            detail += f", by {_ms(self.worst_ns)} at most"
        if self.residual_ns is not None:
            low, high, most = (_ms(self.residual_ns[name]) for name in ("p50", "p95", "max"))
            detail += f"; residual p50 {low}, p95 {high}, max {most}; spread {_ms(self.spread_ns)}"
        detail = "; ".join([detail, *self._asked()])
        return Check("clocks_aligned", "fail" if self.worst_ns > self.spread_ns else "pass", detail)


def align(method: str, offset_ns: int, bounds: Bounds) -> Alignment:
    """What the bounds say about an offset."""
    has_lower, has_upper = bounds.lower != NOTHING, bounds.upper != NOTHING
    early = np.where(has_lower, bounds.lower - offset_ns, 0).clip(min=0)
    late = np.where(has_upper, offset_ns - bounds.upper, 0).clip(min=0)
    violation = np.maximum(early, late)
    both = has_lower & has_upper
    low, high = bounds.lower[both] - offset_ns, bounds.upper[both] - offset_ns
    middle = (low + high) / 2
    residual, spread = None, 0
    if both.any():
        p50, p95 = np.quantile(np.abs(middle), [0.5, 0.95])
        residual = {"p50": round(p50), "p95": round(p95), "max": round(np.abs(middle).max())}
        spread = round(np.quantile(middle, 0.95) - np.quantile(middle, 0.05))
    return Alignment(
        method=method,
        offset_ns=offset_ns,
        n=int((has_lower | has_upper).sum()),
        residual_ns=residual,
        spread_ns=spread,
        violations=int((violation > 0).sum()),
        worst_ns=int(violation.max(initial=0)),
        by_ids_ns=best_offsets(bounds),
    )


def offset_of(bounds: Bounds) -> int | None:
    """The middle of the best offsets, None without bounds."""
    best = best_offsets(bounds)
    return None if best is None else best[0] + (best[1] - best[0]) // 2


def best_offsets(bounds: Bounds) -> tuple[int, int] | None:
    """The least and the largest offset that violate the bounds least in sum, None without bounds.

    Where every request can be satisfied, these are the offsets between the largest lower and the smallest upper bound.
    Where some cannot, as many requests ask for more as ask for less, so that a few wrong ones hardly matter.
    """
    lower = np.sort(bounds.lower[bounds.lower != NOTHING])
    upper = np.sort(bounds.upper[bounds.upper != NOTHING])
    if not len(lower) and not len(upper):
        return None
    if not len(upper):
        return int(lower[-1]), int(lower[-1])
    if not len(lower):
        return int(upper[0]), int(upper[0])
    # The sum of violations falls while more lower bounds lie above an offset than upper bounds below it.
    ends = np.unique(np.concatenate([lower, upper]))
    above = len(lower) - np.searchsorted(lower, ends, side="right")  # lower bounds that ends[i] violates
    below = np.searchsorted(upper, ends, side="right")  # upper bounds that more than ends[i] violates
    slope = below - above  # of the sum, just right of each end
    first = int(np.argmax(slope >= 0))
    last = first + 1 if slope[first] == 0 and first + 1 < len(ends) else first
    return int(ends[first]), int(ends[last])


def _ms(ns: int, sign: bool = False) -> str:
    return f"{ns / 1e6:+,.3f} ms" if sign else f"{ns / 1e6:,.3f} ms"
