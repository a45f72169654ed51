"""Scheduler parity: does a core, fed with a recording's arrivals, form the recorded batches?"""

from engine.parity.check import check_parity
from engine.parity.result import Batch, BlockDivergence, BlockEvent, Divergence, ParityResult

__all__ = ["Batch", "BlockDivergence", "BlockEvent", "Divergence", "ParityResult", "check_parity"]
