"""The regime of a measurement: what decides which kernels run, axis by axis, and how far two of them are apart."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from engine.deployment import Deployment
from engine.identity import NOT_APPLICABLE, Identity
from engine.timing.anchors import server_args
from engine.timing.anchors.artefact import Anchor
from engine.timing.anchors.canonical import (
    arch_of,
    dtype_of,
    family_of,
    graph_of,
    method_of,
    model_key,
    part_of,
    speculation_of,
    switches_of,
    text_of,
)

Values = Mapping[str, str | None]
"""Canonical value of each axis; None is unknown."""
State = Literal["same", "differs", "unknown"]

AXES: dict[str, str] = {
    "model": "model",
    "engine": "engine",
    "engine_version": "engine version",
    "weight_dtype": "weights dtype",
    "kv_dtype": "KV dtype",
    "expert_dtype": "expert dtype",
    "attention_family": "attention family",
    "graph_mode": "graph mode",
    "aiter": "AITER kernels",
    "op_switches": "per-op kernel switches",
    "speculation": "speculation",
    "speculation_method": "speculation method",
    "part": "GPU part",
}
"""Each axis with its words."""
_MATCHES_UNKNOWN = {"speculation": "off", "op_switches": "default"}
"""Where unknown is not skipped: it may only match this."""
_DRAFTS = ("speculative_num_tokens", "num_speculative_tokens")
_AITER_SWITCH = "VLLM_ROCM_USE_AITER_"

_READING = 2
"""Raised when an axis is read of an artefact in another way, or more is refused of one."""
AXES_VERSION = hashlib.sha256(json.dumps([*AXES, _READING]).encode()).hexdigest()[:8]
"""Of an index: entries made with other axes, or read otherwise, are made again."""


@dataclass(frozen=True, slots=True)
class AxisRow:
    """One axis on both sides. ``rule`` says why the state is what it is; ``allowed``: it differs, and may."""

    axis: str
    anchor: str | None
    target: str | None
    state: State
    rule: str
    allowed: bool = False

    @property
    def label(self) -> str:
        """The axis in words."""
        return AXES[self.axis]

    @property
    def counts(self) -> bool:
        """Whether it adds to the distance."""
        return self.state == "differs" and not self.allowed


def of_anchor(anchor: Anchor) -> dict[str, str | None]:
    """The regime that an artefact was measured in."""
    meta = anchor.meta
    weights = dtype_of(meta.get("weight_dtype")) if meta.get("weight_dtype") else dtype_of(meta.get("quantization"))
    speculation, method = None, None
    if "speculative_method" in meta:
        tokens = next((meta[key] for key in _DRAFTS if meta.get(key) is not None), None)
        speculation, method = speculation_of(meta["speculative_method"], tokens), method_of(meta["speculative_method"])
    return {
        "model": model_key(meta.get("model")),
        "engine": text_of(anchor.backend),
        "engine_version": text_of(meta.get("engine_version")),
        "weight_dtype": weights,
        "kv_dtype": dtype_of(meta["kv_cache_dtype"]) if "kv_cache_dtype" in meta else "bf16",
        "expert_dtype": dtype_of(meta.get("moe_expert_dtype")),
        "attention_family": family_of(meta.get("resolved_attention_backend") or meta.get("attention_backend")),
        "graph_mode": _graph(meta),
        "aiter": text_of(meta.get("use_aiter")),
        "op_switches": _switches(meta),
        "speculation": speculation,
        "speculation_method": method,
        "part": part_of(meta.get("gpu_arch") or meta.get("gpu")),
    }


def of_identity(identity: Identity) -> dict[str, str | None]:
    """The regime of a run, measured or replayed, by its record."""
    value = identity.value
    method = value("speculation", "method")
    method = None if method == NOT_APPLICABLE else method
    backend = value("kernels", "attention_backend")
    return {
        "model": model_key(value("model", "name")),
        "engine": text_of(value("source", "engine")),
        "engine_version": text_of(value("source", "version")),
        "weight_dtype": dtype_of(value("model", "weights_dtype")),
        "kv_dtype": dtype_of(value("model", "kv_dtype")),
        "expert_dtype": dtype_of(value("model", "expert_dtype")),
        "attention_family": family_of(value("kernels", "attention_family") or backend),
        "graph_mode": graph_of(value("kernels", "graph_mode")),
        "aiter": None,
        "op_switches": switches_of(value("kernels", "op_switches")),
        "speculation": None if method is None else speculation_of(method, value("speculation", "draft_tokens")),
        "speculation_method": method_of(method),
        "part": part_of(value("hardware", "part")),
    }


def of_deployment(deployment: Deployment) -> dict[str, str | None]:
    """The regime of what is to be deployed, as far as a deployment says: neither engine nor how it drafts."""
    model, weights = deployment.model, deployment.weight_dtype
    values: dict[str, str | None] = dict.fromkeys(AXES)
    return values | {
        "model": model_key(model.name),
        "weight_dtype": dtype_of(weights),
        "kv_dtype": dtype_of(deployment.kv_dtype),
        "expert_dtype": dtype_of(deployment.expert_dtype or weights) if model.experts else None,
        "attention_family": family_of(deployment.attention_family),
        "graph_mode": graph_of(deployment.graph),
        "part": text_of(deployment.part.name),  # a preset's name, a user's too, not a device's
    }


def compare(
    anchor: Values,
    target: Values,
    allow: Collection[str] = (),
    configs: tuple[str | None, str | None] = (None, None),
) -> list[AxisRow]:
    """Every axis on both sides, in the order of :data:`AXES`.

    ``allow`` names axes that may differ; ``configs`` are digests of both models' ``config.json``, which settle what
    names leave open.
    """
    rows = []
    for axis in AXES:
        here, there = anchor.get(axis), target.get(axis)
        state, rule = _judge(axis, here, there, configs)
        rows.append(AxisRow(axis, here, there, state, rule, state == "differs" and axis in allow))
    return rows


def distance(rows: Iterable[AxisRow]) -> int:
    """How many axes differ."""
    return sum(row.counts for row in rows)


def signature(values: Values) -> str:
    """A short name of a regime: equal for equal values of all axes."""
    text = json.dumps({axis: values.get(axis) or "" for axis in AXES}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def same_model(one: str | None, other: str | None) -> bool:
    """Whether two model keys name one model: by containment either way."""
    return bool(one and other) and (str(one) in str(other) or str(other) in str(one))


def _judge(axis: str, here: str | None, there: str | None, configs: tuple[str | None, str | None]) -> tuple[State, str]:
    if axis == "model" and (here is None or there is None) and None not in configs:
        return ("same", "equal config.json") if configs[0] == configs[1] else ("differs", "another config.json")
    if here is None or there is None:
        harmless, known = _MATCHES_UNKNOWN.get(axis), there if here is None else here
        if harmless is not None and known not in (None, harmless):
            return "differs", f"unknown may match {harmless} only"
        sides = [side for side, value in (("anchor", here), ("target", there)) if value is None]
        return "unknown", f"unknown of the {' and the '.join(sides)}: skipped"
    if here == there:
        return "same", _RULES.get(axis, "equal")
    if axis == "model":
        return ("same", "one name holds the other") if same_model(here, there) else ("differs", "another model")
    if axis == "part":
        arches = arch_of(here), arch_of(there)
        if arches[0] == arches[1] is not None and (here in arches or there in arches):
            return "same", "one side names the architecture of the other"
        return "differs", "a part is never assumed"
    if axis == "speculation" and "spec" in (here, there) and "off" not in (here, there):
        side, key = ("anchor", ": speculative_num_tokens") if here == "spec" else ("target", "")
        return "differs", f"how many tokens are drafted is unknown of the {side}{key}"
    return "differs", "both known"


_RULES = {"attention_family": "one family of kernels", "weight_dtype": "equal as resolved"}


def _graph(meta: Mapping[str, Any]) -> str | None:
    eager = meta.get("enforce_eager")
    if eager is None and "enforce_eager" in meta:
        return None
    if not isinstance(eager, bool):
        eager = server_args.eager(meta.get("server_args") if isinstance(meta.get("server_args"), str) else None)
    return "eager" if eager else "graph"


def _switches(meta: Mapping[str, Any]) -> str | None:
    if meta.get("aiter_ops") is not None:
        return switches_of(meta["aiter_ops"])
    variables = meta.get("env_overrides")
    if not isinstance(variables, Mapping):
        return None
    ops = {name.removeprefix(_AITER_SWITCH): value for name, value in variables.items() if _is_switch(name)}
    return switches_of(ops)


def _is_switch(name: Any) -> bool:
    return isinstance(name, str) and name.startswith(_AITER_SWITCH)
