"""The rungs between a prediction and a measurement, and what each step isolates."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rung:
    """A replay that takes ``taken`` from the measurement besides what the rungs before it took.

    ``isolates`` is the layer that explains the difference from the rung before; empty for the first.
    """

    number: int
    name: str
    taken: str
    isolates: str


RUNGS: tuple[Rung, ...] = (
    Rung(0, "full prediction", "nothing", ""),
    Rung(1, "measured pool", "usable KV blocks and block size", "memory model"),
    Rung(2, "measured arrivals", "when each request was sent and given up", "client (closed-loop feedback)"),
    Rung(3, "measured reuse", "cached tokens at each first admission", "cache behaviour"),
    Rung(4, "measured pass durations", "duration of each pass and the time between passes", "timing model"),
    Rung(5, "measured batches", "who is in each batch, with how many tokens", "scheduler"),
    Rung(6, "measured", "everything", "host and frontend (what is left)"),
)
"""By number; 0 is the prediction and 6 the measured run itself, the others are replays of their own."""

PREDICTION, MEASURED = RUNGS[0], RUNGS[-1]
BUILT = RUNGS[1:-1]
"""The rungs that are built."""
PARITY_RUNG = 4
"""The rung that takes arrivals and durations and still schedules: it says how well that follows the recording."""
