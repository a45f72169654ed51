"""What the widths of a deployment must keep among themselves and with its model."""

from __future__ import annotations

from engine.deployment.deployed import Deployment
from engine.errors import GapscopeError


def check_layout(deployment: Deployment) -> None:
    """Refuse a deployment that no engine could start.

    Raises:
        GapscopeError: widths that do not fit each other or the model.
    """
    model, tp, ranks = deployment.model, deployment.tp, deployment.attention_dp
    if tp % ranks or tp % deployment.ep:
        raise GapscopeError(
            f"{model.name} on tp={tp} GPUs per stage: expected a tp that attention_dp={ranks} and ep={deployment.ep} "
            "divide."
        )
    if deployment.ep > 1 and model.experts is None:
        raise GapscopeError(f"{model.name} has no experts that ep={deployment.ep} groups could share: expected ep=1.")
    split, heads, kv_heads = deployment.attention_tp, model.attention.heads, model.attention.kv_heads
    if heads % split:
        raise GapscopeError(
            f"{model.name} has {heads} heads, which {split} GPUs (tp / attention_dp) cannot share: expected a divisor."
        )
    latent = model.attention.is_latent
    if split % deployment.dcp or (deployment.dcp > 1 and not latent and split < kv_heads * deployment.dcp):
        raise GapscopeError(
            f"{model.name} with dcp={deployment.dcp} on {split} GPUs per sequence: expected a dcp that divides them "
            f"and leaves each of the {1 if latent else kv_heads} KV heads a GPU."
        )
    if deployment.pp > model.layers:
        raise GapscopeError(f"{model.name} has {model.layers} layers: expected pp of at most as many stages.")
