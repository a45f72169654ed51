"""What a replay took from a measured run, and what its record says about that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.identity import NOT_APPLICABLE, Identity

CLOSED_LOOP = ("lane_assignment", "lane_stagger_ms", "wrap", "think_scale", "dispatch_lag_ms")
"""Settings of a client that decides itself when to send."""
DRAWN = ("arrival_rate", "client_seed")
"""More of them, in records that have them."""


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """A rung of the ladder between a prediction and a measurement (docs/replay.md).

    Args:
        rung: its number.
        measured: id of the measured run.
        base: id of the prediction.
        taken: in words, what comes from the measured run.
        left: in words, what of it could not be taken.
        arrivals: requests are sent and given up when they were measured.
        reuse: so are the tokens that each reuses at its first admission.
        batches: so is who is in each batch.
        parity: how well the scheduler follows the recording (``engine.parity``), by name of the check.
        knobs: the settings of the prediction, against which those of the rung are named as changed.
    """

    rung: int
    measured: str
    base: str
    taken: tuple[str, ...]
    left: tuple[str, ...] = ()
    arrivals: bool = False
    reuse: bool = False
    batches: bool = False
    parity: Mapping[str, Any] | None = None
    knobs: Mapping[str, Any] | None = None

    def lineage(self) -> dict[str, Any]:
        """``rung`` and ``ladder`` of the lineage."""
        ladder: dict[str, Any] = {
            "measured": self.measured,
            "base": self.base,
            "taken": list(self.taken),
            "left": list(self.left),
        }
        if self.parity is not None:
            ladder["parity"] = dict(self.parity)
        return {"rung": self.rung, "ladder": ladder}

    def describe(self, identity: Identity) -> None:
        """Make the identity of the replay say what was not simulated."""
        source = f"taken from {self.measured}"
        if self.arrivals:
            identity.set("client", "loop", "open: measured dispatch times", source)
            identity.set("client", "cancel", "each request when it was measured to end without success", source)
            for name in (*CLOSED_LOOP, *(name for name in DRAWN if identity.value("client", name) is not None)):
                identity.set("client", name, NOT_APPLICABLE, "requests are sent when they were measured")
        if self.reuse:
            identity.set("capacity", "prefix_caching", "reuse at first admission as measured", source)
        if self.batches:
            identity.set("scheduler", "policy", "batches as measured", source)
            identity.set("scheduler", "preemption", "as the measured batches show it", source)
