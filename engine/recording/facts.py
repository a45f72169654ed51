"""The identity of a recording: what client, server and machine say of themselves."""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from engine.importers.recording.identity import OWN_CLIENT
from engine.recording.clocks import boot_id
from engine.recording.endpoint import Endpoint

_PROCESSOR = Path("/proc/cpuinfo")
_CLIENT = Path(__file__).parent / "client"
_SCHEDULER = (
    "scheduler",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_num_scheduled_tokens",
    "long_prefill_token_threshold",
    "enable_chunked_prefill",
    "scheduler_reserve_full_isl",
    "watermark",
    "policy",
    "async_scheduling",
    "prefix_caching",
    "prefix_caching_hash_algo",
    "block_size",
    "hash_block_size",
    "num_kv_blocks",
    "num_usable_kv_blocks",
    "max_model_len",
)


def client_facts() -> dict[str, Any]:
    """The client: its version and the digest of its code."""
    digest = hashlib.sha256()
    for path in sorted(_CLIENT.glob("*.py")):
        digest.update(path.read_bytes())
    return {
        "name": OWN_CLIENT,
        "version": _version("gapscope"),
        "sha256": digest.hexdigest(),
        "aiohttp": _version("aiohttp"),
    }


def endpoint_facts(endpoint: Endpoint) -> dict[str, Any]:
    """What the server's own addresses tell: engine, model, cache."""
    scheduler = {**endpoint.cache, "max_model_len": endpoint.max_model_len}
    return {
        "engine": {"name": endpoint.engine, "version": endpoint.version},
        "model": {"name": endpoint.model},
        "scheduler": {name: value for name, value in scheduler.items() if value is not None},
    }


def server_facts(identity: Mapping[str, Any], meta: Mapping[str, Any]) -> dict[str, Any]:
    """What the server's recorder tells, over what is in the identity already."""
    settings = meta.get("settings")
    settings = settings if isinstance(settings, Mapping) else {}
    model, cache = _group(settings, "model_config"), _group(settings, "cache_config")
    engine = {**identity.get("engine", {}), "name": "vllm", "version": meta.get("vllm_version")}
    engine |= {
        "dtype": str(model["dtype"]).removeprefix("torch.") if model.get("dtype") else None,
        "backend": meta.get("device"),
        "load_format": _group(settings, "load_config").get("load_format"),
        "enforce_eager": model.get("enforce_eager"),
        "kv_cache_dtype": cache.get("cache_dtype"),
        "settings": dict(settings),
    }
    facts: dict[str, Any] = {
        "engine": {name: value for name, value in engine.items() if value is not None},
        "scheduler": {name: meta[name] for name in _SCHEDULER if meta.get(name) is not None},
    }
    device = _device(meta)
    if device:
        facts["cpu"] = {"model_name": device}  # the format's word for whatever computes
    per_token = kv_bytes_per_token(meta)
    if per_token is not None:
        facts["kv_bytes_per_token"] = per_token
    return facts


def kv_bytes_per_token(meta: Mapping[str, Any]) -> int | None:
    """KV bytes of a token, from the bytes of the whole cache; None where they do not divide."""
    whole, blocks, size = meta.get("kv_cache_bytes"), meta.get("num_kv_blocks"), meta.get("block_size")
    if not (type(whole) is int and type(blocks) is int and type(size) is int and blocks * size > 0):
        return None
    return None if whole % (blocks * size) else whole // (blocks * size)


def _device(meta: Mapping[str, Any]) -> str | None:
    """What the passes run on; a processor's own name where the engine calls it just that and it is this machine's."""
    name: str | None = meta.get("device_name")
    if meta.get("device") == "cpu" and meta.get("boot_id") == boot_id():
        with suppress(OSError):
            for line in _PROCESSOR.read_text(encoding="utf-8").splitlines():
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    return name


def _group(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    group = settings.get(name)
    return group if isinstance(group, Mapping) else {}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
