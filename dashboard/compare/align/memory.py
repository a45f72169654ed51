"""Rung 3: the memory ledger, component by component: what a deployment needs beside what its engine says it took.

Never totals: errors of components cancel. Each is predicted from what is recorded of its neighbours
(:mod:`engine.deployment.log_comparison`), so one wrong component is one check that fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dashboard.compare.align.values import BOTH, Check, Verdict, held, unknown
from dashboard.store import Store
from engine import knobs
from engine.deployment import DTYPES, Deployment, deployment_of, preset_folders
from engine.deployment.engine_log import SGLANG, VLLM, LoggedMemory
from engine.deployment.kept_log import kept_memory_log
from engine.deployment.log_comparison import AGREES, DIFFERS, NOT_LOGGED, ComparedRow, compare_log
from engine.deployment.memory import GIB
from engine.errors import GapscopeError
from engine.identity import Identity
from engine.timing.anchors.canonical import dtype_of, graph_of

NEEDS_LOG = "The engine's start-up log (`gapscope align ... --engine-log FILE`; dummy weights suffice)."
NEEDS_PRESETS = "The part and the model by the names of their presets (--part, --model-preset)."
LEDGER = ("weights", "activations", "graphs", "linear state", "KV pool", "KV per token", "KV tokens", "KV blocks")
"""Components that let the rung pass; the capacity of a part and its usable share are what the ledger is made of."""
_VERDICTS: Mapping[str, Verdict] = {AGREES: "pass", DIFFERS: "fail"}


@dataclass(frozen=True, slots=True)
class Presets:
    """Part and model of the measured run by their presets, where the replay's knobs do not name them."""

    part: str = ""
    model: str = ""


def checks(store: Store, measured: str, replay: str, presets: Presets, tolerance: float) -> tuple[Check, ...]:
    """The pool that the replay has, then the components of the deployment."""
    return (*_pool(store, measured, replay), *_components(store, measured, replay, presets, tolerance))


def _pool(store: Store, measured: str, replay: str) -> list[Check]:
    """What the replay has of KV beside what the engine had: equal, or they are not one deployment."""
    ours, theirs = (store.bundle(run_id).identity for run_id in (measured, replay))
    lineage = store.bundle(replay).lineage
    found = []
    for field, name, unit in (
        ("usable_kv_blocks", "usable KV blocks", "blocks"),
        ("block_size", "block size", "tokens"),
        ("kv_bytes_per_token", "KV bytes per token", "bytes"),
    ):
        have, want = theirs.value("capacity", field), ours.value("capacity", field)
        if want is None and have is None:
            continue
        knob = {"usable_kv_blocks": "kv_blocks"}.get(field, field)
        own = knob in (lineage.get("knobs_changed") or {})
        source = theirs.get("capacity", field)
        taken = (not own and lineage.get("like") == measured) or str(source and source.source).startswith("assumed")
        why = "the replay takes it from the measured run's record: no model of memory is tested" if taken else ""
        needed = f"{name} in both records."
        found.append(held(name, BOTH, want, have, unit, 0.0, why=why, needed=needed, decides=False))
    return found


def _components(store: Store, measured: str, replay: str, presets: Presets, tolerance: float) -> list[Check]:
    folders = preset_folders(store.roots)
    try:
        deployment = deployment_at(store, measured, replay, presets, folders)
        log = said_of(store, measured)
        if deployment is None or log is None:
            lacking = [NEEDS_PRESETS] * (deployment is None) + [NEEDS_LOG] * (log is None or not log.lines)
            why = "nothing names the deployment" if deployment is None else "nothing is recorded of the engine's memory"
            return [unknown("memory by component", BOTH, why, " ".join(lacking))]
        rows = compared(deployment, log, store.bundle(measured).identity, tolerance)
    except GapscopeError as error:
        return [unknown("memory by component", BOTH, str(error), "A deployment whose memory can be worked out.")]
    return [_check(row, log, tolerance) for row in rows]


def compared(
    deployment: Deployment, log: LoggedMemory, identity: Identity, tolerance: float
) -> tuple[ComparedRow, ...]:
    """The rows of the ledger; what the log does not say of the engine's settings is that of the record."""
    size = identity.value("capacity", "block_size")
    fraction = identity.value("capacity", "memory_fraction")
    return compare_log(
        deployment,
        log,
        tolerance=tolerance,
        block_size=int(size) if size else 16,
        memory_fraction=None if fraction is None else float(fraction),
    ).rows


