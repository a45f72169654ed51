"""Where simulated time ends: times are whole nanoseconds that arrays of 64 bits hold."""

from __future__ import annotations

from engine.errors import GapscopeError

LATEST_NS = 1 << 62
"""146 years. Half of what 64 bits hold, so that times can be added and taken from each other."""


def check_time(time_ns: int) -> None:
    """Refuse a time that no record can say.

    Raises:
        GapscopeError: it is beyond LATEST_NS.
    """
    if time_ns >= LATEST_NS:
        raise GapscopeError(
            f"Simulated time goes beyond {LATEST_NS / 1e9 / 86400 / 365.25:.0f} years, where its clock ends: expected "
            "passes, transfers and think times that take less; see the knobs of timing and the bandwidths."
        )
