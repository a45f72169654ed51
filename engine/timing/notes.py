"""What a reader must know of a timing before the numbers that it gives are believed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.identity import Identity
from engine.timing.anchors.canonical import model_key, part_of, text_of

PREDICTED = "profile"
"""The phase that a replay is judged by."""


def notes_of(described: Mapping[str, Any], run_id: str, identity: Identity) -> list[str]:
    """A sentence each; none of what is as it should be.

    Args:
        described: what a source says of itself.
        run_id: the measured run that the replay stands for.
        identity: the record of that run.
    """
    return [note for note in (other_fallback(described, identity), circular(described, run_id)) if note]


def other_fallback(described: Mapping[str, Any], identity: Identity) -> str:
    """That refused queries are priced for another part or model than the run's; empty where not, or not known."""
    deployment = (described.get("fallback") or {}).get("deployment")
    if not deployment or described.get("deployment"):  # with one of its own, all of it stands for that
        return ""
    part, model = deployment["part"], deployment["model"]["name"]
    own_part, own_model = identity.value("hardware", "part"), identity.value("model", "name")
    said = []
    alike = {text_of(part["name"]), text_of(part["arch"])}
    if own_part is not None and not {part_of(own_part), text_of(own_part)} & alike:
        said.append(f"part {part['name']} where the run is on {own_part}")
    if own_model is not None and model_key(own_model) != model_key(model):
        said.append(f"model {model} where the run is of {own_model}")
    return f"The fallback prices another deployment than the run's: {' and '.join(said)}." if said else ""


def circular(described: Mapping[str, Any], run_id: str) -> str:
    """That a correction was learned on the very passes that are predicted; empty where not."""
    correction = described.get("correction") or {}
    for source in correction.get("learned_on") or ():
        if source["run_id"] == run_id and (not source["phases"] or PREDICTED in source["phases"]):
            return (
                f"Correction {correction.get('name', '')} was learned on the very passes that are predicted "
                f"({run_id}, {PREDICTED}): how well they are met says nothing of other passes."
            )
    return ""
