"""Which timing a what-if would have: the model that its knobs name, and why it cannot be used, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.bundle import Bundle, find_bundle
from engine.deployment import deployment_of, model_names, part_names, preset_folders
from engine.errors import GapscopeError
from engine.timing import FitSource, build_timing, fit, model_for
from engine.timing.anchors import AxisRow, judge, read_anchor
from engine.timing.anchors import names as anchor_names
from engine.timing.anchors.selection import anchor_model, target_of
from engine.timing.anchors.source import allowed_of
from engine.timing.anchors.target import Target, with_knobs
from engine.timing.correction import correction_names
from engine.timing.model_file import KIND, TABLE_KIND
from engine.timing.tables import table_model, table_names

WITHOUT_MODEL = ("fixed", "analytic")


def model_of(
    base: Bundle, stores: Sequence[Path], sources: Sequence[str], values: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The model of the base replay or one that the knobs or the sources name, or recorded passes as they are.

    ``sources`` are passes to fit one on, as ``RUN[:PHASE,...]``.

    Raises:
        GapscopeError: there is none, or what is named does not exist.
    """
    timing = values["timing"]
    if timing in WITHOUT_MODEL:
        return None
    if timing == "measured":
        return model_for(base, stores)
    if timing == "anchor":
        return anchor_model(values, base, stores)
    own = (base.lineage.get("timing") or {}).get("model")
    if timing == "table":
        named = values["table"]
        if isinstance(own, dict) and own.get("kind") == TABLE_KIND and named in ("", own.get("name")):
            return own
        return named_table(named, base, stores) if named else None
    if sources:
        passes = []
        for text in sources:
            run, _, phases = text.partition(":")
            passes.append(FitSource(find_bundle(stores, run), tuple(phases.split(",")) if phases else None))
        return fit(passes)
    if not isinstance(own, dict) or own.get("kind") != KIND:
        raise GapscopeError(
            f"Run {base.run_id} holds no timing model that was fitted: choose measured passes to fit one on, or set "
            "timing to fixed."
        )
    return own


def named_table(name: str, run: Bundle, stores: Sequence[Path]) -> dict[str, Any]:
    """The table of that name in the stores (``NAME``, or ``NAME#2``), held against a run; a path is none.

    Raises:
        GapscopeError: there is none, or none of its deployments can be told apart.
    """
    known = table_names(stores)
    if name.partition("#")[0] not in known:
        raise GapscopeError(f"There is no table {name!r} in the store: expected one of {', '.join(known) or 'none'}.")
    return table_model(name, stores, target_of(run))


def refusal(base: Bundle, stores: Sequence[Path], sources: Sequence[str], values: Mapping[str, Any]) -> str:
    """Why no pass could be priced with these knobs, as a sentence; empty where all is well.

    What takes long (a fit, recorded passes) is not tried: the job says what is wrong with it.
    """
    if values["timing"] == "measured" or (values["timing"] == "fpm" and sources):
        return ""
    try:
        build_timing(
            values, model_of(base, stores, sources, values), preset_folders(stores, base.lineage.get("timing"))
        )
    except GapscopeError as error:
        return str(error)
    return ""


def axes(base: Bundle, stores: Sequence[Path], values: Mapping[str, Any]) -> list[AxisRow]:
    """Every axis of the anchor that the knobs name against what it would stand for; empty where there is none."""
    if values["timing"] != "anchor":
        return []
    try:
        model = anchor_model(values, base, stores)
        if model is None:
            return []
        named = values["part"] and values["model_preset"]
        deployment = deployment_of(values, preset_folders(stores, base.lineage.get("timing"))) if named else None
        target = with_knobs(Target.from_json(model["target"]), values, deployment)
        anchor = read_anchor(model["artefact"], model["name"])
        return list(judge(anchor, target, allowed_of(values["anchor_allow"])).rows)
    except GapscopeError:
        return []  # said by refusal()


def choices(stores: Sequence[Path], base: Bundle | None = None) -> dict[str, list[str]]:
    """What knobs that name something may name: presets, and anchors, tables and corrections of the stores.

    The part and the model of the replay to start from are among them, whatever became of their presets.
    """
    folders = preset_folders(stores, base.lineage.get("timing") if base else None)
    models = model_names(folders)
    return {
        "part": part_names(folders),
        "model_preset": models,
        "draft_preset": models,
        "anchor": anchor_names(stores),
        "table": table_names(stores),
        "correction": correction_names(folders),
    }
