"""Rung 4: how long a pass takes by role, at the geometry that was measured, by the timing that the replay rests on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dashboard.compare.align.values import BOTH, Check, by_repeats, held, unknown
from dashboard.metrics import Population
from dashboard.pricing import Priced, priced, rebuilt
from dashboard.queries import passes
from dashboard.store import Store
from engine.identity import NOT_APPLICABLE, Identity

FEWEST_PASSES = 30
"""A class of fewer passes is not judged: a level needs some."""
DECIDING_SHARE = 0.1
"""Of the measured pass time: a class that holds less cannot make the rung pass."""
NAMES = {"prefill_only": "prefill-only passes", "decode_only": "decode-only passes", "mixed": "mixed passes"}


def checks(
    store: Store, measured: str, replay: str, population: Population, repeats: tuple[str, ...], tolerance: float
) -> tuple[Check, ...]:
    """One check per class: measured mean, the mean of the timing at the same geometry, and what a repeat does there."""
    if "passes" not in store.tables(measured):
        return (unknown("passes", BOTH, "the measured run recorded no passes", "Passes (FPM) of the measured run."),)
    if said := circular(store, measured, replay, population):
        return (unknown("passes", BOTH, said, "A timing model that rests on other passes than those it is judged by."),)
    timing, why = rebuilt(store, replay)
    found = priced(store, measured, replay)
    if timing is None or found is None:
        return (
            unknown(
                "passes",
                BOTH,
                why,
                "A replay with its timing model, or whose measured run is in the stores.",
            ),
        )
    inside = np.isin(found.phases, population.pass_phases)
    whole = found.measured_ns[inside].sum()
    moves = spread(store, measured, population, repeats)
    return tuple(_check(found, inside, whole, name, moves.get(name, ()), tolerance) for name in NAMES)


def _check(
    found: Priced, inside: np.ndarray, whole: float, name: str, moves: Sequence[float], tolerance: float
) -> Check:
    chosen = inside & (found.classes == name)
    n = int(chosen.sum())
    if n < FEWEST_PASSES:
        why = f"{n} passes, of which a level needs {FEWEST_PASSES}"
        return unknown(NAMES[name], BOTH, why, f"A recording with more {NAMES[name]}.", "ms", n)
    share = float(found.measured_ns[chosen].sum() / whole)
    low, high = np.percentile(found.error[chosen], [10, 90])
    why = f"{share:.0%} of the pass time; errors p10 {low:+.1%}, p90 {high:+.1%}"
    outside = 1 - float(found.inside[chosen].mean())
    if outside:
        why += f"; {outside:.1%} of them outside the measured domain of the timing"
    if not moves:
        why += "; no repeat says how far the class moves by itself"
    mean = float(found.measured_ns[chosen].mean() / 1e6)
    return held(
        NAMES[name],
        BOTH,
        mean,
        float(found.model_ns[chosen].mean() / 1e6),
        "ms",
        tolerance,
        noise=by_repeats(mean, moves),
        why=why,
        n=n,
        decides=share >= DECIDING_SHARE,
    )


def spread(store: Store, measured: str, population: Population, repeats: tuple[str, ...]) -> dict[str, list[float]]:
    """By class: how far the mean pass of each repeat lies off at equal geometry, as a share."""
    found: dict[str, list[float]] = {}
    for other in repeats:
        same = passes.same_geometry(store, measured, other, population)
        if same.not_recorded:
            continue
        for row in same.rows():
            if row["error"] is not None:
                found.setdefault(row["class"], []).append(row["error"])
    return found


def circular(store: Store, measured: str, replay: str, population: Population) -> str:
    """Why the replay's timing cannot be judged by these passes: it was taken from them. Empty where it was not."""
    lineage = store.bundle(replay).lineage
    timing = lineage.get("timing") or {}
    if timing.get("kind") == "measured" and timing.get("run_id") == measured:
        return "the replay takes the durations of these very passes"
    for source in lineage.get("fitted_on") or ():
        phases = source.get("phases")
        if source.get("run_id") == measured and (phases is None or set(phases) & set(population.pass_phases)):
            return "the timing was fitted on these very passes"
    return ""


def notes(identity: Identity) -> tuple[str, ...]:
    """What a reader must know of measured passes: weights that no checkpoint holds, and ranks that wait."""
    found = []
    if "dummy" in str(identity.value("model", "weights_origin")).lower():
        kept = (
            "The weights are dummies: passes last as with a checkpoint only where its dtypes, layouts and kernels are "
            "the same"
        )
        routed = identity.value("model", "expert_dtype") not in (None, NOT_APPLICABLE)
        found.append(
            f"{kept}; experts are not, as near-equal tokens hit few of them, so measured passes are too short."
            if routed
            else f"{kept}, and nothing is routed by data."
        )
    ranks = identity.value("topology", "attention_dp")
    if isinstance(ranks, int) and ranks > 1:
        found.append(f"{ranks} ranks step together: a pass holds what its rank waits for the slowest one.")
    return tuple(found)
