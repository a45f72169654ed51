"""The host model: how much later than its pass a token is seen (docs/replay.md).

It delays what the client sees and what it does next. The engine never waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MS = 1_000_000


@dataclass(frozen=True, slots=True)
class HostModel:
    """Terms of the way from the end of a pass to the client.

    Every token takes ``chunk_ns``. The first of a request takes ``request_ns`` more, and
    ``prompt_token_ps`` (picoseconds, so that sums stay whole) for each prompt token that its first admission did not
    hit, up to ``prompt_cap_ns``. No token overtakes an earlier one of its request.
    """

    chunk_ns: int
    request_ns: int = 0
    prompt_token_ps: int = 0
    prompt_cap_ns: int = 0

    @classmethod
    def of(cls, knobs: Mapping[str, Any]) -> HostModel:
        """The model that complete knobs ask for; latencies that are negative count as 0."""
        return cls(
            chunk_ns=max(0, round(knobs["response_latency_ms"] * MS)) + round(knobs["host_chunk_ms"] * MS),
            request_ns=round(knobs["host_request_ms"] * MS),
            prompt_token_ps=round(knobs["host_prompt_token_us"] * MS),
            prompt_cap_ns=round(knobs["host_prompt_cap_ms"] * MS),
        )

    @property
    def keeps_order(self) -> bool:
        """Whether responses end at the client in the order in which the engine completed them."""
        return not (self.request_ns or self.prompt_token_ps)

    def first_ns(self, uncached_tokens: Any) -> Any:
        """What the first token takes longer than others, for a number or an array of uncached prompt tokens."""
        prompt = uncached_tokens * self.prompt_token_ps // 1000
        if self.prompt_cap_ns:
            prompt = prompt - (prompt - self.prompt_cap_ns) * (prompt > self.prompt_cap_ns)
        return self.request_ns + prompt
