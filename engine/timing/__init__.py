"""How long a forward pass takes: one seam, several sources (docs/timing.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from engine.timing import fixed, fpm, measured
from engine.timing.contract import PassQueries, PassTimes, PassTimeSource
from engine.timing.coverage import domain
from engine.timing.fitting import fit
from engine.timing.measured import measured_model, model_for
from engine.timing.model_file import load_model, save_model
from engine.timing.rows import FitSource
from engine.timing.verify import priced

__all__ = [
    "SOURCES",
    "FitSource",
    "PassQueries",
    "PassTimeSource",
    "PassTimes",
    "build_timing",
    "domain",
    "fit",
    "load_model",
    "measured_model",
    "model_for",
    "save_model",
]

SOURCES: dict[str, Callable[[Mapping[str, Any], Mapping[str, Any] | None], PassTimeSource]] = {
    "fpm": fpm.build,
    "fixed": fixed.build,
    "measured": measured.build,
}
"""What the knob ``timing`` can ask for: a builder from (knobs, model) each."""


def build_timing(knobs: Mapping[str, Any], model: Mapping[str, Any] | None = None) -> PassTimeSource:
    """The source that ``knobs`` ask for; the only place where one is constructed.

    ``knobs`` are complete and checked (:func:`engine.knobs.resolve`). ``model`` is what :func:`fit` (fpm) or
    :func:`measured_model` (measured) returned; the ``fixed`` source takes none.

    Raises:
        GapscopeError: ``timing`` needs a model and there is none, or one of another kind or version.
    """
    return priced(SOURCES[knobs["timing"]](knobs, model), knobs)
