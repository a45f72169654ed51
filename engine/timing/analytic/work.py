"""What one pass computes, as one rank sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from engine.timing.analytic.amounts import Amount, larger

AskedOf = Literal["rank", "engine"]
"""Whose batch a query is: that of one attention data-parallel rank while the others have the like, or of all ranks
together with the KV of the largest."""


@dataclass(frozen=True, slots=True)
class Work:
    """Amounts of one pass. Attention is that of the rank with most; experts and head see the tokens of all ranks.

    ``prompts`` compute ``new_tokens`` and read ``prompt_kv``; ``decodes`` compute ``width`` tokens each and read
    ``decode_kv``, all of one rank. ``tokens`` are computed by the rank, ``all_tokens`` by the stage; ``rows`` of the
    stage are sampled from.
    """

    prompts: Amount
    new_tokens: Amount
    prompt_kv: Amount
    decodes: Amount
    decode_kv: Amount
    width: Amount
    tokens: Amount
    all_tokens: Amount
    rows: Amount


def work_of(
    prompts: Any,
    new_tokens: Any,
    prompt_kv: Any,
    decodes: Any,
    decode_kv: Any,
    *,
    width: float = 1.0,
    ranks: int = 1,
    asked_of: AskedOf = "rank",
) -> Work:
    """The work of queries, whose axes are those of :class:`engine.timing.contract.PassQueries` (whole numbers).

    Of a query to all ranks, the rank with most has its share of the requests, rounded up, and prompts as long as the
    mean. Of a query to one rank, the others are taken to have as much.
    """
    if ranks == 1 or asked_of == "rank":
        tokens = new_tokens + decodes * width
        rows = prompts + decodes * width
        return Work(
            prompts * 1.0,
            new_tokens * 1.0,
            prompt_kv * 1.0,
            decodes * 1.0,
            decode_kv * 1.0,
            width,
            tokens,
            tokens * float(ranks),
            rows * float(ranks),
        )
    own_prompts = -(-prompts // ranks) * 1.0
    own_new = new_tokens * own_prompts / larger(prompts * 1.0, 1.0)
    own_decodes = -(-decodes // ranks) * 1.0
    return Work(
        own_prompts,
        own_new,
        prompt_kv * 1.0,
        own_decodes,
        decode_kv * 1.0,
        width,
        own_new + own_decodes * width,
        new_tokens + decodes * width,
        prompts + decodes * width,
    )
