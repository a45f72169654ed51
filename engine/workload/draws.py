"""Random numbers that depend on nothing but a seed and on what they are drawn for."""

from __future__ import annotations

import hashlib
import json

BITS = 53


def uniform(seed: int, *what: str | int) -> float:
    """A number in [0, 1), the same wherever and in whatever order it is drawn.

    The top 53 bits of the BLAKE2b hash of the seed and of ``what`` it is for, as a share of 2^53.
    """
    digest = hashlib.blake2b(json.dumps([seed, *what]).encode(), digest_size=8).digest()
    return float((int.from_bytes(digest, "big") >> (64 - BITS)) / (1 << BITS))
