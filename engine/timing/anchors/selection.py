"""The anchor that a replay asked for, with the deployment that it shall stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.timing.anchors.model import model_of
from engine.timing.anchors.store import load
from engine.timing.anchors.target import Target, of_run
from engine.timing.model_file import ANCHOR_KIND

if TYPE_CHECKING:
    from engine.bundle import Bundle

LONGEST_SHARE = 95.0
"""Percentile of prompt lengths that a probe has to reach: one long prompt among many decides nothing."""


def anchor_model(knobs: Mapping[str, Any], like: Bundle | None, stores: Sequence[Path]) -> dict[str, Any] | None:
    """The timing model of the anchor that ``knobs`` name; a replay that is varied brings its own.

    ``like`` is the run whose deployment is replayed. None where no anchor is named.

    Raises:
        GapscopeError: there is no such anchor.
    """
    own = (like.lineage.get("timing") or {}).get("model") if like is not None else None
    name = knobs["anchor"]
    if isinstance(own, Mapping) and own.get("kind") == ANCHOR_KIND and name in ("", own.get("name")):
        return dict(own)
    if not name:
        return None
    return model_of(load(name, stores), None if like is None else target_of(like))


def target_of(run: Bundle) -> Target:
    """The deployment of a run with the prompts that it was asked, warm-up included.

    A run without requests has none, which is unknown and not zero.
    """
    lengths = hits = None
    table = run.table("requests", columns=["input_tokens", "cached_tokens"])
    if table is not None and table.num_rows:
        tokens, cached = (
            np.asarray(table[name].to_numpy(zero_copy_only=False), np.float64) for name in table.column_names
        )
        known = tokens[np.isfinite(tokens)]
        lengths = float(np.percentile(known, LONGEST_SHARE)) if len(known) else None
        both = np.isfinite(tokens) & np.isfinite(cached)
        if both.any() and tokens[both].sum() > 0:
            hits = float(cached[both].sum() / tokens[both].sum())
    return of_run(run.identity, prompt_tokens=lengths, hit_rate=hits)
