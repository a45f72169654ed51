"""The smooth base of a fitted model: what a transformer pass must cost to first order.

prefill = fixed + per token * T + per attended pair * T (2 K + T) / (2 P) + per request * P
decode  = fixed + per request * D + per KV token * KV

``T (2 K + T) / (2 P)`` is the number of query-key pairs when the P prompts of a pass are alike. Coefficients are
nanoseconds and never negative.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.timing.rows import DECODE_ONLY, MIXED, PREFILL_ONLY, Floats, PassRows

COMPOSITIONS = ("sum", "marginal")


@dataclass(frozen=True, slots=True)
class Surface:
    """The seven coefficients of the base, in nanoseconds."""

    prefill_fixed: float
    prefill_token: float
    prefill_pair: float
    prefill_request: float
    decode_fixed: float
    decode_request: float
    decode_kv_token: float

    def prefill(self, requests: Any, tokens: Any, kv: Any) -> Any:
        """Nanoseconds of a prefill of ``tokens`` new tokens in ``requests`` > 0 prompts that read ``kv``."""
        pairs = tokens * (2.0 * kv + tokens) / (2.0 * requests)
        return (
            self.prefill_fixed
            + self.prefill_token * tokens
            + self.prefill_pair * pairs
            + self.prefill_request * requests
        )

    def decode(self, requests: Any, kv: Any) -> Any:
        """Nanoseconds of a decode of ``requests`` requests that read ``kv`` tokens together."""
        return self.decode_fixed + self.decode_request * requests + self.decode_kv_token * kv


def features(rows: PassRows, composition: str, floor_kv_per_request: float) -> Floats:
    """n x 7: what each coefficient of :class:`Surface` is multiplied by in each pass."""
    prompts, tokens, kv = rows.prefill_requests, rows.new_tokens, rows.prefill_kv_tokens
    has_prefill = prompts > 0
    pairs = tokens * (2.0 * kv + tokens) / (2.0 * np.maximum(prompts, 1))
    decodes, decode_kv = rows.decode_requests, rows.decode_kv_tokens.astype(float)
    whole_decode = decodes > 0
    if composition == "marginal":
        whole_decode = whole_decode & ~has_prefill
        floor = np.maximum(decodes, floor_kv_per_request * decodes)
        decode_kv = np.where(has_prefill, np.maximum(0.0, decode_kv - floor), decode_kv)
    return np.stack(
        [has_prefill, tokens, pairs, prompts, whole_decode, whole_decode * decodes, decode_kv], axis=1
    ).astype(float)


def fit_surface(
    rows: PassRows, target_ns: Floats, reference: int, composition: str, floor_kv_per_request: float
) -> tuple[Surface, Floats]:
    """The surface, and a factor per (source, class) that brings the surface to that source's level.

    Recordings of one deployment share a shape but not a level: a machine is not equally fast on two days. The factors
    are estimated together with the shape, so that a level does not leak into it; those of source ``reference`` are 1.
    """
    x = features(rows, composition, floor_kv_per_request)
    kind, source = rows.kind, rows.source
    factors = np.ones((int(source.max()) + 1, 3))
    active = np.asarray(x.any(axis=0))
    while True:
        coefficients = np.zeros(x.shape[1])
        factors[:] = 1.0
        weight = np.ones(len(rows))
        for _ in range(ROUNDS):
            relative = x[:, active] * (factors[source, kind] / target_ns)[:, None]
            size = np.maximum(np.abs(relative).max(axis=0), 1e-300)
            a = relative / size * weight[:, None]
            # Normal equations without BLAS: 7 x 7, and sums that do not depend on the number of threads.
            square, right = np.einsum("ij,ik->jk", a, a), np.einsum("ij,i->j", a, weight)
            solved = np.linalg.lstsq(square, right, rcond=1e-12)[0] / size
            weight = 1.0 / np.sqrt(np.maximum(np.abs(relative @ solved - 1.0), 1e-3))
            coefficients[active] = solved
            predicted = x @ coefficients
            own = _levels(target_ns, predicted, np.zeros_like(kind), source == reference)[0]
            for s in range(len(factors)):
                if s != reference:  # against the reference, or a long recording would take ages to give way to it
                    factors[s] = _levels(target_ns, predicted, kind, source == s) / own
        if (coefficients >= 0).all():
            return Surface(*(float(c) for c in coefficients)), factors
        active[int(np.argmin(coefficients * x.max(axis=0)))] = False


ROUNDS = 24
"""Of reweighted least squares (towards the least sum of relative absolute errors) and of levels, in turn."""


def _levels(measured: Floats, predicted: Floats, kind: Any, where: Any) -> Floats:
    """The factor of each class. A class with few passes takes the level of its nearest kin, else that of all.

    By the loss of the shape: factors of another, such as the ratio of sums, would drift away from it round by round,
    as stalls lift a mean above what the shape follows.
    """
    levels = np.ones(3)
    known = {}
    for c in (DECODE_ONLY, MIXED, PREFILL_ONLY):
        m = where & (kind == c) & (predicted > 0)
        if m.sum() >= FEW:
            known[c] = _factor(measured[m], predicted[m])
    m = where & (predicted > 0)
    everything = _factor(measured[m], predicted[m]) if m.any() else 1.0
    for c, kin in ((DECODE_ONLY, MIXED), (MIXED, PREFILL_ONLY), (PREFILL_ONLY, MIXED)):
        levels[c] = known.get(c, known.get(kin, everything))
    return levels


def _factor(measured: Floats, predicted: Floats) -> float:
    """What minimises the sum of relative absolute errors: a median of ratios, weighted with their inverse."""
    ratio = measured / predicted
    order = np.argsort(ratio, kind="stable")
    weight = np.cumsum(1.0 / ratio[order])
    return float(ratio[order][np.searchsorted(weight, weight[-1] / 2.0)])


FEW = 8
"""Passes of a class below which a source says nothing about that class's level."""
