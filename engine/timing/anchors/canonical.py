"""Spellings of one thing: dtypes, engines, speculation, graph modes and parts as they are compared."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from engine.deployment import Part, load_part, part_names
from engine.identity import NOT_APPLICABLE, attention_family

TOOLCHAINS = ("quark", "compressed-tensors", "modelopt", "torchao")
"""Names of quantizers, which say nothing of the format they wrote."""
_SPELLINGS = {
    "float32": "fp32",
    "float": "fp32",
    "f32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "fp8-e4m3": "fp8",
    "fp8-e5m2": "fp8",
    "fp8-e4m3fn": "fp8",
    "fp8-e4m3fnuz": "fp8",
    "float8-e4m3fn": "fp8",
    "float8-e4m3fnuz": "fp8",
    "float8-e5m2": "fp8",
}
_SILENT = ("", "none", "null", "auto", "unknown")
_NO_METHOD = ("none", "off", "no", "false", "null", "")
_METHODS = {"eagle": "mtp", "nextn": "mtp", "draft": "draft_model", "standalone": "draft_model"}
_PART_FORM = "-sxm"
_SAYS_NOTHING = re.compile(r"nvidia|amd|instinct|gpu|sxm\d?|oam|hbm\d?e?|nvl72")
"""Words of a device's name besides that of its part. Any other word (PCIe, NVL, MIG) makes it another part."""
_MEMORY = re.compile(r"(\d+)gi?b")
_MEMORY_APART = 0.1
"""By how much the memory in a name may differ from that of the part: it is told as sold or as reported."""


def text_of(value: Any) -> str | None:
    """A value as it is compared: trimmed lower-case text, 1 or 0, numbers without zeros; None where it says nothing."""
    if value is None or value == NOT_APPLICABLE:
        return None
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else str(round(value, 6))
    return str(value).strip().lower() or None


def dtype_of(value: Any) -> str | None:
    """A number format; None for nothing, for *auto*, and for the name of a quantizer."""
    word = text_of(value)
    if word is None or word in _SILENT:
        return None
    word = word.removeprefix("torch.").replace("_", "-")
    if any(word == tool or word.startswith(tool + "-") for tool in TOOLCHAINS):
        return None
    return _SPELLINGS.get(word, word)


def family_of(value: Any) -> str | None:
    """The family of an attention backend."""
    word = text_of(value)
    return None if word is None or word in _SILENT else attention_family(word)


def graph_of(value: Any) -> str | None:
    """``eager`` or ``graph``, from what is captured."""
    word = text_of(value)
    if word is None:
        return None
    return "eager" if word in ("none", "off", "no", "eager", "0") else "graph"


def speculation_of(method: Any, tokens: Any) -> str:
    """``off``, or ``spec:<drafts>`` (``spec`` where nobody says how many); ``method`` None means none."""
    if method is None or str(method).strip().lower() in _NO_METHOD:
        return "off"
    return f"spec:{int(tokens)}" if isinstance(tokens, (int, float)) and tokens else "spec"


def method_of(method: Any) -> str | None:
    """The drafter; engines call several of them by more than one name."""
    word = text_of(method)
    if word is None or word in _NO_METHOD:
        return None
    word = word.replace("-", "_").replace(" ", "_")
    return "mtp" if word.endswith("_mtp") else _METHODS.get(word, word)


def switches_of(value: Any) -> str | None:
    """Per-op switches as a sorted list of ``op=value``; ``default`` where there are none."""
    if value is None or value == NOT_APPLICABLE:
        return None
    if isinstance(value, Mapping):
        pairs = [f"{text_of(op)}={text_of(setting)}" for op, setting in value.items()]
    elif isinstance(value, (list, tuple)):
        pairs = [str(item).strip().lower() for item in value]
    else:
        pairs = [item.strip().lower() for item in str(value).split(",") if item.strip()]
    return ",".join(sorted(pairs)) or "default"


def model_key(name: Any) -> str | None:
    """The last segment of a model's name, letters and digits alone."""
    word = text_of(name)
    return None if word is None else re.sub(r"[^a-z0-9]", "", word.rstrip("/").rpartition("/")[2]) or None


def part_of(value: Any) -> str | None:
    """The packaged part that a device's name means, or its architecture, or the name itself: a part is never assumed.

    A name means a part if all that it says besides are vendor, form and memory of that very part.
    """
    word = text_of(value)
    if word is None or word in _SILENT:
        return None
    known, arches = _known_parts()
    if word in known or word in arches:
        return word
    words = [w for w in re.split(r"[^a-z0-9]+", word) if w and not _SAYS_NOTHING.fullmatch(w)]
    named = [w for w in words if not _MEMORY.fullmatch(w)]
    sizes = [int(found[1]) for w in words if (found := _MEMORY.fullmatch(w))]
    for name, part in known.items():
        if named == [name.removesuffix(_PART_FORM)] and all(_about(size, part.hbm_gib) for size in sizes):
            return name
    return word


def arch_of(part: str) -> str | None:
    """The architecture of a part as :func:`part_of` names it; None where nobody knows it."""
    known, arches = _known_parts()
    return known[part].arch if part in known else part if part in arches else None


def _about(size: int, gib: float | None) -> bool:
    return gib is not None and abs(size - gib) <= _MEMORY_APART * gib


@cache
def _known_parts() -> tuple[dict[str, Part], frozenset[str]]:
    known = {name: load_part(name) for name in part_names()}
    return known, frozenset(part.arch for part in known.values())
