"""The head of an InferenceX result: what ran on what."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from engine.importers.clients.values import count, dig, text, truth

Fact = tuple[str, str, Any]

_PART = re.compile(r"(?:cluster:)?([a-z]+\d+[a-z]*)", re.IGNORECASE)
_SIDES = ("prefill", "decode")

HEADER = frozenset(
    [
        "hw",
        "conc",
        "users",
        "image",
        "model",
        "infmax_model_prefix",
        "framework",
        "precision",
        "spec_decoding",
        "disagg",
        "recipe_fingerprint",
        "isl",
        "osl",
        "router",
        "kv_p2p_transfer",
        "is_multinode",
        "tp",
        "pp",
        "dcp_size",
        "pcp_size",
        "ep",
        "dp_attention",
        "num_prefill_gpu",
        "num_decode_gpu",
        "prefill_hw",
        "decode_hw",
        "scenario_type",
        "kv_offloading",
        "kv_offload_backend",
        "allocated_cpu_dram_gb",
        "offload_mode",
        "date",
        "prefill_tp",
        "prefill_ep",
        "prefill_dp_attention",
        "prefill_num_workers",
        "prefill_pp",
        "decode_tp",
        "decode_ep",
        "decode_dp_attention",
        "decode_num_workers",
        "decode_pp",
        "dataset",
        "prefill_dcp_size",
        "decode_dcp_size",
        "prefill_pcp_size",
        "decode_pcp_size",
    ]
)
"""Keys that say what ran; every other number of a flat result is a figure."""


def part(hw: Any) -> str | None:
    """The accelerator in a runner's name: ``mi355x_0``, ``h200-nv`` and ``cluster:b200-...`` have suffixes."""
    found = _PART.match(text(hw) or "")
    return found[1].upper() if found else None


def gpus(point: dict[str, Any]) -> int | None:
    """How many GPUs served, None where the file does not say."""
    if is_multinode(point):
        sides = [count(point.get(f"num_{side}_gpu")) for side in _SIDES]
        return None if None in sides else sum(number or 0 for number in sides) or None
    tp = count(point.get("tp"))
    if not tp:
        return None
    return tp * (count(point.get("pp")) or 1) * (count(point.get("pcp_size")) or 1)


def is_multinode(point: dict[str, Any]) -> bool:
    """Whether prefill and decode are described apart."""
    return truth(point.get("is_multinode")) is True or "prefill_tp" in point


def schema(point: dict[str, Any]) -> str:
    """The schema of the head: v1 knew neither the kind of serving nor separate prefill and decode."""
    return "v2" if "prefill_tp" in point or "disagg" in point or "is_multinode" in point else "v1"


def identity(point: dict[str, Any]) -> Iterator[Fact]:
    """Identity fields of a result."""
    yield "hardware", "part", part(point.get("hw"))
    yield "hardware", "count", gpus(point)
    yield "model", "name", text(point.get("model"))
    yield "model", "weights_dtype", text(point.get("precision"))
    yield "source", "engine", text(point.get("framework"))
    image = text(point.get("image"))
    yield "source", "distribution", image
    yield "source", "image_digest", image.partition("@")[2] if image and "@sha256:" in image else None
    yield "speculation", "method", text(point.get("spec_decoding"))
    yield from _topology(point)
    yield "client", "lanes", count(point.get("conc", point.get("users")))
    yield from _workload(point)


def _topology(point: dict[str, Any]) -> Iterator[Fact]:
    apart = is_multinode(point)
    disaggregated = truth(point.get("disagg"))
    if disaggregated is not None:
        yield "topology", "serving", "prefill/decode" if disaggregated else "aggregated"
    for field, key in (("tp", "tp"), ("pp", "pp"), ("ep", "ep"), ("context_parallel", "dcp_size")):
        if apart:
            sides = {side: count(point.get(f"{side}_{key}")) for side in _SIDES}
            yield "topology", field, _one_or_both(sides)
        else:
            yield "topology", field, count(point.get(key))
    if apart:
        flags = {side: truth(point.get(f"{side}_dp_attention")) for side in _SIDES}
        yield "topology", "attention_dp", _one_or_both({side: _dp(flag) for side, flag in flags.items()})
        for side in _SIDES:
            yield "topology", f"{side}_workers", count(point.get(f"{side}_num_workers"))
    else:
        yield "topology", "attention_dp", _dp(truth(point.get("dp_attention")))
    yield "topology", "kv_transfer", _named(point.get("kv_p2p_transfer"))
    yield "topology", "router", _named(point.get("router"))


def _dp(on: bool | None) -> Any:
    """DP attention is a switch here; its size is not stated where it is on."""
    return None if on is None else "on" if on else 1


def _one_or_both(sides: dict[str, Any]) -> Any:
    values = set(map(str, sides.values()))
    if all(value is None for value in sides.values()):
        return None
    return next(iter(sides.values())) if len(values) == 1 else sides


def _named(value: Any) -> str | None:
    if isinstance(value, dict):
        return " ".join(filter(None, (text(value.get("name")), text(value.get("version"))))) or None
    return text(value)


def _workload(point: dict[str, Any]) -> Iterator[Fact]:
    lengths = count(point.get("isl")), count(point.get("osl"))
    if None not in lengths:
        yield "trace", "name", f"random prompts, ISL {lengths[0]}, OSL {lengths[1]}"
    yield "trace", "name", text(dig(point, "dataset", "hf_dataset_name"))
    yield "trace", "format", text(dig(point, "dataset", "source_type"))
    yield "trace", "rows", count(dig(point, "dataset", "num_dataset_entries"))


def name(point: dict[str, Any]) -> str:
    """What people call the point."""
    model = text(point.get("infmax_model_prefix")) or (text(point.get("model")) or "model").rpartition("/")[2]
    shape = [f"{key} {value}" for key in ("isl", "osl") if (value := count(point.get(key))) is not None]
    if text(point.get("scenario_type")):
        shape = [text(point.get("scenario_type")) or ""]
    parallel = [f"tp{tp}"] if (tp := count(point.get("tp"))) else []
    if is_multinode(point):
        parallel = [f"{side} tp{tp}" for side in _SIDES if (tp := count(point.get(f"{side}_tp")))]
    load = count(point.get("conc", point.get("users")))
    words = [
        model,
        text(point.get("hw")) or "",
        text(point.get("framework")) or "",
        text(point.get("precision")) or "",
        *parallel,
        *shape,
        f"conc {load}" if load is not None else "",
    ]
    return " ".join(filter(None, words))


def kept(point: dict[str, Any]) -> dict[str, Any]:
    """The head as it is written, for the lineage."""
    return {key: value for key, value in point.items() if key in HEADER and _plain(value)}


def _plain(value: Any) -> bool:
    if isinstance(value, float):
        return value == value and abs(value) != float("inf")
    if isinstance(value, dict):
        return all(isinstance(k, str) and _plain(v) and not isinstance(v, dict | list) for k, v in value.items())
    return isinstance(value, str | int | bool | None)
