"""A model on parts: how it is spread, in what formats, and which kernels run."""

from __future__ import annotations

from dataclasses import dataclass

from engine.deployment.model import ModelShape
from engine.deployment.part import Part


@dataclass(frozen=True, slots=True)
class Deployment:
    """One engine. ``tp`` counts the GPUs of one pipeline stage; ``attention_dp`` ranks share them for attention.

    With attention data parallelism each rank computes ``heads / (tp / attention_dp)`` heads for its own sequences, and
    all of a stage's GPUs share the experts. ``ep`` GPUs hold different experts. ``dcp`` GPUs share the KV of one
    sequence. ``expert_dtype`` None is as ``weight_dtype``. ``graph`` is full, piecewise or none. A pass computes
    ``verify_width`` tokens per decoding request. ``router_balance`` is the share that a pass hits of the distinct
    experts that even routing hits, ``ep_imbalance`` the tokens of the busiest group of experts against the mean group,
    ``launch_us`` the host's time per kernel without graphs.
    """

    model: ModelShape
    part: Part
    tp: int = 1
    pp: int = 1
    ep: int = 1
    attention_dp: int = 1
    dcp: int = 1
    weight_dtype: str = "bf16"
    expert_dtype: str | None = None
    kv_dtype: str = "bf16"
    graph: str = "full"
    attention_family: str = ""
    sparse_cost_scale: float = 1.0
    verify_width: int = 1
    router_balance: float = 1.0
    ep_imbalance: float = 1.0
    launch_us: float = 0.0

    @property
    def gpus(self) -> int:
        """GPUs of the engine."""
        return self.tp * self.pp

    @property
    def attention_tp(self) -> int:
        """GPUs over which the heads of one sequence are spread."""
        return max(1, self.tp // self.attention_dp)
