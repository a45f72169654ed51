"""Names for token content: the same tokens get the same name in every run and on every machine."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b, sha256

import numpy as np
import numpy.typing as npt
import orjson

TokenIds = npt.NDArray[np.uint32]

ROOT_KEY = 0
"""Parent of the first block of a prompt."""


def content_of(ids: TokenIds) -> str:
    """The content name of a stretch of token ids: a 64-bit digest of them, as 16 hex digits."""
    return blake2b(_bytes(ids), digest_size=8).hexdigest()


def output_content(conversation_id: str, turn_index: int) -> str:
    """Name of what a turn generates: nobody recorded the tokens, but equal source turns say the same."""
    return f"out:{conversation_id}:{turn_index}"


def block_key(parent: int, block: TokenIds) -> int:
    """The 64-bit key of one full block: it names the block's tokens and everything before them."""
    return int.from_bytes(blake2b(parent.to_bytes(8, "little") + _bytes(block), digest_size=8).digest(), "little")


def block_keys(ids: TokenIds, block_size: int, parent: int = ROOT_KEY) -> list[int]:
    """The chained keys of the full blocks of ``ids``; a last, partial block has none."""
    keys = []
    for start in range(0, len(ids) - block_size + 1, block_size):
        parent = block_key(parent, ids[start : start + block_size])
        keys.append(parent)
    return keys


def token_ids(values: Iterable[int]) -> TokenIds:
    """Token ids as an array.

    Raises:
        ValueError: something that is not a whole number from 0 to 2**32 - 1.
    """
    array = np.asarray(values)
    if array.size == 0:
        return np.empty(0, np.uint32)
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= 2**32:
        raise ValueError("not token ids")
    return array.astype(np.uint32)


def json_ids(ids: TokenIds) -> bytes:
    """Token ids as a JSON list without spaces."""
    return orjson.dumps(np.ascontiguousarray(ids), option=orjson.OPT_SERIALIZE_NUMPY)


def prompt_digest(ids: bytes) -> str:
    """The digest of a prompt in a recording: 16 hex digits of the SHA-256 of its ids in decimal, joined by commas.

    ``ids`` are as :func:`json_ids` gives them.
    """
    return sha256(ids[1:-1]).hexdigest()[:16]


def _bytes(ids: TokenIds) -> bytes:
    return np.ascontiguousarray(ids, dtype="<u4").tobytes()
