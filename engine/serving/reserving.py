"""Admission that holds blocks for a whole request, from event to event."""

from __future__ import annotations

from engine.serving.contract import ServerConfig
from engine.serving.skipping import SkippingServer
from engine.serving.skipping.request import ScheduledRequest
from engine.timing.contract import PassTimeSource


class ReservingServer(SkippingServer):
    """One replica whose requests have all blocks that they will need from their admission on; nobody is preempted.

    With ``per_sharer`` every request counts in full, whatever it shares; otherwise less what it holds already.
    """

    def __init__(self, config: ServerConfig, timing: PassTimeSource) -> None:
        super().__init__(config, timing)
        self._per_sharer = config.reservation == "per_sharer"
        self._drafts = self._decodes.width - 1
        self._most = 0  # blocks that the running requests will hold in the end, each for itself
        self._to_take = 0  # those that they are still to take, as if none had ever been taken

    def _reserve(self, request: ScheduledRequest, reserved: int, hits: int, idle: int) -> bool:
        most = self._most_blocks(request)
        if self._per_sharer:
            if self._most + most > self.pool.size:
                return False
        elif most - hits + idle + self._to_take - self.pool.taken > self.pool.free:
            return False
        self._most += most
        self._to_take += most - hits
        return True

    def _stays_blocked(self, request: ScheduledRequest, hits: int, idle: int) -> bool:
        """A hit that nobody holds costs a block, and none once it is evicted and a running request has it too."""
        return super()._stays_blocked(request, hits, idle) and not (idle and self._content.has_copies(request, hits))

    def _leave(self, request: ScheduledRequest, now_ns: int) -> int:
        blocks = super()._leave(request, now_ns)
        most = self._most_blocks(request)
        self._most -= most
        self._to_take -= most - blocks
        return blocks

    def _most_blocks(self, request: ScheduledRequest) -> int:
        """Blocks of a request's prompt, of all of its output but the last token, which has no KV, and of its drafts."""
        return self._blocks(request.prompt_tokens + request.output_tokens - 1 + self._drafts)
