"""Anchors from our own recordings: curves over measured passes, and the identity that they were recorded with.

What was measured is a pass of the engine; the host's time between passes stands apart. Several recordings share a shape
but not a level: all are brought to the level of the first run among them (of the first sweep where there is no run).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

from engine.errors import GapscopeError
from engine.identity import NOT_APPLICABLE, Identity
from engine.timing.anchors.artefact import sealed
from engine.timing.anchors.canonical import graph_of
from engine.timing.host import between_passes, host_terms
from engine.timing.rows import DECODE_ONLY, MIXED, FitSource, Floats, PassRows, check_same_regime, read_rows
from engine.timing.surface import COMPOSITIONS, Surface, fit_surface

FEWEST = 3
"""Passes of a batch, or of a bin of contexts, from which a median counts as measured."""
NEAR = 0.1
"""Share of the sweep's context within which a grid point would say nothing of a slope."""


def document_of(sources: Sequence[FitSource], *, force: bool = False) -> dict[str, Any]:
    """The artefact of the passes of ``sources``, and of nothing else (JSON-ready).

    Raises:
        GapscopeError: see :func:`read_rows` and :func:`check_same_regime`; no batch was decoded often enough.
    """
    rows, lineage = read_rows(sources)
    forced = check_same_regime(sources, force)
    runs = [i for i, entry in enumerate(lineage) if entry["kind"] != "sweep"]
    reference = runs[0] if runs else 0
    composition, surface, level, scores = _shape(rows, reference)
    sweep, grid = _decodes(rows, level)
    if not sweep:
        raise GapscopeError(
            f"No batch was decoded in {FEWEST} passes or more of {', '.join(source.name for source in sources)}: an "
            "anchor needs passes that only decode."
        )
    document: dict[str, Any] = {
        "backend": _first(sources, "source", "engine"),
        "client": "recorded passes",
        "meta": {
            **_identity(sources),
            "decode_observable": "pass",
            "prefill_observable": "pass",
            "host": host_terms(sources),
            "between_ns": between_passes(rows, set(runs))["value_ns"],
            "mixed_composition": composition,
            "mixed_errors": scores,
            "sources": lineage,
            "level_of": lineage[reference]["run_id"],
            "forced_differences": list(forced),
        },
        "sweep": sweep,
        "decode_ctx": grid,
    }
    points = _prompts(rows, level, surface)
    if points:
        document["meta"]["prefill_anchor"] = {
            "points": points,
            "curve_fit": {
                "fixed_ms": _ms(surface.prefill_fixed + surface.prefill_request),
                "ms_per_token": _ms(surface.prefill_token),
                "ms_per_token_sq": _ms(surface.prefill_pair / 2.0),
            },
        }
    return sealed(document)


def _shape(rows: PassRows, reference: int) -> tuple[str, Surface, Floats, dict[str, float]]:
    """The smooth shape of all passes under the composition that fits mixed ones better, and passes at one level."""
    decode = rows.kind == DECODE_ONLY
    floor = float((rows.decode_kv_tokens[decode] / rows.decode_requests[decode]).min()) if decode.any() else 1.0
    best: tuple[float, str, Surface, Floats] | None = None
    scores = {}
    for composition in COMPOSITIONS:
        surface, factors = fit_surface(rows, rows.duration_ns, reference, composition, floor)
        level = rows.duration_ns / factors[rows.source, rows.kind]
        mixed = rows.take(rows.kind == MIXED)
        error = 0.0
        if len(mixed):
            told = _composed(surface, mixed, composition)
            error = float(np.median(np.abs(told / level[rows.kind == MIXED] - 1.0)))
        scores[composition] = round(error, 6)
        if best is None or error < best[0]:
            best = (error, composition, surface, level)
    assert best is not None
    return best[1], best[2], best[3], scores


def _composed(surface: Surface, mixed: PassRows, composition: str) -> Floats:
    """Mixed passes as an anchor composes them: the whole decode, or what it takes above its fixed part."""
    prefill = surface.prefill(mixed.prefill_requests, mixed.new_tokens, mixed.prefill_kv_tokens)
    decode = surface.decode(mixed.decode_requests, mixed.decode_kv_tokens)
    whole: Floats = prefill + decode
    return whole - surface.decode_fixed if composition == "marginal" else whole


