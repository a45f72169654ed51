"""What is deployed: the GPU part, the model's shape, and how the model is spread over parts."""

from __future__ import annotations

from engine.deployment.deployed import Deployment
from engine.deployment.dtypes import DTYPES, dtype_bytes
from engine.deployment.huggingface import from_huggingface
from engine.deployment.kv import KvBytes, kv_bytes_per_token
from engine.deployment.memory import MemoryLedger, memory_ledger
from engine.deployment.model import Attention, Experts, LinearAttention, ModelShape, SparseAttention
from engine.deployment.of_knobs import deployment_of, ledger_of, memory_notes
from engine.deployment.part import Part
from engine.deployment.presets import (
    changed_presets,
    load_model,
    load_part,
    model_names,
    part_names,
    preset_folders,
)
from engine.deployment.weights import parameters, weight_bytes

__all__ = [
    "DTYPES",
    "Attention",
    "Deployment",
    "Experts",
    "KvBytes",
    "LinearAttention",
    "MemoryLedger",
    "ModelShape",
    "Part",
    "SparseAttention",
    "changed_presets",
    "deployment_of",
    "dtype_bytes",
    "from_huggingface",
    "kv_bytes_per_token",
    "ledger_of",
    "load_model",
    "load_part",
    "memory_ledger",
    "memory_notes",
    "model_names",
    "parameters",
    "part_names",
    "preset_folders",
    "weight_bytes",
]
