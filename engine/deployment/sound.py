"""What the fields of a model must keep among themselves."""

from __future__ import annotations

from engine.deployment.model import ModelShape
from engine.errors import GapscopeError


def check_model(model: ModelShape, where: str) -> ModelShape:
    """The model itself.

    Raises:
        GapscopeError: its fields contradict each other.
    """
    for broken, why in _laws(model):
        if broken:
            raise GapscopeError(f"{where}: {why}.")
    return model


def _laws(model: ModelShape) -> list[tuple[bool, str]]:
    attention, experts, sparse = model.attention, model.experts, model.sparse
    special = model.window_layers + (model.linear.layers if model.linear else 0)
    laws = [
        (
            attention.heads % attention.kv_heads != 0,
            f"{attention.heads} heads cannot share {attention.kv_heads} kv_heads: expected a whole number for each",
        ),
        (
            special > model.layers,
            f"{special} linear and window layers of {model.layers} layers: expected no more than all of them",
        ),
        (
            model.window_layers > 0 and model.window == 0,
            f"{model.window_layers} window_layers and no window: expected how many tokens they see",
        ),
        (
            attention.is_latent and attention.nope_dim + attention.rope_dim == 0,
            "kv_lora is set, and nope_dim and rope_dim are not: expected how wide scores are",
        ),
        (
            (attention.o_lora > 0) != (attention.o_groups > 0),
            "o_lora and o_groups describe one projection: expected both or neither",
        ),
    ]
    if experts:
        laws += [
            (experts.topk > experts.count, f"{experts.topk} of {experts.count} experts: expected topk at most count"),
            (
                experts.dense_layers > model.layers,
                f"{experts.dense_layers} dense_layers of {model.layers} layers: expected no more than all of them",
            ),
        ]
    if not experts or experts.dense_layers:
        laws.append((model.dense_width == 0, "layers without experts have no MLP: expected dense_width above 0"))
    if sparse:
        laws += [
            (
                sparse.indexed_layers > model.layers,
                f"{sparse.indexed_layers} indexed_layers of {model.layers} layers: expected no more than all of them",
            ),
            (
                bool(sparse.schedule) and len(sparse.schedule) != model.layers,
                f"a schedule of {len(sparse.schedule)} codes for {model.layers} layers: expected one for each",
            ),
            (
                bool(sparse.schedule) and sparse.window == 0,
                "a schedule and no window: expected how many tokens its layers see beside their pool",
            ),
        ]
    return laws
