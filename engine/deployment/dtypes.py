"""Bytes per element of the number formats that weights and KV are kept in."""

from __future__ import annotations

from engine.errors import GapscopeError

DTYPES: dict[str, float] = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "nvfp4": 0.5625,
    "mxfp4": 0.53125,
    "fp4": 0.5,
    "int4": 0.5,
}
"""Scales included where the format has them: mxfp4 one byte per 32 elements, nvfp4 one per 16."""


def dtype_bytes(name: str) -> float:
    """Bytes per element.

    Raises:
        GapscopeError: no such format.
    """
    try:
        return DTYPES[name]
    except KeyError:
        raise GapscopeError(f"Unknown dtype {name!r}: expected one of {', '.join(DTYPES)}.") from None
