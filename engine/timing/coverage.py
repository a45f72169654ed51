"""What a model was measured on, as plain arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def domain(model: Mapping[str, Any], composition: str | None = None) -> dict[str, dict[str, list[float]]]:
    """Every measured knot of a model.

    ``decode``: ``batch, kv_per_request, ratio, passes``; ``prefill``: ``batch, kv_per_prompt, new_tokens, ratio,
    passes`` (one list each, equally long). ``ratio`` is the measured median over the smooth base.
    """
    variant = model["variants"][composition or model["composition"]]
    decode: dict[str, list[float]] = {k: [] for k in ("batch", "kv_per_request", "ratio", "passes")}
    prefill: dict[str, list[float]] = {k: [] for k in ("batch", "kv_per_prompt", "new_tokens", "ratio", "passes")}
    for site in variant["decode_sites"]:
        for knot in site["knots"]:
            _append(decode, site["batch"], *knot)
    for site in variant["prefill_sites"]:
        for knot in site["knots"]:
            _append(prefill, site["batch"], site["context"], *knot)
    return {"decode": decode, "prefill": prefill}


def _append(columns: dict[str, list[float]], *values: float) -> None:
    for column, value in zip(columns.values(), values, strict=True):
        column.append(value)
