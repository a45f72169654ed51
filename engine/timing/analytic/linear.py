"""Layers of linear attention: their own products, a short convolution, and a state of fixed size per sequence."""

from __future__ import annotations

from engine.deployment import Deployment, dtype_bytes
from engine.timing.analytic.amounts import Amount, larger
from engine.timing.analytic.roofline import VALUE_BYTES, Gemm, Rates, total
from engine.timing.analytic.work import Work

STATE_OPERATIONS = 6.0
"""Per element of a head's state and token: decay and outer product into it (a multiply-add each), and the query."""


class LinearTime:
    """All linear layers of a deployment, in nanoseconds."""

    def __init__(self, deployment: Deployment, rates: Rates) -> None:
        linear = deployment.model.linear
        self._gemms: tuple[Gemm, ...] = ()
        self._token = self._state = self._arithmetic = 0.0
        if linear is None or not linear.layers:
            return
        split, count, hidden = deployment.attention_tp, float(linear.layers), deployment.model.hidden
        keys, values = (heads * linear.head_dim / split for heads in (linear.k_heads, linear.v_heads))
        mixed = 2.0 * keys + values  # queries, keys, values: what the convolution runs over
        decays = 2.0 * linear.v_heads / split
        form = rates.of(deployment.weight_dtype)
        self._gemms = (
            Gemm(rates, hidden, mixed + values + decays, form, count),  # the gate is as wide as the values
            Gemm(rates, values, hidden, form, count),
        )
        state = values * linear.head_dim
        held = state + mixed * (linear.conv_width - 1)
        self._token = count * 2.0 * mixed * VALUE_BYTES / rates.elementwise
        self._arithmetic = count * STATE_OPERATIONS * state / rates.bf16
        self._state = count * 2.0 * held * dtype_bytes(linear.state_dtype) / rates.stream

    def products(self, tokens: Amount) -> Amount:
        """The projections, and the convolution over ``tokens`` new tokens."""
        return total(self._gemms, tokens) + self._token * tokens

    def states(self, work: Work) -> tuple[Amount, Amount]:
        """Updating the states, by prompts and by decodes: each is read and written once per sequence."""
        return (
            larger(self._state * work.prompts, self._arithmetic * work.new_tokens),
            larger(self._state * work.decodes, self._arithmetic * (work.decodes * work.width)),
        )
