"""How long a forward pass takes: one seam, several sources (docs/timing.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from engine.timing import fixed, fpm, measured
from engine.timing.analytic import source as analytic
from engine.timing.anchors import source as anchor
from engine.timing.chain import ChainTiming
from engine.timing.contract import Covering, PassQueries, PassTimes, PassTimeSource
from engine.timing.correction import corrected
from engine.timing.coverage import domain
from engine.timing.fitting import fit
from engine.timing.measured import measured_model, model_for
from engine.timing.model_file import load_model, save_model
from engine.timing.rows import FitSource
from engine.timing.tables import source as table
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

SOURCES: dict[str, Callable[..., PassTimeSource]] = {
    "fpm": fpm.build,
    "analytic": analytic.build,
    "anchor": anchor.build,
    "table": table.build,
    "fixed": fixed.build,
    "measured": measured.build,
}
"""What the knob ``timing`` can ask for: a builder from (knobs, model) each."""
FROM_PRESETS = frozenset({"analytic", "anchor", "table"})
"""Those whose builder takes the folders of a user's presets besides."""


def build_timing(
    knobs: Mapping[str, Any], model: Mapping[str, Any] | None = None, presets: Sequence[Path] = ()
) -> PassTimeSource:
    """The source that ``knobs`` ask for; the only place where one is constructed.

    ``knobs`` are complete and checked (:func:`engine.knobs.resolve`). ``model`` is what :func:`fit` (fpm),
    :func:`measured_model` (measured), :func:`engine.timing.anchors.model.model_of` (anchor) or
    :func:`engine.timing.tables.table_model` (table) returned; the ``fixed`` and ``analytic`` sources take none.
    ``presets`` are the folders of a user's parts and models (:func:`engine.deployment.preset_folders`). With
    ``on_refused=analytic`` what the source refuses is answered by the analytic one. A ``correction`` lies in
    those folders too, and is applied last.

    Raises:
        GapscopeError: ``timing`` needs a model and there is none, or one of another kind or version; an unknown preset.
    """
    kind = knobs["timing"]
    more = (presets,) if kind in FROM_PRESETS else ()
    source = priced(SOURCES[kind](knobs, model, *more), knobs)
    if knobs["on_refused"] == "analytic":
        source = ChainTiming(cast(Covering, source), analytic.build(knobs, None, presets))
    return cast(PassTimeSource, corrected(source, knobs["correction"], presets)) if knobs["correction"] else source
