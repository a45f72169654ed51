"""A recording whose program was killed: its end is that of the last request which was over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KILLED = "killed"


def was_killed(identity: Mapping[str, Any]) -> bool:
    """Whether the program that recorded wrote down its beginning, and never its end."""
    end = identity.get("end")
    return identity.get("recorded") == "client" and isinstance(end, Mapping) and end.get("t_end_s", 0) is None


def with_end(identity: Mapping[str, Any], last_s: float) -> dict[str, Any]:
    """The identity of a recording that was killed, over ``last_s`` after its start."""
    asked = identity["phases"]
    lasted_s = max(0.0, last_s - asked["warmup_s"])  # where it was to last until the trace is over
    end = {**identity["end"], "t_stop_s": last_s, "t_end_s": last_s, KILLED: True}
    return {**identity, "phases": {**asked, "duration_s": asked["duration_s"] or lasted_s}, "end": end}
