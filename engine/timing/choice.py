"""Which of several candidates held-out errors can tell apart from a simpler one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def settle(
    candidates: Sequence[Any], errors: Sequence[list[float]], strict: bool = False
) -> tuple[Any, dict[str, Any]]:
    """The first candidate that the best one does not beat by more than a standard error (``strict``: the best itself).

    ``errors`` are those of each candidate, fold by fold; candidates come in order of simplicity. They are judged on the
    same folds, so it is the standard error of their difference, fold by fold: what a few hundred autocorrelated rows
    cannot tell apart is settled by simplicity. Without a judgement the first candidate stands. Also returns what was
    chosen with the scores, ready for JSON.
    """
    means = [float(np.mean(e)) if e else None for e in errors]
    known = [m for m in means if m is not None]
    chosen = 0
    if known:
        best = means.index(min(known))
        for j, e in enumerate(errors):
            behind = np.subtract(e, errors[best])
            slack = 0.0 if strict or len(e) < 2 else float(np.std(behind, ddof=1) / np.sqrt(len(e)))
            if len(e) == len(errors[best]) and behind.mean() <= slack:
                chosen = j
                break
    scores = {_name(c): None if m is None else round(m, 6) for c, m in zip(candidates, means, strict=True)}
    return candidates[chosen], {"chosen": candidates[chosen], "scores": scores}


def _name(candidate: Any) -> str:
    return "base only" if candidate is None else str(candidate)
