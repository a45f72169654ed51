"""Fit a timing model on measured passes: what is chosen, what is held out, what is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from engine.errors import GapscopeError
from engine.timing.choice import settle
from engine.timing.host import between_passes, host_terms
from engine.timing.model_file import KIND, VERSION, with_digest
from engine.timing.rows import (
    CLASSES,
    DECODE_ONLY,
    MIXED,
    FitSource,
    Floats,
    Ints,
    PassRows,
    check_same_regime,
    read_rows,
)
from engine.timing.surface import COMPOSITIONS
from engine.timing.variant import CONTENTIONS, LEVELS, SHRINKAGES, Choices, fit_variant, predict

FOLDS = 5
JUDGED = 10_000
"""Passes per source on which choices and hold-out rest; more are thinned evenly. The final fit uses every pass."""


def fit(sources: Sequence[FitSource], *, composition: str = "auto", force: bool = False) -> dict[str, Any]:
    """Fit a timing model on the passes of ``sources``, and on nothing else.

    The shape comes from all of them; the level from the runs among them (a sweep says how passes compare, a run says
    how fast the machine was), or from the sweeps when no run is named. Composition, treatment of contention, trust in
    single sites and the level's statistic are chosen by cross-validation on these passes alone.

    Raises:
        GapscopeError: see :func:`read_rows` and :func:`check_same_regime`; no prefill or no decode among the passes.
    """
    if composition not in ("auto", *COMPOSITIONS):
        raise GapscopeError(f"Mixed composition {composition!r}: expected auto, sum or marginal.")
    rows, lineage = read_rows(sources)
    forced = check_same_regime(sources, force)
    return fit_rows(rows, lineage, composition=composition, forced=forced, host=host_terms(sources))


def fit_rows(
    rows: PassRows,
    lineage: list[dict[str, Any]],
    *,
    composition: str = "auto",
    forced: Sequence[str] = (),
    host: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """:func:`fit` for rows that are read already; ``lineage`` has an entry per source."""
    _check_both_parts(rows, lineage)
    runs = {i for i, entry in enumerate(lineage) if entry["kind"] != "sweep"}
    sweeps = [i for i in range(len(lineage)) if i not in runs]
    reference = sweeps[0] if sweeps else 0
    fitter = _Fitter(_thinned(rows), runs, reference)
    choices, told = _choose(fitter, composition)
    both = {c: replace(choices, composition=c) for c in COMPOSITIONS}
    levels_from = [lineage[i]["run_id"] for i in sorted(runs)]
    return with_digest(
        {
            "kind": KIND,
            "version": VERSION,
            "composition": choices.composition,
            "variants": {c: fit_variant(rows, runs, reference, both[c]) for c in COMPOSITIONS},
            "choices": told,
            "level_from": levels_from,
            "holdout": {
                "folds": FOLDS,
                "passes": len(fitter.rows),
                "scored_on": levels_from or [entry["run_id"] for entry in lineage],
                **{c: _errors(fitter.rows, fitter.out_of_fold(both[c]), fitter.scored) for c in COMPOSITIONS},
            },
            "between": between_passes(rows, runs),
            "host": host or {},
            "lineage": {"sources": lineage, "forced_differences": list(forced)},
        }
    )


def _check_both_parts(rows: PassRows, lineage: list[dict[str, Any]]) -> None:
    kind = rows.kind
    for part, present in (("prefill", (kind != DECODE_ONLY).any()), ("decode-only", (kind == DECODE_ONLY).any())):
        if not present:
            names = ", ".join(entry["run_id"] for entry in lineage)
            raise GapscopeError(
                f"The fit data ({names}) hold no {part} pass: name a further sweep or run that has some."
            )


def _thinned(rows: PassRows) -> PassRows:
    keep = np.ones(len(rows), dtype=bool)
    for s in np.unique(rows.source):
        mine = np.flatnonzero(rows.source == s)
        keep[mine] = np.arange(len(mine)) % -(-len(mine) // JUDGED) == 0
    return rows.take(keep)


def folds(rows: PassRows, blocked: set[int]) -> Ints:
    """The fold of each row.

    Rows of ``blocked`` sources (runs) are held out in stretches of time, as neighbours in time share the machine's
    mood; rows of a sweep are dealt out among neighbours in geometry, so that no shape is held out whole.
    """
    fold = np.zeros(len(rows), dtype=np.int64)
    geometry = rows.geometry()
    for s in np.unique(rows.source):
        mine = np.flatnonzero(rows.source == s)
        if int(s) in blocked:
            fold[mine] = np.arange(len(mine)) * FOLDS // len(mine)
            continue
        tokens = np.rint(2 * np.log2(1 + geometry[mine])).astype(np.int64)
        order = np.lexsort((np.arange(len(mine)), *tokens.T))
        fold[mine[order]] = np.arange(len(mine)) % FOLDS
    return fold


class _Fitter:
    """Fits and judges variants on one set of rows, each held-out prediction made by a fit that did not see the row."""

    def __init__(self, rows: PassRows, runs: set[int], reference: int) -> None:
        self.rows, self.runs, self.reference = rows, runs, reference
        self.fold = folds(rows, runs)
        self.scored = np.isin(rows.source, sorted(runs)) if runs else np.ones(len(rows), dtype=bool)
        self._known: dict[Choices, Floats] = {}

    def out_of_fold(self, choices: Choices) -> Floats:
        if choices not in self._known:
            predicted = np.full(len(self.rows), np.nan)
            for k in range(FOLDS):
                out = self.fold == k
                kept = self.rows.take(~out)
                if not out.any() or not _has_both_parts(kept):
                    continue
                variant = fit_variant(kept, self.runs & set(kept.source.tolist()), self.reference, choices)
                predicted[out] = predict(variant, self.rows.take(out))
            self._known[choices] = predicted
        return self._known[choices]

    def shape_errors(self, choices: Choices, where: Any) -> list[float]:
        """Per fold, the sum of absolute errors over the sum measured, on held-out rows ``where``.

        The level of each source in that fold is taken out: how fast the machine was in those seconds does not say
        which shape is right.
        """
        predicted = self.out_of_fold(choices)
        errors = []
        for k in range(FOLDS):
            held = (self.fold == k) & np.isfinite(predicted)
            off = time = 0.0
            for s in np.unique(self.rows.source[held & where]):
                mine = held & (self.rows.source == s)
                level = self.rows.duration_ns[mine].sum() / predicted[mine].sum()
                m = mine & where
                off += float(np.abs(predicted[m] * level - self.rows.duration_ns[m]).sum())
                time += float(self.rows.duration_ns[m].sum())
            if time:
                errors.append(off / time)
        return errors

    def total_errors(self, choices: Choices) -> list[float]:
        """Per fold, the squared relative error of the total time of each class, weighted by the time in it.

        Squared, because a replay adds pass times up: what is asked for is their mean, which is what this loss rewards.
        """
        predicted = self.out_of_fold(choices)
        kind, errors = self.rows.kind, []
        for k in range(FOLDS):
            off = time = 0.0
            for c in range(len(CLASSES)):
                m = (self.fold == k) & self.scored & (kind == c) & np.isfinite(predicted)
                measured = float(self.rows.duration_ns[m].sum())
                if measured:
                    off += (float(predicted[m].sum()) / measured - 1.0) ** 2 * measured
                    time += measured
            if time:
                errors.append(off / time)
        return errors


def _has_both_parts(rows: PassRows) -> bool:
    kind = rows.kind
    return bool((kind == DECODE_ONLY).any() and (kind != DECODE_ONLY).any())


def _choose(fitter: _Fitter, composition: str) -> tuple[Choices, dict[str, Any]]:
    """One choice after the other, each with those before it settled; candidates are in order of simplicity.

    Until the last one all classes share one level: a factor of their own would hide what a composition gets wrong.
    """
    rows, scored = fitter.rows, fitter.scored
    choices, told = Choices(), {}
    mixed = rows.kind == MIXED  # of every source: a composition holds for the engine, whatever the run

    by_composition = [fitter.shape_errors(replace(choices, composition=c), mixed) for c in COMPOSITIONS]
    best, told["composition"] = settle(COMPOSITIONS, by_composition, strict=True)
    if composition != "auto":
        best = told["composition"]["chosen"] = composition
        told["composition"]["forced"] = True
    choices = replace(choices, composition=best)

    candidates = CONTENTIONS if np.isfinite(rows.contention_ns).any() else CONTENTIONS[:1]
    by_contention = [fitter.shape_errors(replace(choices, contention=c), scored) for c in candidates]
    best, told["contention"] = settle(candidates, by_contention)
    choices = replace(choices, contention=best)

    by_shrinkage = [fitter.shape_errors(replace(choices, shrinkage=s), scored) for s in SHRINKAGES]
    best, told["shrinkage"] = settle(SHRINKAGES, by_shrinkage)
    choices = replace(choices, shrinkage=best)

    if fitter.runs:
        by_level = [fitter.total_errors(replace(choices, level=s)) for s in LEVELS]
        best, told["level"] = settle(LEVELS, by_level)
        choices = replace(choices, level=best)
    return choices, told


def _errors(rows: PassRows, predicted: Floats, scored: Any) -> dict[str, Any]:
    """Held-out error by class and by cell (class, requests, half-octave of the axis that drives the class)."""
    kind = rows.kind
    usable = scored & np.isfinite(predicted)
    by_class = {}
    for c, name in enumerate(CLASSES):
        by_class[name] = _error(rows, predicted, usable & (kind == c))
    requests = np.where(kind == DECODE_ONLY, rows.decode_requests, rows.prefill_requests)
    driver = np.where(kind == DECODE_ONLY, rows.decode_kv_tokens, rows.new_tokens)
    octave = np.rint(np.log2(np.maximum(driver, 1))).astype(np.int64)
    cells = []
    for c, n, o in sorted(
        set(zip(kind[usable].tolist(), requests[usable].tolist(), octave[usable].tolist(), strict=True))
    ):
        m = usable & (kind == c) & (requests == n) & (octave == o)
        cells.append({"class": CLASSES[c], "requests": n, "tokens": 2**o, **_error(rows, predicted, m)})
    return {"by_class": by_class, "all": _error(rows, predicted, usable), "cells": cells}


def _error(rows: PassRows, predicted: Floats, where: Any) -> dict[str, Any]:
    n = int(where.sum())
    if not n:
        return {"passes": 0}
    measured, told = rows.duration_ns[where], predicted[where]
    relative = np.abs(told - measured) / measured
    return {
        "passes": n,
        "mape": round(float(relative.mean()), 5),
        "median_ape": round(float(np.median(relative)), 5),
        "wape": round(float(np.abs(told - measured).sum() / measured.sum()), 5),
        "total": round(float(told.sum() / measured.sum() - 1.0), 5),
    }