def _check(row: ComparedRow, log: LoggedMemory, tolerance: float) -> Check:
    verdict = _VERDICTS.get(row.state, "unknown")
    given = f"from the recorded {', '.join(row.given)}" if row.given else ""
    why = given if verdict != "unknown" else row.state if row.state != NOT_LOGGED else "not recorded"
    needed = NEEDS_LOG if row.state == NOT_LOGGED else ""
    decides = row.component in LEDGER
    unit = row.unit or "sequences"
    return Check(row.component, BOTH, row.logged, row.predicted, unit, verdict, why, needed, tolerance, decides=decides)


def deployment_at(
    store: Store, measured: str, replay: str, presets: Presets, folders: Sequence[Path]
) -> Deployment | None:
    """The deployment that the replay's knobs name, else the presets with the widths and formats of the measured run.

    Raises:
        GapscopeError: there is no such preset, or they do not fit together.
    """
    if deployment_named(store, replay):
        lineage = store.bundle(replay).lineage
        known = {name: value for name, value in lineage["config"].items() if name in knobs.BY_NAME}
        return deployment_of(knobs.resolve(known), preset_folders(store.roots, lineage.get("timing")))
    if not (presets.part and presets.model):
        return None
    named = {"part": presets.part, "model_preset": presets.model}
    return deployment_of(knobs.resolve({}) | named | _recorded(store.bundle(measured).identity), folders)


def deployment_named(store: Store, replay: str) -> bool:
    """Whether the knobs of a replay name a part and a model."""
    config = store.bundle(replay).lineage.get("config") or {}
    return bool(config.get("part") and config.get("model_preset"))


def _recorded(identity: Identity) -> dict[str, Any]:
    """Widths and formats of a run, by knob, as far as they are recorded."""
    found: dict[str, Any] = {}
    for name in ("tp", "pp", "ep", "attention_dp", "dcp"):
        value = identity.value("topology", name)
        if isinstance(value, int) and value > 0:
            found[name] = value
    for name, field in (("weight_dtype", "weights_dtype"), ("expert_dtype", "expert_dtype"), ("kv_dtype", "kv_dtype")):
        if (dtype := dtype_of(identity.value("model", field))) in DTYPES:
            found[name] = dtype
    if graph_of(identity.value("kernels", "graph_mode")) == "eager":
        found["graph_mode"] = "none"
    return found


def said_of(store: Store, run_id: str) -> LoggedMemory | None:
    """What is recorded of an engine's memory: in the identity, and in the log that was kept of it, which comes first.

    Raises:
        GapscopeError: the kept log is no such file.
    """
    identity = store.bundle(run_id).identity
    log = kept_memory_log(run_id, store.roots)
    engine = str(identity.value("source", "engine") or "").lower()
    if log is None:
        log = LoggedMemory(engine if engine in (VLLM, SGLANG) else VLLM, {}, {}, 0, 0)
    values = {**_said_by(identity), **log.values}
    if not values.keys() & {"weights_gib", "activation_gib", "graphs_gib", "kv_pool_gib", "blocks", "kv_tokens"}:
        return None
    return LoggedMemory(log.engine, values, log.ranges, log.lines, log.used)


def _said_by(identity: Identity) -> dict[str, float]:
    """The fields of a record under the names of a log."""
    scales = {"weights_gib": "memory_weights_bytes", "kv_pool_gib": "memory_kv_bytes"} | {
        "activation_gib": "memory_activations_bytes",
        "graphs_gib": "memory_graphs_bytes",
    }
    found = {name: _number(identity, "capacity", field, GIB) for name, field in scales.items()}
    found["hbm_gib"] = _number(identity, "hardware", "memory_bytes", GIB)
    found["fraction"] = _number(identity, "capacity", "memory_fraction")
    found["blocks"] = _number(identity, "capacity", "kv_blocks")
    found["context"] = _number(identity, "capacity", "max_model_len")
    found["token_budget"] = _number(identity, "scheduler", "max_num_batched_tokens")
    if found["blocks"] and (size := _number(identity, "capacity", "block_size")):
        found["kv_tokens"] = found["blocks"] * size
    return {name: value for name, value in found.items() if value is not None}


def _number(identity: Identity, group: str, field: str, scale: float = 1.0) -> float | None:
    value = identity.value(group, field)
    return value / scale if isinstance(value, int | float) and not isinstance(value, bool) else None
