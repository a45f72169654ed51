"""Number formats in a Hugging Face config: what the checkpoint is published in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.deployment.fields import Fields

_PLAIN = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
_NAMED = {
    "fp8": "fp8",
    "mxfp8": "fp8",
    "fbgemm_fp8": "fp8",
    "w8a8_fp8": "fp8",
    "mxfp4": "mxfp4",
    "nvfp4": "nvfp4",
    "w4a16_nvfp4": "nvfp4",
    "int8": "int8",
}
_BITS = {("float", 8): "fp8", ("int", 8): "int8", ("int", 4): "int4", ("float", 4): "nvfp4"}
_TOOLS = {"awq": "int4", "gptq": "int4", "awq_marlin": "int4", "gptq_marlin": "int4"}


def formats_of(fields: Fields) -> dict[str, Any]:
    """``weight_dtype`` and ``expert_dtype`` of a model preset.

    Raises:
        GapscopeError: weights are quantised, and the config does not say in what format: a quantiser's name is none.
    """
    quantized = fields.raw("quantization_config")
    if quantized is not None and not isinstance(quantized, Mapping):
        raise fields.refuse(f"quantization_config is {repr(quantized)[:40]}, expected an object")
    if not quantized:
        return {"weight_dtype": _plain(fields)} | _stated_experts(fields)
    name = _format(quantized)
    if name is None:
        tool = quantized.get("quant_method", "quantization_config")
        raise fields.refuse(
            f"{tool} states no number format that is known, expected fp8, int8, int4, mxfp4 or nvfp4; take "
            "quantization_config out of the file and say weight_dtype in a preset that extends it"
        )
    if _leaves_attention(quantized):
        plain = _plain(fields)
        assumed = fields.notes.get("weight_dtype")
        fields.note("weight_dtype", f"{assumed or plain}: what the quantisation leaves as it is")
        fields.note("expert_dtype", f"{name}: the experts, which alone are quantised")
        return {"weight_dtype": plain, "expert_dtype": name}
    return {"weight_dtype": name} | _stated_experts(fields)


def _plain(fields: Fields) -> str:
    stated = fields.raw("torch_dtype", "dtype")
    name = _PLAIN.get(str(stated).removeprefix("torch."))
    if name is None:
        known = "not stated" if stated is None else f"{repr(stated)[:40]}, which is not known"
        fields.note("weight_dtype", f"torch_dtype is {known}: taken as bf16")
    return name or "bf16"


def _stated_experts(fields: Fields) -> dict[str, Any]:
    """DeepSeek-V4 states the format of its experts beside the quantisation of the rest."""
    stated = fields.raw("expert_dtype")
    if stated is None:
        return {}
    if stated == "fp4":
        fields.note("expert_dtype", "fp4 with one scale byte per 32 elements")
        return {"expert_dtype": "mxfp4"}
    name = _NAMED.get(str(stated), _PLAIN.get(str(stated)))
    if name is None:
        raise fields.refuse(f"expert_dtype is {stated!r}, expected a number format such as fp4 or fp8")
    return {"expert_dtype": name}


def _format(quantized: Mapping[str, Any]) -> str | None:
    method = str(quantized.get("quant_method", "")).lower()
    for word in (quantized.get("quant_algo"), quantized.get("moe_quant_algo"), method):
        if (name := _NAMED.get(str(word).lower())) is not None:
            return name
    if method in _TOOLS:
        bits = quantized.get("bits", quantized.get("w_bit", 4))
        return {4: "int4", 8: "int8"}.get(bits) if type(bits) is int else None
    packed = str(quantized.get("format", "")).lower()
    for word in ("nvfp4", "mxfp4"):
        if packed.startswith(word):
            return word
    return _of_group(quantized.get("config_groups"))


def _of_group(groups: Any) -> str | None:
    """Compressed tensors: the weights of the first group."""
    if not isinstance(groups, Mapping) or not groups:
        return None
    group = next(iter(groups.values()))
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        return None
    bits = weights.get("num_bits")
    return _BITS.get((str(weights.get("type", "int")), bits)) if type(bits) is int else None


def _leaves_attention(quantized: Mapping[str, Any]) -> bool:
    """Whether attention is among the modules that stay as they are, so that only experts are quantised."""
    left = quantized.get("modules_to_not_convert") or quantized.get("ignore") or quantized.get("exclude_modules")
    return isinstance(left, list) and any("attn" in str(name) or "attention" in str(name) for name in left)
