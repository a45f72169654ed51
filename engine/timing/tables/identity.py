"""What the identity columns of a table say in the words of a regime, and where that differs from a target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.identity import NOT_APPLICABLE, Identity
from engine.timing.anchors import regime
from engine.timing.anchors.canonical import dtype_of, family_of, model_key, part_of, text_of
from engine.timing.anchors.target import Target
from engine.timing.tables.layout import IDENTITY, PLACE

WIDTHS = (("tp", "tp"), ("pp", "pp"), ("moe_ep", "ep"), ("dp", "attention_dp"))
"""Columns that are widths, and what a target calls them."""


def regime_of_cell(identity: Mapping[str, Any]) -> dict[str, str | None]:
    """The axes of a regime as far as identity columns say them; graphs and speculation they do not."""
    axes: dict[str, str | None] = dict.fromkeys(regime.AXES)
    return axes | {
        "model": model_key(identity.get("model_path")),
        "engine": text_of(identity.get("backend")),
        "engine_version": text_of(identity.get("backend_version")),
        "weight_dtype": _format(identity.get("gemm_quant_mode")),
        "kv_dtype": _format(identity.get("kv_cache_dtype")),
        "expert_dtype": _format(identity.get("moe_quant_mode")),
        "attention_family": family_of(identity.get("attention_backend")),
        "part": part_of(identity.get("system")),
    }


def differences(identity: Mapping[str, Any], target: Target) -> list[str]:
    """Every axis and width in which a table is known to differ from a target, in words.

    Widths decide what a row means, as rows are whole passes of one layout: none is carried to another.
    """
    rows = regime.compare(regime_of_cell(identity), target.axes)
    skipped = set() if _has_experts(identity) else {"expert_dtype"}
    found = [
        f"{row.label} is {row.anchor} in the table and {row.target} in the deployment"
        for row in rows
        if row.state == "differs" and row.anchor is not None and row.axis not in skipped
    ]
    drafts = target.axes.get("speculation")
    if drafts not in (None, "off"):
        found.append(f"the deployment speculates ({drafts}), and the table says nothing of drafts")
    for column, width in WIDTHS:
        here, there = identity.get(column), getattr(target, width)
        if here is not None and there is not None and here != there:
            found.append(f"{column} is {here} in the table and {there} in the deployment")
    return found


def identity_columns(record: Identity) -> dict[str, Any]:
    """The identity columns of a measured run, by its record; what that does not say is left out."""
    value = record.value
    engine, name = value("source", "engine"), value("model", "name")
    tp, pp, dp = (_count(value("topology", field)) for field in ("tp", "pp", "attention_dp"))
    expert = value("model", "expert_dtype")
    dense = expert == NOT_APPLICABLE
    columns = {
        "model_path": name,
        "system": part_of(value("hardware", "part")),
        "backend": text_of(engine),
        "backend_version": value("source", "version"),
        "gemm_quant_mode": dtype_of(value("model", "weights_dtype")),
        "moe_quant_mode": None if dense else dtype_of(expert),
        "kv_cache_dtype": dtype_of(value("model", "kv_dtype")),
        "tp": tp,
        "pp": pp,
        "dp": dp,
        "moe_tp": tp if dense else None,
        "moe_ep": 1 if dense else _count(value("topology", "ep")),
        "cp": _count(value("topology", "context_parallel")),
        "attention_backend": text_of(value("kernels", "attention_backend")),
        "enable_wideep": False if dense else None,
        "enable_eplb": False if dense else None,
    }
    return {column: said for column, said in columns.items() if said is not None}


def unknown_columns(identity: Mapping[str, Any]) -> list[str]:
    """The identity columns that are not known."""
    return [name for name in ("model_path", *PLACE, *(column for column, _ in IDENTITY)) if name not in identity]


def _format(value: Any) -> str | None:
    """A number format without how it is laid out: ``fp8_block`` is fp8."""
    word = dtype_of(value)
    return None if word is None else dtype_of(word.partition("-")[0])


def _has_experts(identity: Mapping[str, Any]) -> bool:
    return any((identity.get(column) or 1) != 1 for column in ("moe_ep",)) or "moe_quant_mode" in identity


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
