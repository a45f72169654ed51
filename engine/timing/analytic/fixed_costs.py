"""What a pass costs whatever its size: the fixed time of its kernels, and the host's share by graph mode.

The fixed time of a kernel survives graph capture. Kernels: ``layers x K + 6``, where a layer has 4 around it, 4 of
attention over keys and values per head group, 9 over latents, 6 of linear attention, 3 of an MLP, 7 of experts, 3 of
shared experts, and 4 of an indexer.
"""

from __future__ import annotations

from engine.deployment import Deployment, ModelShape
from engine.timing.analytic.sparse import indexed_layers

AROUND_LAYER, GROUPED, LATENT, LINEAR, MLP, EXPERTS, SHARED, INDEXER, PER_PASS = 4, 4, 9, 6, 3, 7, 3, 4, 6
HOST_NS = {"none": 40_000.0, "piecewise": 8_000.0, "full": 3_000.0}
MIXED_PENALTY = {"none": 0.0, "piecewise": 0.15, "full": 0.0}
"""What passes with prompts and decodes take longer: they leave the captured graphs."""


def kernels(model: ModelShape) -> int:
    """Kernels of a pass."""
    linear = model.linear.layers if model.linear else 0
    soft = model.layers - linear
    per_expert_layer = EXPERTS + (SHARED if model.experts and model.experts.shared_width else 0)
    return (
        model.layers * AROUND_LAYER
        + soft * (LATENT if model.attention.is_latent else GROUPED)
        + linear * LINEAR
        + (model.layers - model.expert_layers) * MLP
        + model.expert_layers * per_expert_layer
        + indexed_layers(model) * INDEXER
        + PER_PASS
    )


class FixedCosts:
    """Nanoseconds per pass, and what goes with them.

    Without graphs a pass is no shorter than ``launch_ns``, the time the host takes to launch its kernels.
    """

    def __init__(self, deployment: Deployment) -> None:
        count = kernels(deployment.model)
        self.kernels_ns = count * deployment.part.kernel_us * 1e3
        self.host_ns = HOST_NS[deployment.graph]
        self.mixed_factor = 1.0 + MIXED_PENALTY[deployment.graph]
        self.launch_ns = count * deployment.launch_us * 1e3 if deployment.graph == "none" else 0.0
