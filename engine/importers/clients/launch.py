"""What the command line of an engine says about it: flags as identity fields, nothing inferred from names."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from engine.identity import attention_family

Fact = tuple[str, str, Any]

# Flag (without dashes, underscores for dashes), and the identity field it sets, for either engine.
_VLLM: dict[str, tuple[str, str]] = {
    "tensor_parallel_size": ("topology", "tp"),
    "tp": ("topology", "tp"),
    "pipeline_parallel_size": ("topology", "pp"),
    "pp": ("topology", "pp"),
    "data_parallel_size": ("topology", "attention_dp"),
    "dp": ("topology", "attention_dp"),
    "decode_context_parallel_size": ("topology", "context_parallel"),
    "gpu_memory_utilization": ("capacity", "memory_fraction"),
    "block_size": ("capacity", "block_size"),
    "max_model_len": ("capacity", "max_model_len"),
    "num_gpu_blocks_override": ("capacity", "kv_blocks"),
    "enable_prefix_caching": ("capacity", "prefix_caching"),
    "prefix_caching_hash_algo": ("capacity", "hash_algorithm"),
    "max_num_seqs": ("scheduler", "max_num_seqs"),
    "max_num_batched_tokens": ("scheduler", "max_num_batched_tokens"),
    "enable_chunked_prefill": ("scheduler", "chunked_prefill"),
    "long_prefill_token_threshold": ("scheduler", "long_prefill_token_threshold"),
    "scheduling_policy": ("scheduler", "policy"),
    "async_scheduling": ("scheduler", "async_scheduling"),
    "kv_cache_dtype": ("model", "kv_dtype"),
    "revision": ("model", "revision"),
    "attention_backend": ("kernels", "attention_backend"),
    "seed": ("source", "seed"),
    "tokenizer": ("tokenizer", "name"),
}
_SGLANG: dict[str, tuple[str, str]] = {
    "tp": ("topology", "tp"),
    "tp_size": ("topology", "tp"),
    "tensor_parallel_size": ("topology", "tp"),
    "pp_size": ("topology", "pp"),
    "dp": ("topology", "attention_dp"),
    "dp_size": ("topology", "attention_dp"),
    "ep": ("topology", "ep"),
    "ep_size": ("topology", "ep"),
    "mem_fraction_static": ("capacity", "memory_fraction"),
    "page_size": ("capacity", "block_size"),
    "context_length": ("capacity", "max_model_len"),
    "max_running_requests": ("scheduler", "max_num_seqs"),
    "chunked_prefill_size": ("scheduler", "max_num_batched_tokens"),
    "schedule_policy": ("scheduler", "policy"),
    "kv_cache_dtype": ("model", "kv_dtype"),
    "revision": ("model", "revision"),
    "attention_backend": ("kernels", "attention_backend"),
    "random_seed": ("source", "seed"),
    "speculative_algorithm": ("speculation", "method"),
    "speculative_num_draft_tokens": ("speculation", "draft_tokens"),
    "tokenizer_path": ("tokenizer", "name"),
}
_SECRET = ("key", "token", "password", "secret")
_PLACES = ("host", "port", "uvicorn_log_level", "download_dir", "log_file")


def launch_facts(command: str) -> list[Fact]:
    """Identity fields (group, field, value) from a launch command of vLLM or SGLang; empty for any other.

    Values of flags that carry secrets or name a place of the machine are not among the launch arguments.
    """
    words = _words(command)
    engine = _engine(words)
    if engine is None:
        return []
    given = dict(_flags(words))
    known = _VLLM if engine == "vllm" else _SGLANG
    facts: list[Fact] = [("source", "engine", engine), ("source", "launch", _kept(given))]
    facts += [(*known[flag], value) for flag, value in given.items() if flag in known]
    model = given.get("served_model_name") or given.get("model") or given.get("model_path") or _positional(words)
    facts.append(("model", "name", model if isinstance(model, str) else None))
    backend = given.get("attention_backend")
    facts.append(("kernels", "attention_family", attention_family(backend) if isinstance(backend, str) else None))
    if engine == "sglang" and given.get("disable_radix_cache") is True:
        facts.append(("capacity", "prefix_caching", False))
    if given.get("no_enable_prefix_caching") is True:
        facts.append(("capacity", "prefix_caching", False))
    if given.get("enforce_eager") is True or given.get("disable_cuda_graph") is True:
        facts.append(("kernels", "graph_mode", "eager"))
    return facts


def _words(command: str) -> list[str]:
    text = command.replace("\\\n", " ").replace("\n", " ")
    try:
        return shlex.split(text)
    except ValueError:  # a quote that is not closed
        return text.split()


def _engine(words: list[str]) -> str | None:
    for word, following in pairwise([*words, ""]):
        base = word.rpartition("/")[2]
        if base in ("vllm", "sglang") and following == "serve":
            return base
        if base.startswith("vllm.entrypoints"):
            return "vllm"
        if base == "sglang.launch_server":
            return "sglang"
    return None


def _flags(words: list[str]) -> Iterator[tuple[str, Any]]:
    for place, word in enumerate(words):
        if not word.startswith("-") or word in ("-m", "-c"):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if equals:
            yield name.replace("-", "_"), _value(value)
            continue
        following = words[place + 1] if place + 1 < len(words) else "-"
        flag = following.startswith("-") and not _is_number(following)
        yield name.replace("-", "_"), True if flag else _value(following)


def _positional(words: list[str]) -> str | None:
    """The model that follows ``serve``."""
    after = words[words.index("serve") + 1 :] if "serve" in words else []
    return after[0] if after and not after[0].startswith("-") else None


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return int(text)
    except ValueError:
        pass
    return float(text) if _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        return abs(float(text)) != float("inf") and float(text) == float(text)
    except ValueError:
        return False


def _kept(given: dict[str, Any]) -> dict[str, Any]:
    secret = [flag for flag in given if any(part in flag.split("_") for part in _SECRET)]
    return {flag: value for flag, value in given.items() if flag not in _PLACES and flag not in secret}
