"""What a model was measured on, as plain arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.timing.anchors.artefact import read_anchor
from engine.timing.model_file import ANCHOR_KIND, KIND, TABLE_KIND

AXES = {"decode": ("batch", "kv_per_request"), "prefill": ("batch", "kv_per_prompt", "new_tokens")}
Knots = dict[str, dict[str, list[float]]]


def domain(model: Mapping[str, Any], composition: str | None = None) -> Knots:
    """Every measured knot of a fitted model.

    ``decode``: ``batch, kv_per_request, ratio, passes``; ``prefill``: ``batch, kv_per_prompt, new_tokens, ratio,
    passes`` (one list each, equally long). ``ratio`` is the measured median over the smooth base.
    """
    variant = model["variants"][composition or model["composition"]]
    found: Knots = {part: {name: [] for name in (*axes, "ratio", "passes")} for part, axes in AXES.items()}
    for site in variant["decode_sites"]:
        for knot in site["knots"]:
            _append(found["decode"], site["batch"], *knot)
    for site in variant["prefill_sites"]:
        for knot in site["knots"]:
            _append(found["prefill"], site["batch"], site["context"], *knot)
    return found


def measured_points(model: Mapping[str, Any], composition: str | None = None) -> Knots:
    """Where a model of any kind was measured: ``decode`` with ``batch, kv_per_request``, ``prefill`` with ``batch,
    kv_per_prompt, new_tokens`` (of all prompts together). Points of an anchor whose context nobody knows are left out;
    a model whose kind has no points of its own has none.
    """
    kind = model.get("kind")
    if kind == KIND:
        knots = domain(model, composition)
        return {part: {name: knots[part][name] for name in axes} for part, axes in AXES.items()}
    found: Knots = {part: {name: [] for name in axes} for part, axes in AXES.items()}
    if kind == ANCHOR_KIND:
        anchor = read_anchor(model["artefact"], model["name"])
        for decode in (*anchor.sweep, *anchor.grid):
            if decode.context is not None:
                _append(found["decode"], decode.batch, decode.context)
        for prompt in anchor.prefill.points if anchor.prefill else ():
            _append(found["prefill"], prompt.prompts, prompt.context / prompt.prompts, prompt.tokens)
    if kind == TABLE_KIND:
        for batch, _, kv, _ in model["decode"]:
            _append(found["decode"], batch, kv / batch)
        for batch, tokens, kv, _ in model["prefill"]:
            _append(found["prefill"], batch, kv / batch, tokens)
    return found


def _append(columns: dict[str, list[float]], *values: float) -> None:
    for column, value in zip(columns.values(), values, strict=True):
        column.append(value)
