"""Rules of scheduling that only some engines have."""

from __future__ import annotations

from dataclasses import dataclass


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
