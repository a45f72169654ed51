"""How long a forward pass takes: one seam, several sources (docs/timing.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import GapscopeError
from engine.timing.contract import PassQueries, PassTimes, PassTimeSource
from engine.timing.coverage import curve, domain
from engine.timing.fitting import fit
from engine.timing.fixed import FixedTiming
from engine.timing.fpm import FpmTiming
from engine.timing.model_file import check_model, load_model, save_model
from engine.timing.rows import FitSource

__all__ = [
    "FitSource",
    "PassQueries",
    "PassTimeSource",
    "PassTimes",
    "build_timing",
    "curve",
    "domain",
    "fit",
    "load_model",
    "save_model",
]


def build_timing(knobs: Mapping[str, Any], model: Mapping[str, Any] | None = None) -> PassTimeSource:
    """The source that ``knobs`` ask for; the only place where one is constructed.

    ``knobs`` are complete and checked (:func:`engine.knobs.resolve`). ``model`` is what :func:`fit` returned; the
    ``fixed`` source takes none.

    Raises:
        GapscopeError: ``timing`` is fpm and there is no model, or a model of another kind or version.
    """
    asked = float(knobs["between_passes_ms"])
    if knobs["timing"] == "fixed":
        return FixedTiming(knobs, between_ns=max(0, round(asked * 1e6)))
    if model is None:
        raise GapscopeError(
            "Knob timing='fpm' needs a timing model: name passes to fit on (`--fit RUN:warmup`) or a model file, "
            "or set timing=fixed."
        )
    check_model(model)
    composition = knobs["mixed_composition"]
    if composition == "auto":
        composition = model["composition"]
    between = model["between"]["value_ns"] if asked < 0 else round(asked * 1e6)
    variant = model["variants"][composition]
    description = {
        "kind": "fpm",
        "model_digest": model["digest"],
        "model": dict(model),  # small: with it a replay's bundle can show its own curves and domain
        "sources": model["lineage"]["sources"],
        "forced_differences": model["lineage"]["forced_differences"],
        "composition": composition,
        "composition_asked": knobs["mixed_composition"],
        "levels": variant["levels"],
        "holdout": {name: model["holdout"][composition]["by_class"][name] for name in variant["levels"]},
        "on_refused": knobs["on_refused"],
        "pass_scale": knobs["pass_scale"],
        "between_ns": between,
    }
    return FpmTiming(
        variant,
        between_ns=between,
        on_refused=knobs["on_refused"],
        scale=float(knobs["pass_scale"]),
        description=description,
    )
