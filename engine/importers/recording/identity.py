"""The identity record of a recording, read from its ``identity.json`` and computed from its rows.

Ports, paths, addresses and the operating system of the recording machine stay behind.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from engine.identity import FIELDS, NOT_APPLICABLE, Identity, attention_family
from engine.traces.tree import Trace

_FILE = "identity.json"
OWN_CLIENT = "gapscope record"
"""What the load client of :mod:`engine.recording` calls itself."""

# (group, field, where in identity.json)
_COPIED = (
    ("source", "engine", "engine.name"),
    ("source", "version", "engine.version"),
    ("source", "distribution", "engine.distribution"),
    ("source", "seed", "workload.engine_seed"),
    ("model", "name", "model.name"),
    ("model", "config_digest", "model.config.json"),
    ("model", "weights_dtype", "engine.dtype"),
    ("model", "weights_origin", "engine.load_format"),
    ("tokenizer", "name", "model.name"),
    ("tokenizer", "digest", "model.tokenizer.json"),
    ("tokenizer", "config_digest", "model.tokenizer_config.json"),
    ("hardware", "part", "cpu.model_name"),
    ("hardware", "placement", "placement"),
    ("kernels", "attention_backend", "engine.attention_backend"),
    ("kernels", "model_runner", "engine.model_runner"),
    ("capacity", "kv_blocks", "scheduler.num_kv_blocks"),
    ("capacity", "usable_kv_blocks", "scheduler.num_usable_kv_blocks"),
    ("capacity", "block_size", "scheduler.block_size"),
    ("capacity", "prefix_caching", "scheduler.prefix_caching"),
    ("capacity", "hash_algorithm", "scheduler.prefix_caching_hash_algo"),
    ("capacity", "kv_bytes_per_token", "kv_bytes_per_token"),
    ("capacity", "max_model_len", "scheduler.max_model_len"),
    ("scheduler", "max_num_seqs", "scheduler.max_num_seqs"),
    ("scheduler", "max_num_batched_tokens", "scheduler.max_num_batched_tokens"),
    ("scheduler", "chunked_prefill", "scheduler.enable_chunked_prefill"),
    ("scheduler", "long_prefill_token_threshold", "scheduler.long_prefill_token_threshold"),
    ("scheduler", "reserve_full_prompt", "scheduler.scheduler_reserve_full_isl"),
    ("scheduler", "policy", "scheduler.policy"),
    ("scheduler", "watermark", "scheduler.watermark"),
    ("scheduler", "async_scheduling", "scheduler.async_scheduling"),
    ("scheduler", "class_name", "scheduler.scheduler"),
    ("client", "generator", "client.name"),
    ("client", "version", "client.version"),
    ("client", "digest", "client.sha256"),
    ("client", "loop", "workload.loop"),
    ("client", "lanes", "workload.lanes"),
    ("client", "primer", "phases.prewarm"),
    ("client", "warmup_s", "phases.warmup_s"),
    ("client", "duration_s", "phases.duration_s"),
    ("client", "grace_s", "phases.grace_s"),
    ("client", "cancel", "phases.cancel"),
    ("client", "sampling", "workload.sampling"),
)

_FORMAT = "format of the recording"
_RUN_DEFINITIONS = {
    "first_token": "first chunk with visible text",
    "token_source": "server usage; for canceled requests the token ids that arrived",
    "tpot": "(last chunk - first chunk) / (output tokens - 1), unweighted over requests, undefined for one token",
    "itl": "gaps between chunks, pooled",
    "percentiles": "linear",
    "throughput_denominator": "successes of any phase that ended inside the profile window, over its length",
    "zero_output": "counted, no latency",
    "stream_errors": "status error, no latency",
}
_TELEMETRY = {
    "fpm_scope": "schedule() entered to update_from_output() returned",
    "clock": "one monotonic clock for client and engine; KV events carry the engine's wall clock",
    "missing_values": "null is not recorded; counters are always present",
}

# Of the launch arguments: numbers and switches, and these words. The rest may name paths or addresses.
_LAUNCH_WORDS = frozenset({"dtype", "load_format", "prefix_caching_hash_algo", "scheduler_cls", "kv_cache_dtype"})
_ARGUMENT = re.compile(r"'(\w+)': (?:'([^']*)'|(-?\d+(?:\.\d+)?)|(True|False))(?=[,}])")
# What the engine does unless an argument says otherwise.
_DEFAULTS = (
    ("speculative_config", "speculation", "method", "none"),
    ("tensor_parallel_size", "topology", "tp", 1),
    ("pipeline_parallel_size", "topology", "pp", 1),
    ("data_parallel_size", "topology", "attention_dp", 1),
)
_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def run_identity(record: Mapping[str, Any], fpm_schema: str | None, trace: Trace) -> Identity:
    """The identity of a recorded run; fields that the record does not have stay unknown."""
    identity = _served(record, fpm_schema)
    for field, text in _RUN_DEFINITIONS.items():
        identity.set("definitions", field, text, _FORMAT)
    if at(record, "client.name") == OWN_CLIENT:
        identity.set("definitions", "zero_output", "status error, no latency", f"{_FILE}: client.name")
    identity.set("client", "streaming", True, "requests.jsonl: one row per chunk")
    identity.set("client", "warmup_policy", "by time", f"{_FILE}: phases.warmup_s")
    stagger, assignment = at(record, "workload.lane_stagger_s"), at(record, "workload.lane_assignment")
    if isinstance(stagger, int | float):
        identity.set("client", "lane_stagger_ms", 1000.0 * stagger, f"{_FILE}: workload.lane_stagger_s")
    if isinstance(assignment, str):
        word = "strided" if "l, l+N, l+2N" in assignment else assignment
        identity.set("client", "lane_assignment", word, f"{_FILE}: workload.lane_assignment")
    if isinstance(at(record, "machine_load"), Mapping):
        load = {
            "cpu_busy": at(record, "machine_load.machine_cpu_busy_frac"),
            "cpu_steal": at(record, "machine_load.machine_cpu_steal_frac"),
            "load_average_before": at(record, "machine_load.load_before"),
            "load_average_after": at(record, "machine_load.load_after"),
        }
        identity.set("hardware", "load", load, f"{_FILE}: machine_load")
    if fpm_schema is not None:
        identity.set("telemetry", "kv_event_producer", "vLLM KV events, joined by batch number", "kv_events.jsonl.gz")
    knobs = at(record, "workload.knobs")
    for field, value in (knobs if isinstance(knobs, Mapping) else {}).items():
        if field in FIELDS["client"]:
            identity.set("client", field, value, f"{_FILE}: workload.knobs")
    identity.set("trace", "name", trace.name, "trace file")
    identity.set("trace", "format", trace.format, "trace file")
    identity.set("trace", "digest", trace.digest, f"computed; equals {_FILE}: workload.trace_sha256")
    turns = sum(len(talk.turns) for play in trace.plays for talk in play.conversations)
    identity.set("trace", "rows", turns, "trace file: turns")
    _set(identity, "trace", "seed", at(record, "workload.trace_seed"), f"{_FILE}: workload.trace_seed")
    return identity


def sweep_identity(record: Mapping[str, Any], fpm_schema: str | None) -> Identity:
    """The identity of a recorded sweep."""
    return _served(record, fpm_schema)


def scheduler_identity(record: Mapping[str, Any], source: str) -> Identity:
    """A scheduler's settings: ``record["scheduler"]`` has them under the names of ``identity.json``."""
    identity = Identity()
    for group, field, path in _COPIED:
        if path.startswith("scheduler."):
            _set(identity, group, field, at(record, path), source)
    return identity


