"""Replays of other simulators: what is known of where they come from, and what must not be claimed of them."""

from __future__ import annotations

from typing import Any

from engine.bundle import replay_lineage

UNKNOWN = "nothing is known of what the timing model was fitted on, nor of which measured runs were known to its makers"


def foreign_lineage(config: dict[str, Any], subset: str | None = None, **more: Any) -> dict[str, Any]:
    """Lineage of a replay whose files do not say what it rests on: a pair with it is no blind prediction.

    What it was fitted on and what was known when it was made are NULL, which is not the same as nothing.
    """
    lineage = replay_lineage((), config, {}, (), subset=subset, **more)
    return {**lineage, "fitted_on": None, "store_held_at_seal": None, "unknown": UNKNOWN}
