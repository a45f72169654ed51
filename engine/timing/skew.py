"""Whether decodes of uneven lengths take longer than a model of their sum says.

A model that knows the sum of the KV lengths prices a batch as if all its requests were of the mean length. Kernels may
wait for the longest. Of measured passes the variance of the lengths is known, so the question can be put to them: does
what the model leaves unexplained grow with it?
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from engine.errors import GapscopeError
from engine.timing.contract import PassQueries, PassTimeSource
from engine.timing.rows import PRIMER, FitSource, Floats

STRETCHES = 20
"""Of time: neighbours share the machine's mood, so what counts as one observation is a stretch."""
T_95 = 2.093
"""Two-sided 95 % quantile of Student's t with STRETCHES - 1 degrees of freedom."""
CUT = 0.02
"""Share of residuals on each side that count as the outermost of the others: a stall says nothing about kernels."""
BINS = 8
LEAST = 200


@dataclass(frozen=True)
class Bin:
    """Passes of about one unevenness: standard deviation over mean of the lengths, and mean relative residual."""

    spread: float
    residual: float
    error: float
    passes: int


@dataclass(frozen=True)
class Skew:
    """What the variance of KV lengths explains.

    ``alpha`` is the share of what a pass would cost more if each of its requests were a standard deviation longer: 0,
    the sum says all; 1, the pass costs as if all were that long. ``low`` and ``high`` are its 95 % interval over
    stretches of time. ``share`` is what it adds to the mean pass, ``explained`` the share of the variance of the
    residuals.
    """

    run_id: str
    passes: int
    alpha: float
    low: float
    high: float
    share: float
    explained: float
    bins: tuple[Bin, ...]

    @property
    def verdict(self) -> str:
        """In words."""
        if self.low <= 0.0 <= self.high:
            return "no effect of uneven lengths can be told from none"
        return "uneven batches take longer than their sum says" if self.alpha > 0 else "uneven batches take less time"


def skew_test(source: FitSource, timing: PassTimeSource) -> Skew:
    """The test on passes of several requests that only decode; ``timing`` is the model of their sum.

    What it is off by in the mean, in each stretch of time and at each batch size, is taken out first, so that neither
    a level nor an error of its shape over batches counts.

    Raises:
        GapscopeError: fewer than LEAST such passes whose variance is known, or lengths that are all alike.
    """
    queries, measured, variance = _decodes(source)
    n = len(measured)
    stretch = np.arange(n) * STRETCHES // max(n, 1)
    batch = queries.decode_requests
    if n < LEAST:
        raise GapscopeError(
            f"{source.name} has {n} passes of several decodes with a known variance of their KV lengths: expected "
            f"{LEAST} or more."
        )
    priced = timing.explain(queries).total_ns.astype(float)
    deviation = np.sqrt(variance)
    longer = queries.decode_kv_tokens + np.rint(batch * deviation).astype(np.int64)
    x = timing.explain(replace(queries, decode_kv_tokens=longer)).total_ns / priced - 1.0
    y = measured / priced - 1.0
    y = np.clip(y, *np.quantile(y, (CUT, 1.0 - CUT)))
    group = np.unique(stretch * (int(batch.max()) + 1) + batch, return_inverse=True)[1].reshape(-1)
    x0, y0 = _centred(x, group), _centred(y, group)
    xy, xx = (np.bincount(stretch, values, STRETCHES) for values in (x0 * y0, x0 * x0))
    if not xx.sum() or (xx.sum() - xx <= 0).any():
        raise GapscopeError(
            f"{source.name}: the KV lengths in a pass are all alike, so nothing can be said of uneven ones."
        )
    alpha = float(xy.sum() / xx.sum())
    without = (xy.sum() - xy) / (xx.sum() - xx)
    error = float(np.sqrt((STRETCHES - 1) / STRETCHES * ((without - without.mean()) ** 2).sum()))
    total = float((y0 * y0).sum())
    return Skew(
        run_id=source.bundle.run_id,
        passes=n,
        alpha=alpha,
        low=alpha - T_95 * error,
        high=alpha + T_95 * error,
        share=float(alpha * x.mean()),
        explained=float(1.0 - ((y0 - alpha * x0) ** 2).sum() / total) if total else 0.0,
        bins=_bins(deviation * batch / queries.decode_kv_tokens, y0),
    )


def _centred(values: Floats, group: Any) -> Floats:
    """Values less the mean of their group."""
    return np.asarray(values - (np.bincount(group, values) / np.bincount(group))[group])


def _bins(spread: Floats, residual: Floats) -> tuple[Bin, ...]:
    """Equally many passes each, by unevenness."""
    order = np.argsort(spread, kind="stable")
    found = []
    for mine in np.array_split(order, BINS):
        error = residual[mine].std(ddof=1) / np.sqrt(len(mine))
        found.append(Bin(float(spread[mine].mean()), float(residual[mine].mean()), float(error), len(mine)))
    return tuple(found)


def _decodes(source: FitSource) -> tuple[PassQueries, Floats, Floats]:
    names = (
        "num_prefill_requests",
        "num_decode_requests",
        "sum_decode_kv_tokens",
        "var_decode_kv_tokens",
        "duration_ns",
    )
    table = source.bundle.table("passes", columns=["phase", *names])
    if table is None:
        raise GapscopeError(f"Run {source.bundle.run_id} has no passes.")
    named = pc.is_in(table["phase"], pa.array([PRIMER] if source.phases is None else source.phases, pa.string()))
    wanted = np.asarray(named.to_numpy(), dtype=np.bool_) ^ (source.phases is None)
    prompts, decodes, kv, variance, duration = (
        np.asarray(table[name].to_numpy(zero_copy_only=False), dtype=np.float64) for name in names
    )
    usable = wanted & (prompts == 0) & (decodes > 1) & (kv > 0) & np.isfinite(variance) & (duration > 0)
    none = np.zeros(int(usable.sum()), dtype=np.int64)
    asked = PassQueries(none, none, none, decodes[usable].astype(np.int64), kv[usable].astype(np.int64))
    return asked, duration[usable], variance[usable]