def at(record: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path, None where there is none; keys may hold dots themselves."""
    if path in record:
        return record[path]
    head, _, rest = path.partition(".")
    inner = record.get(head)
    return at(inner, rest) if rest and isinstance(inner, Mapping) else None


def _served(record: Mapping[str, Any], fpm_schema: str | None) -> Identity:
    """What runs and sweeps have in common: engine, model, hardware, scheduler."""
    identity = Identity()
    for group, field, path in _COPIED:
        _set(identity, group, field, at(record, path), f"{_FILE}: {path}")
    if isinstance(at(record, "packages"), Mapping):
        packages = {**at(record, "packages"), "python": at(record, "python")}
        identity.set("source", "packages", packages, f"{_FILE}: packages")
    _set_kernels(identity, record)
    _set_model(identity, record)
    _set_launch(identity, at(record, "engine.non_default_args"))
    _set_settings(identity, record)
    if at(record, "engine.backend") == "cpu":
        for field in ("driver", "power_limit_w"):
            identity.set("hardware", field, NOT_APPLICABLE, f"{_FILE}: engine.backend is cpu")
    blocks, size = at(record, "scheduler.num_kv_blocks"), at(record, "scheduler.block_size")
    per_token = at(record, "kv_bytes_per_token")
    if blocks and size and per_token:
        source = "computed: KV blocks x block size x KV bytes per token"
        identity.set("capacity", "memory_kv_bytes", blocks * size * per_token, source)
    if fpm_schema is None:
        return identity
    one_scheduler = "fpm.jsonl.gz: one scheduler runs prefill and decode"
    identity.set("topology", "serving", "aggregated", one_scheduler)
    identity.set("topology", "replicas", 1, one_scheduler)
    for field, text in _TELEMETRY.items():
        identity.set("telemetry", field, text, _FORMAT)
    if moved := at(record, "clock.server_offset_s"):
        sure_ms = 1e3 * (at(record, "clock.server_offset_uncertainty_s") or 0.0)
        how = f"the engine's, moved by {moved:.6f} s (± {sure_ms:.3f} ms: {at(record, 'clock.server_offset_source')})"
        identity.set("telemetry", "clock", f"the client's monotonic clock; {how}", f"{_FILE}: clock")
    identity.set("telemetry", "fpm_producer", "subclass of the engine's scheduler", _FORMAT)
    _set(identity, "telemetry", "fpm_version", fpm_schema, "fpm.jsonl.gz: meta row")
    return identity


def _set(identity: Identity, group: str, field: str, value: Any, source: str) -> None:
    if value is not None:
        identity.set(group, field, value, source)


def _set_kernels(identity: Identity, record: Mapping[str, Any]) -> None:
    backend, eager = at(record, "engine.attention_backend"), at(record, "engine.enforce_eager")
    if isinstance(backend, str):
        identity.set("kernels", "attention_family", attention_family(backend), f"{_FILE}: engine.attention_backend")
    if eager is True:
        identity.set("kernels", "graph_mode", "eager", f"{_FILE}: engine.enforce_eager")


def _set_model(identity: Identity, record: Mapping[str, Any]) -> None:
    config = at(record, "model.config")
    if not isinstance(config, Mapping):
        return
    names = config.get("architectures")
    if isinstance(names, list) and names:
        identity.set("model", "architecture", names[0], f"{_FILE}: model.config.architectures")
    if not any("expert" in key for key in config):
        identity.set("model", "expert_dtype", NOT_APPLICABLE, f"{_FILE}: model.config has no experts")
    if "quantization_config" not in config:
        identity.set("model", "quantizer", "none", f"{_FILE}: model.config has no quantization_config")
    dtype, per_token = at(record, "engine.dtype"), at(record, "kv_bytes_per_token")
    parts = [config.get(key) for key in ("num_hidden_layers", "num_key_value_heads", "head_dim")]
    numbers = [p for p in parts if isinstance(p, int)]
    size = _DTYPE_BYTES.get(dtype)
    if size and len(numbers) == len(parts) and per_token == 2 * math.prod(numbers) * size:
        source = f"computed: kv_bytes_per_token is 2 x layers x KV heads x head size x {size}"
        identity.set("model", "kv_dtype", dtype, source)


def _set_launch(identity: Identity, arguments: Any) -> None:
    if not isinstance(arguments, str):
        return
    launch: dict[str, Any] = {}
    for name, word, number, switch in _ARGUMENT.findall(arguments):
        if word:
            if name in _LAUNCH_WORDS:
                launch[name] = word
        elif name != "port":
            launch[name] = switch == "True" if switch else float(number) if "." in number else int(number)
    source = f"{_FILE}: engine.non_default_args"
    identity.set("source", "launch", launch, source)
    for word, group, field, default in _DEFAULTS:
        if word not in arguments:
            identity.set(group, field, default, f"{source} (only non-default ones; {word} is not among them)")


def _set_settings(identity: Identity, record: Mapping[str, Any]) -> None:
    """What a recorder inside the engine read from its configuration."""
    settings = at(record, "engine.settings")
    if not isinstance(settings, Mapping):
        return
    source = f"{_FILE}: engine.settings, as the engine resolved them"
    identity.set("source", "launch", dict(settings), source)
    _set(identity, "source", "seed", at(record, "engine.settings.model_config.seed"), source)
    for word, group, field, default in _DEFAULTS:
        if word == "speculative_config":
            method = at(record, "engine.settings.speculative_config.method")
            identity.set(group, field, default if word not in settings else method, source)
        else:
            _set(identity, group, field, at(record, f"engine.settings.parallel_config.{word}"), source)
