"""Random cases for SGLang's core: the general ones, with its rules drawn too and a pool that runs short."""

from __future__ import annotations

import random
from dataclasses import replace

from serving_cases import Case, random_case

from engine.serving.rules import SglangRules


def sglang_case(seed: int) -> Case:
    """A case in which chunks are aligned, the pool holds the longest request and hardly more, or much more."""
    case, draw = random_case(seed), random.Random(seed)
    page = case.config.block_size
    pool = 4 * case.longest // page + 3 + draw.choice((0, 2, 20, case.config.usable_kv_blocks))
    rules = SglangRules(
        max_prefill_tokens=draw.choice((3, 40, 1000)),
        chunked_prefill_size=draw.choice((0, page, 4 * page, 64 * page)),
        mixed_chunk=draw.random() < 0.3,
        clip_max_new_tokens=draw.choice((1, 4, 30, 4096)),
        schedule_conservativeness=draw.choice((0.0, 0.0, 0.2, 1.0, 2.0)),
    )
    config = replace(case.config, policy=draw.choice(("fcfs", "lpm")), usable_kv_blocks=pool, sglang=rules)
    return replace(case, config=config)
