"""Rules of scheduling that only some engines have."""

from __future__ import annotations

from dataclasses import dataclass, replace

RANKS_CONSERVATIVENESS = 0.3
"""Factor on ``schedule_conservativeness`` with attention data parallelism."""


@dataclass(slots=True, frozen=True)
class SglangRules:
    """SGLang's own settings (``engine.knobs`` has help and ranges).

    ``chunked_prefill_size`` 0 computes prompts whole.
    """

    max_prefill_tokens: int = 16384
    chunked_prefill_size: int = 8192
    mixed_chunk: bool = False
    clip_max_new_tokens: int = 4096
    schedule_conservativeness: float = 1.0

    def of_rank(self, ranks: int, page: int) -> SglangRules:
        """What one of several attention-DP ranks goes by: its share of a chunk, in whole pages, and less held room."""
        if ranks == 1:
            return self
        chunk = self.chunked_prefill_size and max(self.chunked_prefill_size // ranks, page)
        conservativeness = RANKS_CONSERVATIVENESS * self.schedule_conservativeness
        return replace(self, chunked_prefill_size=chunk, schedule_conservativeness=conservativeness)
