"""Workers of pools that have no ranks to choose from."""

from __future__ import annotations

from engine.serving.contract import ServedRequest


class OneRank:
    """That part of :class:`engine.serving.contract.PoolWorker`."""

    def rank_for(self, request: ServedRequest) -> int:
        """Its only one."""
        return 0

    def withdraw(self, index: int) -> None:
        """Nothing was decided for it."""
