"""A GPU part: what it can compute and move at best, and how much of that kernels reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Part:
    """One GPU and what it is connected with.

    Rates are those of the data sheet; ``*_share`` say how much of them kernels reach: ``bf16_share`` and ``fp8_share``
    large matrix products of that format (None: ``compute_share``), ``compute_share`` all other arithmetic.
    ``allreduce_gb_s`` and ``alltoall_gb_s`` are measured by number of GPUs, for messages up to ``*_up_to_mb``. None is
    unknown; what cannot do without says so. ``sources`` says where each figure is from.
    """

    name: str
    arch: str
    """The architecture as compilers call it (gfx950, sm90): the regime axis *part* compares names, then this."""
    bf16_tflops: float
    fp8_tflops: float | None
    fp4_tflops: float | None
    hbm_tb_s: float
    hbm_gib: float | None
    compute_units: int | None
    link_gb_s: float
    """One direction, per GPU, to the GPUs of its domain."""
    domain_gpus: int
    """GPUs that reach each other over that link."""
    nic_gb_s: float
    kernel_us: float
    """Fixed time of a kernel that graph capture does not remove."""
    bandwidth_share: float = 0.70
    compute_share: float = 0.40
    bf16_share: float | None = None
    fp8_share: float | None = None
    elementwise_share: float = 0.566
    allreduce_gb_s: Mapping[int, float] = field(default_factory=dict)
    alltoall_gb_s: Mapping[int, float] = field(default_factory=dict)
    allreduce_up_to_mb: float | None = None
    alltoall_up_to_mb: float | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
