"""One fitted variant: surface, sites and levels for one mixed composition, from given rows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from engine.timing.contract import PassQueries
from engine.timing.fpm import FpmTiming
from engine.timing.rows import CLASSES, DECODE_ONLY, MIXED, PREFILL_ONLY, Floats, Ints, PassRows
from engine.timing.surface import FEW, Surface, fit_surface

LEVEL_BOUNDS = (0.5, 2.0)
BLOCKS = 5
"""Stretches of time that a source's passes are cut into for the block median."""
EXACT_PASSES = 3
"""Passes of one geometry from which its median counts as measured (fewer are noise with a coordinate)."""


@dataclass(frozen=True, slots=True)
class Choices:
    """What cross-validation decides.

    ``contention``: as_measured | subtracted | dropped (passes that waited for a core for over a tenth of their time).
    ``shrinkage``: a knot of n passes deviates from the base by n / (n + shrinkage) of what was measured; None: by
    nothing.
    ``level``: a factor per class, as the ratio_of_sums, the block_median (of the ratios of sums in BLOCKS stretches of
    time: one burst of other load is not the machine's level) or the pass_median; common, one factor for all classes,
    while the other choices are made.
    """

    composition: str = "sum"
    contention: str = "as_measured"
    shrinkage: float | None = None
    level: str = "common"


CONTENTIONS = ("as_measured", "subtracted", "dropped")
SHRINKAGES: tuple[float | None, ...] = (None, 32.0, 8.0, 0.0)
LEVELS = ("ratio_of_sums", "block_median", "pass_median")


def fit_variant(rows: PassRows, level_sources: set[int], reference: int, choices: Choices) -> dict[str, Any]:
    """Fit one variant (JSON-ready; :class:`engine.timing.fpm.FpmTiming` prices passes from it).

    ``level_sources`` are the sources whose level the model predicts at; empty: the level of the reference as it is.
    """
    shape, target = _shape_rows(rows, choices.contention)
    kind = shape.kind
    decode = kind == DECODE_ONLY
    floor = float((shape.decode_kv_tokens[decode] / shape.decode_requests[decode]).min()) if decode.any() else 1.0
    surface, factors = fit_surface(shape, target, reference, choices.composition, floor)
    at_reference = target / factors[shape.source, kind]
    variant: dict[str, Any] = {
        "composition": choices.composition,
        "base_ns": {k: _short(v) for k, v in asdict(surface).items()},
        "decode_floor_kv_per_request": floor,
        "decode_sites": _decode_sites(shape.take(decode), at_reference[decode], surface, choices.shrinkage),
        "prefill_sites": [],
        "exact_prefill": [],
        "exact_decode": [],
        "levels": {name: {"factor": 1.0, "basis": "none", "passes": 0} for name in CLASSES},
    }
    variant["prefill_sites"] = _prefill_sites(shape, at_reference, surface, variant, choices.shrinkage)
    if level_sources:
        variant["levels"] = _levels(rows, level_sources, variant, choices.level)
    _add_exact(rows, level_sources, factors, variant)
    return variant


def predict(variant: dict[str, Any], rows: PassRows) -> Floats:
    """Duration of each row as the variant prices it, in nanoseconds."""
    return FpmTiming(variant).explain(queries(rows)).total_ns.astype(np.float64)


def queries(rows: PassRows) -> PassQueries:
    """The geometries of ``rows``."""
    return PassQueries(*rows.geometry().T)


def _shape_rows(rows: PassRows, contention: str) -> tuple[PassRows, Floats]:
    waited = np.nan_to_num(rows.contention_ns)
    if contention == "subtracted":
        return rows, np.maximum(rows.duration_ns - waited, 0.1 * rows.duration_ns)
    if contention == "dropped":
        rows = rows.take(waited <= 0.1 * rows.duration_ns)
    return rows, rows.duration_ns


def _decode_sites(rows: PassRows, measured: Floats, surface: Surface, shrinkage: float | None) -> list[dict[str, Any]]:
    """A site per batch; a knot per half octave of KV tokens per request."""
    per_request = rows.decode_kv_tokens / rows.decode_requests
    ratio = measured / surface.decode(rows.decode_requests, rows.decode_kv_tokens)
    bins = np.rint(2 * np.log2(np.maximum(per_request, 1.0)))
    sites = []
    for batch in np.unique(rows.decode_requests):
        mine = rows.decode_requests == batch
        x = per_request[mine]
        sites.append(
            {
                "batch": int(batch),
                "range": [float(x.min()), float(x.max())],
                "knots": _knots(x, ratio[mine], bins[mine], shrinkage),
            }
        )
    return sites


