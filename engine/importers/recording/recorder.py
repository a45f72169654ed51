"""What a recorder inside the engine took of each pass: part of the times that it recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from engine.identity import Identity
from engine.intake.rows import number


def set_recorder_cost(identity: Identity, passes: Sequence[Mapping[str, Any]], source: str) -> None:
    """Put median, 99th percentile and mean of the passes' ``own_us`` into the identity, in microseconds, with the
    number of passes; passes without work, or without that column, are left out, and nothing is set where none is left.
    """
    took = [us for row in passes if row["reqs"] and (us := number(row.get("own_us"))) is not None]
    if not took:
        return
    cost = {"median": np.median(took), "p99": np.quantile(took, 0.99), "mean": np.mean(took)}
    value = {name: round(float(us), 1) for name, us in cost.items()} | {"passes": len(took)}
    identity.set("telemetry", "recorder_own_us", value, f"computed: own_us of the passes in {source}")
