"""Scheduler parity: does a core, fed with a recording's arrivals, form the recorded batches?"""

from engine.parity.check import check_parity
from engine.parity.loop import check_closed_loop
from engine.parity.result import Batch, BlockDivergence, BlockEvent, Divergence, ParityResult
from engine.parity.timed import check_by_dispatch
from engine.parity.timed_result import TimedDivergence, TimedParity, divergences_table

__all__ = [
    "Batch",
    "BlockDivergence",
    "BlockEvent",
    "Divergence",
    "ParityResult",
    "TimedDivergence",
    "TimedParity",
    "check_by_dispatch",
    "check_closed_loop",
    "check_parity",
    "divergences_table",
]
