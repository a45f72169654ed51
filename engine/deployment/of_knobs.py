"""The deployment that a replay's knobs describe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from engine.deployment.deployed import Deployment
from engine.deployment.presets import load_model, load_part

OWN = "own"
"""The value of a dtype knob that takes what the checkpoint is published in."""

_RENAMED = {"graph_mode": "graph"}


def deployment_of(knobs: Mapping[str, Any], folders: Sequence[Path] = ()) -> Deployment:
    """The deployment of a complete set of knobs; ``folders`` hold a user's presets.

    Drafts widen a pass: ``spec_tokens`` of a method make ``verify_width`` one more.

    Raises:
        GapscopeError: there is no preset of that name, or it is not sound.
    """
    model, part = load_model(knobs["model_preset"], folders), load_part(knobs["part"], folders)
    names = {field.name for field in fields(Deployment)} - {"model", "part"}
    values = {_RENAMED.get(name, name): value for name, value in knobs.items()}
    given = {name: value for name, value in values.items() if name in names}
    weight = given.get("weight_dtype", OWN)
    if given.get("expert_dtype", OWN) == OWN:
        given["expert_dtype"] = model.expert_dtype if weight == OWN else None
    if weight == OWN:
        given["weight_dtype"] = model.weight_dtype
    if knobs.get("spec_method", "none") != "none":
        given["verify_width"] = 1 + knobs["spec_tokens"]
    return Deployment(model=model, part=part, **given)
