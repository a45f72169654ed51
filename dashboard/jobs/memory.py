"""What a what-if's knobs say of KV, beside the memory ledger of the deployment that they name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.deployment import deployment_of, kv_bytes_per_token, ledger_of, preset_folders
from engine.deployment.of_knobs import FRACTION


def ledger_words(
    values: Mapping[str, Any], stores: Sequence[Path], timing: Mapping[str, Any] | None = None
) -> tuple[str, bool]:
    """What the ledger allows and the knobs say, in words, and whether they ask for more; empty without a deployment.

    ``timing`` is that of the lineage of the run to start from. The bytes of a token are those over all GPUs of an
    engine, and are told where KV moves.
    """
    folders = preset_folders(stores, timing)
    ledger = ledger_of(values, folders)
    if ledger is None:
        return "", False
    deployment = deployment_of(values, folders)
    asked = values["kv_blocks"] - 1
    graphs = ", nothing set aside for graphs" if ledger.graphs_bytes is None else ""
    words = (
        f"Memory ledger of {deployment.model.name} on {deployment.gpus} {deployment.part.name}: room for "
        f"{ledger.blocks:,} usable KV blocks of {ledger.block_size} tokens (memory fraction {FRACTION:g}{graphs}); "
        f"knob kv_blocks asks for {asked:,}{', more than fits' if asked > ledger.blocks else ''}."
    )
    whole = kv_bytes_per_token(replace(deployment, tp=1, pp=1, ep=1, attention_dp=1, dcp=1))
    if values["prefill_replicas"] or values["host_kv_blocks"]:
        words += (
            f" A token takes {whole.per_token:,.0f} bytes of KV; knob kv_bytes_per_token says "
            f"{values['kv_bytes_per_token']:,}."
        )
    return words, asked > ledger.blocks