def _decodes(rows: PassRows, level: Floats) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A row per batch at its own middle context, and a row per batch and half octave of contexts."""
    sweep, grid = [], []
    for batch in np.unique(rows.decode_requests[rows.kind == DECODE_ONLY]).tolist():
        mine = (rows.kind == DECODE_ONLY) & (rows.decode_requests == batch)
        if mine.sum() < FEWEST:
            continue
        context, ns = rows.decode_kv_tokens[mine] / batch, level[mine]
        bins = np.rint(2 * np.log2(np.maximum(context, 1.0)))
        held = [bins == b for b in np.unique(bins) if (bins == b).sum() >= FEWEST]
        knots = [(float(np.median(context[at])), float(np.median(ns[at])), int(at.sum())) for at in held]
        middle = float(np.median(context))
        slope = _slope(knots)
        base = float(np.median(ns - slope * (context - middle)))
        sweep.append({"batch": batch, "context": round(middle, 2), "decode_ms": _ms(base), "passes": int(mine.sum())})
        for at, value, passes in knots:
            if abs(at - middle) > NEAR * middle:
                grid.append({"batch": batch, "context": round(at, 2), "decode_ms": _ms(value), "passes": passes})
    return sweep, grid


def _slope(knots: list[tuple[float, float, int]]) -> float:
    """Nanoseconds per token of context: the median over all pairs of knots, never negative."""
    slopes = [(v1 - v0) / (c1 - c0) for i, (c0, v0, _) in enumerate(knots) for c1, v1, _ in knots[i + 1 :] if c1 > c0]
    return max(0.0, median(slopes)) if slopes else 0.0


def _prompts(rows: PassRows, level: Floats, surface: Surface) -> list[dict[str, Any]]:
    """Median prompts by their number, their tokens and what they had cached; alone, or less the decodes beside them."""
    points: dict[tuple[float, ...], dict[str, Any]] = {}
    for kind, of in ((0, "prefill_only"), (MIXED, "mixed")):
        at = np.flatnonzero(rows.kind == kind)
        some = rows.take(at)
        ns = level[at]
        if kind == MIXED:
            ns = ns - surface.decode(some.decode_requests, some.decode_kv_tokens)
        tokens, cached = np.maximum(some.new_tokens, 1), some.prefill_kv_tokens / np.maximum(some.prefill_requests, 1)
        bins = np.stack(
            [some.prefill_requests, np.rint(2 * np.log2(tokens)), np.rint(np.log2(np.maximum(cached, 32.0)))], axis=1
        )
        for key in sorted(set(map(tuple, bins.tolist()))):
            mine = (bins == key).all(axis=1)
            took = float(np.median(ns[mine]))
            if key in points or took <= 0:
                continue
            points[key] = {
                "input_len": float(np.median(tokens[mine])),
                "context": float(np.median(some.prefill_kv_tokens[mine])),
                "prompts": int(key[0]),
                "ms": _ms(took),
                "passes": int(mine.sum()),
                "of": of,
            }
    return [points[key] for key in sorted(points)]


def _identity(sources: Sequence[FitSource]) -> dict[str, Any]:
    """What is known of the deployment, in the words of an artefact; null is unknown."""

    def known(group: str, field: str) -> Any:
        return _first(sources, group, field)

    graph, method = graph_of(known("kernels", "graph_mode")), known("speculation", "method")
    meta = {
        "model": known("model", "name"),
        "config_digest": known("model", "config_digest"),
        "gpu": known("hardware", "part"),
        "engine_version": known("source", "version"),
        "weight_dtype": known("model", "weights_dtype"),
        "kv_cache_dtype": known("model", "kv_dtype"),
        "moe_expert_dtype": known("model", "expert_dtype"),
        "attention_backend": known("kernels", "attention_family") or known("kernels", "attention_backend"),
        "enforce_eager": None if graph is None else graph == "eager",
        "aiter_ops": known("kernels", "op_switches"),
        "tp": known("topology", "tp"),
        "pp": known("topology", "pp"),
        "ep": known("topology", "ep"),
        "attention_data_parallel_size": known("topology", "attention_dp"),
    }
    if method is not None:
        meta["speculative_method"] = method
        meta["speculative_num_tokens"] = known("speculation", "draft_tokens")
    return meta


def _first(sources: Sequence[FitSource], group: str, field: str) -> Any:
    """The first source's value that says something."""
    for source in sources:
        identity: Identity = source.bundle.identity
        value = identity.value(group, field)
        if value is not None and value != NOT_APPLICABLE:
            return value
    return None


def _ms(ns: float) -> float:
    return float(f"{ns / 1e6:.9g}")
