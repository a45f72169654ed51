"""What a model was measured on, as plain arrays, and its curves, for drawing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from engine.bundle.schema import RESOLUTIONS
from engine.errors import GapscopeError
from engine.timing.contract import PassQueries
from engine.timing.fpm import FpmTiming
from engine.timing.rows import CLASSES


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


def curve(
    model: Mapping[str, Any],
    pass_class: str,
    x: Sequence[int],
    *,
    prefill_requests: int = 1,
    new_tokens: int = 0,
    prefill_kv_tokens: int = 0,
    decode_requests: int = 1,
    decode_kv_tokens: int = 0,
    composition: str | None = None,
) -> dict[str, list[Any]]:
    """The model's curve for one class of passes: ``x, duration_ns, resolution`` (outside the domain: clamped).

    ``x`` runs over the new tokens (``prefill_only``, ``mixed``) or over the sum of decode KV tokens (``decode_only``);
    the other axes stay as given.

    Raises:
        GapscopeError: no such class.
    """
    if pass_class not in CLASSES:
        raise GapscopeError(f"Pass class {pass_class!r}: expected one of {', '.join(CLASSES)}.")
    n = len(x)
    fixed = {
        "prefill_requests": prefill_requests if pass_class != "decode_only" else 0,
        "new_tokens": new_tokens if pass_class != "decode_only" else 0,
        "prefill_kv_tokens": prefill_kv_tokens if pass_class != "decode_only" else 0,
        "decode_requests": decode_requests if pass_class != "prefill_only" else 0,
        "decode_kv_tokens": decode_kv_tokens if pass_class != "prefill_only" else 0,
    }
    axes = {name: np.full(n, value, dtype=np.int64) for name, value in fixed.items()}
    axes["decode_kv_tokens" if pass_class == "decode_only" else "new_tokens"] = np.asarray(x, dtype=np.int64)
    timing = FpmTiming(model["variants"][composition or model["composition"]])
    told = timing.explain(PassQueries(**axes))
    return {
        "x": [int(v) for v in x],
        "duration_ns": [int(v) for v in told.total_ns],
        "resolution": [RESOLUTIONS[int(r)] for r in told.resolution],
    }
