"""Identity of a capture from the configuration files beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from engine.importers.clients.values import count, dig, mapping, text, truth
from engine.intake.rows import number

_EFFECTIVE = (
    ("source", "version", "vllm_version", text),
    ("model", "weights_dtype", "model_config.dtype", text),
    ("model", "kv_dtype", "cache_config.cache_dtype", text),
    ("capacity", "block_size", "cache_config.block_size", count),
    ("capacity", "prefix_caching", "cache_config.enable_prefix_caching", truth),
    ("capacity", "max_model_len", "model_config.max_model_len", count),
    ("kernels", "attention_backend", "attention_config.backend", text),
    ("kernels", "graph_mode", "compilation_config.cudagraph_mode", text),
    ("topology", "tp", "parallel_config.tensor_parallel_size", count),
    ("topology", "pp", "parallel_config.pipeline_parallel_size", count),
    ("topology", "attention_dp", "parallel_config.data_parallel_size", count),
    ("scheduler", "max_num_seqs", "scheduler_config.max_num_seqs", count),
    ("scheduler", "max_num_batched_tokens", "scheduler_config.max_num_batched_tokens", count),
)


def is_configuration(document: Any) -> bool:
    """Whether a document is the configuration that an engine ran with."""
    record = mapping(document)
    return "vllm_version" in effective(record) or record.get("artifact_kind") == "fpm"


def effective(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings by dotted name, wherever the document has them."""
    return mapping(record.get("effective_config")) or record


def facts(document: Any) -> Iterator[tuple[str, str, Any]]:
    """(group, field, value) of the identity; None where the document does not say."""
    record = mapping(document)
    settings = effective(record)
    if "vllm_version" in settings:
        yield "source", "engine", "vllm"
    for group, name, key, read in _EFFECTIVE:
        yield group, name, _word(read(settings.get(key)))
    asked = mapping(dig(record, "requested", "deployment_config"))
    yield "model", "name", text(asked.get("model"))
    yield "capacity", "memory_fraction", number(asked.get("gpu_memory_utilization"))
    arguments = dig(record, "requested", "engine_args")
    if isinstance(arguments, list) and all(isinstance(argument, str) for argument in arguments):
        yield "topology", "ep", "enabled" if "--enable-expert-parallel" in arguments else None
        yield "speculation", "method", None if "--speculative-config" in arguments else "none"


def _word(value: Any) -> Any:
    return value.removeprefix("torch.") if isinstance(value, str) else value
