"""A part and models with round figures, so that prices can be reckoned by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.deployment import Attention, Deployment, Experts, ModelShape, Part, load_model, load_part
from engine.timing import PassQueries

PART = Part(
    name="round",
    arch="sm0",
    bf16_tflops=100,  # at a half: 50,000 operations per ns
    fp8_tflops=200,
    fp4_tflops=None,
    hbm_tb_s=1,  # at a half: 500 bytes per ns; elementwise at a quarter: 250
    hbm_gib=80,
    compute_units=None,
    link_gb_s=100,
    domain_gpus=8,
    nic_gb_s=10,
    kernel_us=1,
    bandwidth_share=0.5,
    compute_share=0.5,
    elementwise_share=0.25,
)
DENSE = ModelShape(
    name="dense", hidden=1000, layers=2, vocab=5000, attention=Attention(4, 2, 250, 250), dense_width=3000
)
MOE = ModelShape(
    name="moe",
    hidden=1000,
    layers=2,
    vocab=5000,
    attention=Attention(4, 2, 250, 250),
    dense_width=0,
    experts=Experts(8, 2, 500),
)


def deployed(model: ModelShape | str, part: Part | str = PART, **more: Any) -> Deployment:
    """A deployment; models and parts by name are presets, in the formats they are published in."""
    shape = load_model(model) if isinstance(model, str) else model
    formats = {"weight_dtype": shape.weight_dtype, "expert_dtype": shape.expert_dtype}
    return Deployment(shape, load_part(part) if isinstance(part, str) else part, **(formats | more))


def queries(*rows: tuple[int, int, int, int, int]) -> PassQueries:
    return PassQueries(*(np.array(column, np.int64) for column in zip(*rows, strict=True)))


def decode(batch: int, context: int) -> PassQueries:
    """A pass that decodes ``batch`` requests with ``context`` tokens each."""
    return queries((0, 0, 0, batch, batch * context))
