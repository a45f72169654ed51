"""Idle caps: where nothing is in flight for long, what is due next is due earlier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from engine.workload.live import LivePlay

S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class IdleShift:
    """At ``time_ns`` nothing of a play (None: of all) was in flight, and its ``timers`` moved ``shift_ns`` forward."""

    time_ns: int
    live: LivePlay | None
    shift_ns: int
    timers: int

    def moved(self, by_ns: int) -> IdleShift:
        """The same on a clock whose zero is so much later."""
        return replace(self, time_ns=self.time_ns - by_ns)


@dataclass(frozen=True, slots=True)
class IdleCaps:
    """The longest that a play (``tree_ns``) and the whole client (``global_ns``) wait with nothing in flight; 0: no
    limit."""

    tree_ns: int
    global_ns: int

    @classmethod
    def of(cls, knobs: Mapping[str, Any]) -> IdleCaps | None:
        """The caps that complete knobs ask for while the replay runs; None: there are none."""
        if knobs["idle_cap"] != "system":
            return None
        return cls(round(knobs["tree_idle_cap_s"] * S), round(knobs["global_idle_cap_s"] * S))


def gap_cap_ns(knobs: Mapping[str, Any]) -> int:
    """The longest gap between recorded starts of a play; 0: no limit."""
    return round(knobs["tree_idle_cap_s"] * S) if knobs["idle_cap"] == "per_trace" else 0


def excess_ns(idle_from_ns: int, now_ns: int, next_ns: int | None, cap_ns: int) -> int:
    """How much too late something is due that ends an idle time; not above 0: in time, or it cannot be earlier."""
    return 0 if next_ns is None or not cap_ns else next_ns - max(now_ns, idle_from_ns + cap_ns)
