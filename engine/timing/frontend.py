"""The terms of the host model (:mod:`engine.workload.host`) from what one phase of a run shows of each response."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.timing.choice import settle
from engine.timing.rows import Floats

FORMS = ("per request", "per prompt token", "per prompt token up to a cap")
"""Of what the first token takes longer than others, simplest first."""
FOLDS = 5
CAPS = 19
"""Prompt lengths that are tried as where the cap sets in: evenly spread over the requests."""
ROUNDS = 24
SMALL_MS = 0.01
"""Residuals below this count alike when they are weighted."""


@dataclass(frozen=True, slots=True)
class Delays:
    """From the end of the pass that sampled a token to its chunk at the client, for n requests in order of dispatch.

    ``first_ms`` of each first token, ``later_ms`` of all others together, ``uncached`` prompt tokens of each request
    at its first admission.
    """

    first_ms: Floats
    later_ms: Floats
    uncached: Floats


@dataclass(frozen=True, slots=True)
class _Extra:
    """request + token * min(uncached, cap), in ms."""

    request: float
    token: float
    cap: float

    def __call__(self, uncached: Floats) -> Floats:
        return np.asarray(self.request + self.token * np.minimum(uncached, self.cap))


def fit_frontend(runs: Sequence[Delays]) -> dict[str, Any] | None:
    """The four terms under the names of their knobs, with what they rest on; None where no response shows them.

    ``host_chunk_ms`` is the mean delay of tokens after the first, without the largest hundredth. What the first takes
    longer is explained by a term per request and one per uncached prompt token, up to a cap that is at most the longest
    prompt seen; both are never negative and minimise the sum of absolute errors, so that a stall bends neither. The
    term per token and the cap stand only where they predict held-out requests better.
    """
    empty = np.empty(0)
    first, later, uncached = (
        np.concatenate([empty, *(getattr(run, name) for run in runs)]) for name in ("first_ms", "later_ms", "uncached")
    )
    later = later[later >= 0]
    if not len(first) or not len(later):
        return None
    chunk = mean_without_stalls(later)
    extra = first - chunk
    forms = FORMS if len(first) >= 2 * FOLDS else FORMS[:1]
    form, told = settle(forms, [_held_out(f, uncached, extra) for f in forms])
    fitted = _fit(form, uncached, extra)
    return {
        "host_chunk_ms": round(chunk, 4),
        "host_request_ms": round(fitted.request, 4),
        "host_prompt_token_us": round(1e3 * fitted.token, 4),
        "host_prompt_cap_ms": round(fitted.token * fitted.cap, 4),
        "requests": len(first),
        "chunks": len(later),
        "form": form,
        "held_out_ms": told["scores"],
        "error_ms": round(float(np.abs(extra - fitted(uncached)).mean()), 4),
    }


def mean_without_stalls(values: Floats) -> float:
    """The mean without the largest hundredth: a stall is not a latency."""
    ordered = np.sort(values)
    return float(ordered[: max(1, len(ordered) - len(ordered) // 100)].mean())


def _held_out(form: str, uncached: Floats, extra: Floats) -> list[float]:
    """Mean absolute error on each stretch of requests that the fit did not see."""
    if len(extra) < 2 * FOLDS:
        return []
    fold = np.arange(len(extra)) * FOLDS // len(extra)
    errors = []
    for k in range(FOLDS):
        fitted = _fit(form, uncached[fold != k], extra[fold != k])
        errors.append(float(np.abs(extra[fold == k] - fitted(uncached[fold == k])).mean()))
    return errors


def _fit(form: str, uncached: Floats, extra: Floats) -> _Extra:
    longest = float(uncached.max())
    if form == FORMS[0]:
        return _Extra(least_absolute(np.ones((len(extra), 1)), extra)[0], 0.0, longest)
    caps = [longest]
    if form == FORMS[2]:
        caps += sorted(set(np.quantile(uncached, np.arange(1, CAPS + 1) / (CAPS + 1)).tolist()) - {0.0, longest})
    fits = []
    for cap in caps:
        request, token = least_absolute(np.stack([np.ones(len(extra)), np.minimum(uncached, cap)], axis=1), extra)
        fits.append(_Extra(request, token, cap))
    return min(fits, key=lambda fit: float(np.abs(extra - fit(uncached)).sum()))


def least_absolute(x: Floats, target: Floats) -> list[float]:
    """A coefficient per column of ``x``, never negative, of the least sum of absolute errors.

    By reweighted least squares; a column whose coefficient would be negative is left out.
    """
    active = np.asarray(x.any(axis=0))
    while active.any():
        used, weight = x[:, active], np.ones(len(target))
        size = np.abs(used).max(axis=0)
        for _ in range(ROUNDS):
            a = used / size * weight[:, None]
            # Normal equations without BLAS: small, and sums that do not depend on the number of threads.
            square, right = np.einsum("ij,ik->jk", a, a), np.einsum("ij,i->j", a, target * weight)
            solved = np.linalg.lstsq(square, right, rcond=1e-12)[0] / size
            weight = 1.0 / np.sqrt(np.maximum(np.abs(used @ solved - target), SMALL_MS))
        if (solved >= 0).all():
            coefficients = np.zeros(x.shape[1])
            coefficients[active] = solved
            return [float(c) for c in coefficients]
        active[np.flatnonzero(active)[int(np.argmin(solved * size))]] = False
    return [0.0] * x.shape[1]
