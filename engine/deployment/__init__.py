"""What is deployed: the GPU part, the model's shape, and how the model is spread over parts."""

from __future__ import annotations

from engine.deployment.deployed import Deployment
from engine.deployment.dtypes import DTYPES, dtype_bytes
from engine.deployment.model import Attention, Experts, LinearAttention, ModelShape, SparseAttention
from engine.deployment.part import Part

__all__ = [
    "DTYPES",
    "Attention",
    "Deployment",
    "Experts",
    "LinearAttention",
    "ModelShape",
    "Part",
    "SparseAttention",
    "dtype_bytes",
]
