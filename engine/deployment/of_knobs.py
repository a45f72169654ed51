"""The deployment that a replay's knobs describe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from engine.deployment.deployed import Deployment
from engine.deployment.memory import ENGINES, MemoryLedger, memory_ledger
from engine.deployment.model import ModelShape
from engine.deployment.presets import load_model, load_part
from engine.errors import GapscopeError

OWN = "own"
"""The value of a dtype knob that takes what the checkpoint is published in."""

FRACTION = 0.9
"""Share of the memory that engines use by default; no knob says it."""

_RENAMED = {"graph_mode": "graph"}
_OF_EXPERTS = {"ep": 1, "expert_dtype": OWN, "router_balance": 1.0, "ep_imbalance": 1.0}
"""Knobs that say something of experts, and what they are where nothing is said."""


def deployment_of(knobs: Mapping[str, Any], folders: Sequence[Path] = ()) -> Deployment:
    """The deployment of a complete set of knobs; ``folders`` hold a user's presets.

    Drafts widen a pass: ``spec_tokens`` of a method make ``verify_width`` one more.

    Raises:
        GapscopeError: there is no preset of that name, it is not sound, or a knob is about what its model lacks.
    """
    model, part = load_model(knobs["model_preset"], folders), load_part(knobs["part"], folders)
    _check(knobs, model)
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


def ledger_of(knobs: Mapping[str, Any], folders: Sequence[Path] = ()) -> MemoryLedger | None:
    """The memory ledger of the deployment that a complete set of knobs names, at ``FRACTION``.

    None where they name none, or the presets do not know what it takes.
    """
    if not (knobs["part"] and knobs["model_preset"]):
        return None
    try:
        return memory_ledger(
            deployment_of(knobs, folders),
            memory_fraction=FRACTION,
            token_budget=knobs["max_num_batched_tokens"],
            block_size=knobs["block_size"],
            engine=knobs["engine"] if knobs["engine"] in ENGINES else ENGINES[0],
        )
    except GapscopeError:
        return None


def memory_notes(knobs: Mapping[str, Any], folders: Sequence[Path] = ()) -> list[str]:
    """A sentence where the knobs ask for more KV blocks than the ledger allows; block 0 holds none."""
    ledger, asked = ledger_of(knobs, folders), knobs["kv_blocks"] - 1
    if ledger is None or asked <= ledger.blocks:
        return []
    graphs = ", nothing set aside for graphs" if ledger.graphs_bytes is None else ""
    return [
        f"Knob kv_blocks={knobs['kv_blocks']} asks for {asked:,} usable KV blocks, and the memory ledger of "
        f"{knobs['model_preset']} on {knobs['part']} has room for {ledger.blocks:,} of {ledger.block_size} tokens "
        f"(memory fraction {FRACTION:g}{graphs})."
    ]


def _check(knobs: Mapping[str, Any], model: ModelShape) -> None:
    """Refuse knobs that say something of what the model does not have."""
    if model.experts is None:
        for name, silent in _OF_EXPERTS.items():
            if (value := knobs.get(name, silent)) != silent:
                raise GapscopeError(f"Knob {name}={value}: {model.name} has no experts; expected {silent}.")
    scale = knobs.get("sparse_cost_scale", 1.0)
    if scale != 1 and not _picks(model):
        raise GapscopeError(
            f"Knob sparse_cost_scale={scale:g}: {model.name} has no indexer that picks a topk of the whole context; "
            "expected 1."
        )
    drafts = knobs.get("spec_method") == "mtp" and knobs.get("spec_tokens") and not knobs.get("spec_draft_cost")
    if drafts and not model.mtp_layers:
        raise GapscopeError(
            f"Knob spec_method=mtp: {model.name} has no MTP layers; expected another method, or what a draft costs "
            "(spec_draft_cost)."
        )


def _picks(model: ModelShape) -> bool:
    """Whether the cost of picking is priced for itself: not with a schedule, whose indexer is part of its kernels."""
    sparse = model.sparse
    if sparse is None or sparse.schedule:
        return False
    return bool(sparse.topk and sparse.index_heads and sparse.index_dim and sparse.indexed_layers)
