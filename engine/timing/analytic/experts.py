"""MLPs and mixtures of experts, for the tokens of a whole stage.

The distinct experts that T tokens hit under even routing are ``E (1 - (1 - topk / E)^T)``. Their weights are streamed
once; a grouped product of few groups leaves the part idle, which divides its speed by ``1 - exp(-groups / 4)``.
"""

from __future__ import annotations

import numpy as np

from engine.deployment import Deployment
from engine.timing.analytic.amounts import Amount, Steps, larger
from engine.timing.analytic.roofline import VALUE_BYTES, Gemm, Rates, total

ROUTING_BYTES = 8.0
"""Per token and expert: softmax and picking the topk."""
SMALLEST_MISS = 1e-17
"""Chance that an expert is missed, below which all are hit."""


def distinct_experts(count: int, topk: int, tokens: int) -> float:
    """Distinct experts that ``tokens`` tokens hit under even routing."""
    return float(count * (1.0 - (1.0 - topk / count) ** tokens))


def experts_hit(count: int, topk: int, balance: float) -> Steps:
    """Distinct experts by tokens, up to where all are hit.

    ``balance`` is the share of that which a router hits that is not even; a token still hits its topk.
    """
    miss = 1.0 - topk / count
    most = 1 if miss <= 0 else int(np.ceil(np.log(SMALLEST_MISS) / np.log(miss)))
    misses = np.cumprod(np.full(most, max(miss, 0.0)))
    hit = np.concatenate([[0.0], count * (1.0 - misses)])
    hit[1:] = np.maximum(topk, balance * hit[1:])
    return Steps(hit)


class MlpTime:
    """Layers' MLPs without experts, in nanoseconds by tokens."""

    def __init__(self, deployment: Deployment, rates: Rates) -> None:
        model = deployment.model
        layers = float(model.experts.dense_layers if model.experts else model.layers)
        self._gemms, self._value = _mlp(rates, model.hidden, model.dense_width, deployment, layers)

    def __call__(self, tokens: Amount) -> Amount:
        """Nanoseconds for ``tokens`` of the stage."""
        return total(self._gemms, tokens) + self._value * tokens


class ExpertsTime:
    """Layers' routers, experts and shared experts, in nanoseconds by tokens."""

    def __init__(self, deployment: Deployment, rates: Rates) -> None:
        model, experts = deployment.model, deployment.model.experts
        self._layers = float(model.expert_layers)
        if experts is None or not self._layers:
            self._layers = 0.0
            return
        form = rates.of(deployment.expert_dtype or deployment.weight_dtype)
        width = experts.width * deployment.ep / deployment.tp
        inner, ep = float(experts.input_width or model.hidden), float(deployment.ep)
        imbalance = deployment.ep_imbalance if deployment.ep > 1 else 1.0
        hit = experts_hit(experts.count, experts.topk, deployment.router_balance)
        active = np.maximum(1.0, hit(np.arange(hit.last + 1.0)) / ep)
        active[0] = 0.0
        groups = 1.0 - np.exp(-active / 4.0)
        groups[0] = 1.0
        self._active, self._speed = Steps(active), Steps(groups)
        self._weights = 3.0 * inner * width * form.weight_bytes / rates.stream
        routed = experts.topk / ep * imbalance  # rows of the busiest group per token
        self._row = routed * (2.0 * inner + width) * form.input_bytes / rates.stream
        self._row += routed * (2.0 * width + inner) * VALUE_BYTES / rates.stream
        self._arithmetic = routed * 6.0 * inner * width / rates.products(form)
        # Scattering to experts and gathering from them, the activation, routing.
        moved = (1.0 + experts.topk / ep) * inner * VALUE_BYTES + 3.0 * routed * width * VALUE_BYTES
        self._token = (moved + ROUTING_BYTES * experts.count) / rates.elementwise
        self._router = Gemm(rates, model.hidden, experts.count, rates.of("bf16"), self._layers)
        self._shared, self._shared_value = _mlp(rates, model.hidden, experts.shared_width, deployment, self._layers)
        if experts.input_width:
            own = rates.of(deployment.weight_dtype)
            self._shared += (
                Gemm(rates, model.hidden, inner, own, self._layers),
                Gemm(rates, inner, model.hidden, own, self._layers),
            )

    def __call__(self, tokens: Amount) -> Amount:
        """Nanoseconds for ``tokens`` of the stage."""
        if not self._layers:
            return 0.0 * tokens
        products = larger(self._weights * self._active(tokens) + self._row * tokens, self._arithmetic * tokens)
        routed = products / self._speed(tokens) + self._token * tokens
        shared = total(self._shared, tokens) + self._shared_value * tokens
        return self._layers * routed + self._router(tokens) + shared


def _mlp(
    rates: Rates, hidden: int, width: float, deployment: Deployment, layers: float
) -> tuple[tuple[Gemm, ...], float]:
    """Gate, up and down projection of ``layers`` layers, and the activation between them per token."""
    if not width or not layers:
        return (), 0.0
    own, form = width / deployment.tp, rates.of(deployment.weight_dtype)
    gemms = (Gemm(rates, hidden, 2.0 * own, form, layers), Gemm(rates, own, hidden, form, layers))
    return gemms, layers * 3.0 * own * VALUE_BYTES / rates.elementwise
