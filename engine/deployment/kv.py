"""KV bytes: what a token and a sequence take on one GPU, by component."""

from __future__ import annotations

from dataclasses import dataclass

from engine.deployment.deployed import Deployment
from engine.deployment.dtypes import dtype_bytes


@dataclass(frozen=True, slots=True)
class KvBytes:
    """Bytes on one GPU: of the first pipeline stage, which holds no fewer layers than another.

    ``attention``, ``window`` and ``index`` are per token: of layers that keep every token, of layers that keep the last
    ``window_tokens``, and the keys of the indexer. ``state`` is per sequence, whatever its length: linear attention.
    """

    attention: float
    window: float
    index: float
    state: float
    window_tokens: int = 0

    @property
    def per_token(self) -> float:
        """Bytes of one more token while windows are not full."""
        return self.attention + self.window + self.index

    def per_sequence(self, context: int, block_size: int = 1) -> float:
        """Bytes of a sequence of ``context`` tokens, in whole blocks of ``block_size``; windows count as they fill."""
        tokens = _blocks(context, block_size)
        held = min(tokens, _blocks(self.window_tokens, block_size))
        return (self.attention + self.index) * tokens + self.window * held + self.state


def _blocks(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size) * block_size


def kv_bytes_per_token(deployment: Deployment) -> KvBytes:
    """What KV takes on one GPU.

    Per token and layer: a latent takes ``(kv_lora + rope) * w`` on every GPU, whatever TP; keys and values take
    ``kv_heads * (head_dim + v_head_dim) * w`` with the KV heads of one GPU, at least one. An index key is one per token
    for all heads, so TP does not divide it, and has its own dtype. DCP shares what grows with the context. Under
    attention data parallelism a rank holds whole requests: only its own GPUs divide the heads.
    """
    model = deployment.model
    attention = model.attention
    width = dtype_bytes(deployment.kv_dtype)
    if attention.is_latent:
        per_layer = (attention.kv_lora + attention.rope_dim) * width
    else:
        kv_heads = -(-attention.kv_heads // deployment.attention_tp)
        per_layer = kv_heads * (attention.head_dim + attention.v_head_dim) * width
    index = 0.0
    if (sparse := model.sparse) is not None:
        index = _on_stage(sparse.indexed_layers, deployment) * sparse.index_dim * dtype_bytes(sparse.index_dtype)
    return KvBytes(
        attention=per_layer * _on_stage(model.full_layers, deployment) / deployment.dcp,
        window=per_layer * _on_stage(model.window_layers, deployment) / deployment.dcp,
        index=index / deployment.dcp,
        state=_state(deployment),
        window_tokens=model.window if model.window_layers else 0,
    )


def _on_stage(layers: int, deployment: Deployment) -> int:
    """Layers of a kind on the first pipeline stage, spread evenly."""
    return -(-layers // deployment.pp)


def _state(deployment: Deployment) -> float:
    """Bytes of linear attention per sequence: a matrix per value head, and the inputs that the convolution still sees.

    The matrix has the dtype of the state; the convolution's inputs are activations, two bytes each.
    """
    linear = deployment.model.linear
    if linear is None:
        return 0.0
    share = deployment.attention_tp
    k_heads, v_heads = -(-linear.k_heads // share), -(-linear.v_heads // share)
    matrix = v_heads * linear.head_dim**2 * dtype_bytes(linear.state_dtype)
    channels = (2 * k_heads + v_heads) * linear.head_dim
    return _on_stage(linear.layers, deployment) * (matrix + channels * max(0, linear.conv_width - 1) * 2.0)
