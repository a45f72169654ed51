"""What a what-if asks for: from which run, with which knobs, on which measured passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dashboard.catalogue import RunEntry
from dashboard.store import Store
from engine import knobs
from engine.bundle import Bundle
from engine.errors import GapscopeError
from engine.replay.identity import SIZE, knobs_from_run
from engine.traces import DIGEST_CHARS, find_trace


def bases(entries: Sequence[RunEntry]) -> list[str]:
    """Recordings and replays that are intact, rungs and points last; :func:`problem` says which cannot be replayed."""
    usable = [entry for entry in entries if entry.state == "ok" and entry.kind in ("measured", "replay")]
    usable.sort(key=lambda entry: (entry.aside, entry.kind != "replay", entry.run_id))
    return [entry.run_id for entry in usable]


def base_values(bundle: Bundle) -> dict[str, Any]:
    """Every knob at the value of the run, or at its default where the run does not say.

    The size of KV stays as the run knows it, although it has no effect before something moves KV.
    """
    told = knobs_from_run(bundle)
    return knobs.resolve({}, told) | {name: told[name] for name in (SIZE,) if name in told}


def problem(bundle: Bundle, stores: Sequence[Path]) -> str:
    """Why a run cannot be replayed, as a sentence; empty where it can."""
    digest = bundle.identity.value("trace", "digest")
    if not digest:
        return (
            f"Run {bundle.run_id} cannot be replayed: it does not say which trace was played. Start from another run, "
            "or play its workload with `gapscope replay --trace FILE`."
        )
    try:
        find_trace(stores, digest)
    except GapscopeError:
        return (
            f"Run {bundle.run_id} cannot be replayed: the trace that it played ({digest[:DIGEST_CHARS]}) is not in the "
            "store. Import the run together with its trace, or start from another."
        )
    return ""


def holds_model(bundle: Bundle) -> bool:
    """Whether the run brings a timing model along, or names the run whose passes timed it."""
    timing = bundle.lineage.get("timing") or {}
    return isinstance(timing.get("model"), dict) or timing.get("kind") == "measured"


def fit_choices(entries: Sequence[RunEntry]) -> list[str]:
    """Passes that a model can be fitted on: sweeps, and the warm-up of measured runs."""
    sweeps = [entry.run_id for entry in entries if entry.kind == "sweep" and entry.state == "ok"]
    runs = [f"{e.run_id}:warmup" for e in entries if e.kind == "measured" and e.state == "ok" and e.passes]
    return sweeps + runs


def default_fit(store: Store, bundle: Bundle, entries: Sequence[RunEntry]) -> list[str]:
    """The sweeps of the same hardware and the run's own warm-up, for a run without a model; never its profile."""
    if holds_model(bundle):
        return []
    part = bundle.identity.value("hardware", "part")
    sweeps = [
        entry.run_id
        for entry in entries
        if entry.kind == "sweep"
        and entry.state == "ok"
        and store.bundle(entry.run_id).identity.value("hardware", "part") == part
    ]
    warm = f"{bundle.run_id}:warmup"
    return [*sweeps, *([warm] if warm in fit_choices(entries) else [])]


def changes(values: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """The knobs that differ from the base run's."""
    return {name: value for name, value in values.items() if value is not None and value != base[name]}


def changed_by(replay: Bundle, now: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """The knobs of a replay that differ from those of the run it was made from (``now``).

    A term that comes from the timing (below zero) is a number in the replay's own record, and no change unless it was
    ``asked`` for.
    """
    found = changes(base_values(replay), now)
    return {name: value for name, value in found.items() if name in asked or not _from_timing(now[name])}


def _from_timing(value: Any) -> bool:
    return isinstance(value, float) and value < 0


def words(changed: Mapping[str, Any]) -> str:
    """Changed knobs in a sentence: with lanes=6, or as it was."""
    named = ", ".join(f"{knob}={value}" for knob, value in changed.items())
    return f"with {named}" if named else "as it was"


def title(base: Bundle, changed: Mapping[str, Any]) -> str:
    """The base run with its changed knobs named."""
    name = base.run_id.rpartition("-")[0].removesuffix("-what-if")
    return f"{name} {words(changed)}" if changed else f"{name} replayed"


def spec(base: Bundle, changed: Mapping[str, Any], fit: Sequence[str], stores: Sequence[Path]) -> dict[str, Any]:
    """The job that makes the replay."""
    return {
        "do": "replay",
        "base": base.run_id,
        "changes": dict(changed),
        "fit": list(fit),
        "title": title(base, changed),
        "stores": [str(store.resolve()) for store in stores],
    }