def _prefill_sites(
    rows: PassRows, measured: Floats, surface: Surface, variant: dict[str, Any], shrinkage: float | None
) -> list[dict[str, Any]]:
    """A site per (prompts, octave of KV per prompt); a knot per half octave of new tokens.

    Mixed passes count with what is left of them after their decode part: without them a deployment that decodes
    whenever it prefills would have no prefill site at all.
    """
    kind = rows.kind
    left = measured.copy()
    mixed = kind == MIXED
    if mixed.any():
        left[mixed] -= _decode_part(rows.take(mixed), variant)
    mine = kind != DECODE_ONLY
    rows, left = rows.take(mine), left[mine]
    base = surface.prefill(rows.prefill_requests, rows.new_tokens, rows.prefill_kv_tokens)
    ratio = np.clip(left / base, 0.1, 10.0)
    context = rows.prefill_kv_tokens / rows.prefill_requests
    octave = np.rint(np.log2(np.maximum(context, 32.0)))
    bins = np.rint(2 * np.log2(np.maximum(rows.new_tokens, 1)))
    sites = []
    for batch, band in sorted(set(zip(rows.prefill_requests.tolist(), octave.tolist(), strict=True))):
        m = (rows.prefill_requests == batch) & (octave == band)
        tokens, around = rows.new_tokens[m].astype(float), context[m]
        sites.append(
            {
                "batch": batch,
                "context": _short(float(np.median(around))),
                "context_range": [float(around.min()), float(around.max())],
                "range": [float(tokens.min()), float(tokens.max())],
                "knots": _knots(tokens, ratio[m], bins[m], shrinkage),
            }
        )
    return sites


def _decode_part(rows: PassRows, variant: dict[str, Any]) -> Floats:
    """What the decode requests add to mixed passes under the variant's composition, before levels."""
    stand_in = {
        "batch": 1,
        "context": 0.0,
        "range": [1.0, 1.0],
        "knots": [[1.0, 1.0, 1]],
    }  # explain() wants a prefill side; it is not read
    timing = FpmTiming({**variant, "prefill_sites": [stand_in]})
    return timing.explain(queries(rows)).decode_ns.astype(np.float64)


def _knots(x: Floats, ratio: Floats, bins: Floats, shrinkage: float | None) -> list[list[float]]:
    members: dict[float, list[int]] = {}
    for i, b in enumerate(bins.tolist()):
        members.setdefault(b, []).append(i)
    xs, ratios = x.tolist(), ratio.tolist()
    knots = []
    for b in sorted(members):
        mine = members[b]
        trust = 0.0 if shrinkage is None else len(mine) / (len(mine) + shrinkage)
        at, typical = median([xs[i] for i in mine]), median([ratios[i] for i in mine])
        knots.append([_short(at), _short(1.0 + (typical - 1.0) * trust), len(mine)])
    return knots


def _levels(rows: PassRows, sources: set[int], variant: dict[str, Any], statistic: str) -> dict[str, Any]:
    """A factor per class on what the sites say, estimated on the level sources and bounded."""
    mine = rows.take(np.isin(rows.source, sorted(sources)))
    predicted, kind, block = predict(variant, mine), mine.kind, _blocks(mine)

    def estimate(where: Any) -> dict[str, Any]:
        y, p = mine.duration_ns[where], predicted[where]
        if statistic == "pass_median":
            raw = float(np.median(y / p))
        elif statistic == "block_median":
            sums = [np.bincount(block[where], x) for x in (y, p)]
            held = sums[1] > 0
            raw = float(np.median(sums[0][held] / sums[1][held]))
        else:
            raw = float(y.sum() / p.sum())
        return {"factor": _short(float(np.clip(raw, *LEVEL_BOUNDS))), "raw": _short(raw), "passes": int(where.sum())}

    everything = {**estimate(np.ones(len(mine), dtype=bool)), "basis": "all classes"}
    if statistic == "common":
        return dict.fromkeys(CLASSES, everything)
    own = {c: {**estimate(kind == c), "basis": CLASSES[c]} for c in range(len(CLASSES)) if (kind == c).sum() >= FEW}
    kin = {DECODE_ONLY: MIXED, MIXED: PREFILL_ONLY, PREFILL_ONLY: MIXED}
    return {name: own.get(c) or own.get(kin[c]) or everything for c, name in enumerate(CLASSES)}


def _blocks(rows: PassRows) -> Ints:
    """Number of the stretch of time that each row lies in: BLOCKS per source."""
    block = np.zeros(len(rows), dtype=np.int64)
    for s in np.unique(rows.source):
        mine = np.flatnonzero(rows.source == s)
        block[mine] = s * BLOCKS + np.arange(len(mine)) * BLOCKS // len(mine)
    return block


def _add_exact(rows: PassRows, level_sources: set[int], factors: Floats, variant: dict[str, Any]) -> None:
    """Geometries measured often enough, with the measured median brought to the model's reference level."""
    factors = factors.copy()
    for s in level_sources:
        if s < len(factors):
            factors[s] = [variant["levels"][name]["factor"] for name in CLASSES]
    kind = rows.kind
    for c, axes, key in ((PREFILL_ONLY, [0, 1, 2], "exact_prefill"), (DECODE_ONLY, [3, 4], "exact_decode")):
        m = kind == c
        geometry, inverse, counts = np.unique(
            rows.geometry()[m][:, axes], axis=0, return_inverse=True, return_counts=True
        )
        value = rows.duration_ns[m] / factors[rows.source[m], c]
        for i in np.flatnonzero(counts >= EXACT_PASSES):
            typical = float(np.median(value[inverse.reshape(-1) == i]))
            variant[key].append([*(int(g) for g in geometry[i]), typical, int(counts[i])])


def _short(value: float) -> float:
    """Nine significant digits: more would be noise, and the model stays small."""
    return float(f"{value:.9g}")
