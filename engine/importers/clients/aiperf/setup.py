"""Identity of a run: the configuration of AIPerf, command lines, the server's record."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from engine.importers.clients.aiperf.summary import Summary, text_lines
from engine.importers.clients.aiperf.values import dig, mapping, plain, text
from engine.importers.clients.launch import Fact, launch_facts
from engine.intake import InputFile, json_document
from engine.intake.rows import number

_COMMAND_BYTES = 1 << 20


@dataclass(frozen=True)
class Setup:
    """The configuration in one shape, whatever generation wrote it. None is not said."""

    model: str | None = None
    tokenizer: str | None = None
    streaming: bool | None = None
    server_counts: bool | None = None
    trace: str | None = None
    trace_format: str | None = None
    trace_rows: int | None = None
    seed: int | None = None
    concurrency: int | None = None
    rate: float | None = None
    fixed_schedule: bool = False
    canceled_pct: float | None = None
    """Share of the requests that the client cancels on purpose, and after how long."""
    canceled_after_s: float | None = None
    requests: int | None = None
    duration_s: float | None = None
    grace_s: float | None = None
    warmup_requests: int | None = None
    idle_cap_s: float | None = None
    idle_cap_scope: str | None = None
    cuts: tuple[float, float] | None = None
    scenario: str | None = None
    agentic: bool = False
    failed_threshold: float | None = None
    sampling: Mapping[str, Any] | None = None
    known: bool = False
    """Whether there is a configuration at all."""


def setup_of(config: Mapping[str, Any], summary: Summary | None = None) -> Setup:
    """Read either generation of the configuration: the flat one up to 0.8, the phased one from 0.9."""
    if not config:
        return Setup()
    metadata = mapping(summary.document.get("metadata")) if summary else {}
    found = _phased(config) if isinstance(config.get("phases"), list) else _flat(config)
    seed = dig(summary.document, "run_info", "random_seed") if summary else None
    scenario = text(config.get("scenario")) or text(metadata.get("scenario"))
    dataset = mapping(metadata.get("dataset"))
    trace = text(dataset.get("hf_dataset_name")) or found.pop("trace", None)
    rows = _int(dataset.get("num_dataset_entries")) or found.pop("trace_rows", None)
    agentic = found.pop("agentic", False) or "agentx" in (scenario or "")
    found.pop("trace", None), found.pop("trace_rows", None)
    found["seed"] = _int(seed) if _int(seed) is not None else found.get("seed")
    return Setup(**found, trace=trace, trace_rows=rows, scenario=scenario, agentic=agentic, known=True)


def _phased(config: Mapping[str, Any]) -> dict[str, Any]:
    phases = [phase for phase in config["phases"] if isinstance(phase, dict)]
    warmup = next((phase for phase in phases if phase.get("kind") == "warmup"), {})
    main = next((phase for phase in phases if phase.get("kind") != "warmup"), {})
    dataset = dig(config, "datasets", 0)
    endpoint = mapping(config.get("endpoint"))
    return {
        "model": text(dig(config, "models", "items", 0, "name")),
        "tokenizer": text(dig(config, "tokenizer", "name")),
        "streaming": _bool(endpoint.get("streaming")),
        "server_counts": _bool(endpoint.get("use_server_token_count")) or False,
        "trace": _base(dig(dataset, "path")) or text(dig(dataset, "hf_dataset_name")) or text(dig(dataset, "type")),
        "trace_format": text(dig(dataset, "format")) or text(dig(dataset, "type")),
        "trace_rows": _int(dig(dataset, "entries")),
        "seed": _int(dig(dataset, "random_seed")),
        "concurrency": _int(main.get("concurrency")),
        "rate": number(main.get("request_rate") or main.get("rate")),
        "fixed_schedule": main.get("type") == "fixed_schedule",
        "canceled_pct": number(dig(main, "cancellation", "rate")),
        "canceled_after_s": number(dig(main, "cancellation", "delay")),
        "requests": _int(main.get("requests")),
        "duration_s": number(main.get("duration")),
        "grace_s": number(main.get("grace_period")),
        "warmup_requests": _int(warmup.get("requests")),
        "idle_cap_s": number(main.get("system_idle_gap_cap_seconds")),
        "idle_cap_scope": "system",
        "cuts": _pair(main.get("trajectory_start_min_ratio"), main.get("trajectory_start_max_ratio")),
        "agentic": main.get("timing_mode") == "agentic_replay",
        "failed_threshold": number(main.get("failed_request_threshold")),
        "sampling": mapping(endpoint.get("extra")) or None,
    }


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    load, source = mapping(config.get("loadgen")), mapping(config.get("input"))
    endpoint = mapping(config.get("endpoint"))
    dataset = text(source.get("public_dataset")) or _base(source.get("file"))
    return {
        "model": text(dig(endpoint, "model_names", 0)),
        "tokenizer": text(dig(config, "tokenizer", "name")),
        "streaming": _bool(endpoint.get("streaming")),
        "server_counts": _bool(endpoint.get("use_server_token_count")) or False,
        "trace": dataset,
        "trace_format": text(source.get("custom_dataset_type")) or text(source.get("detected_loader")),
        "trace_rows": _int(dig(source, "conversation", "num_dataset_entries")),
        "seed": _int(source.get("random_seed")),
        "concurrency": _int(load.get("concurrency")),
        "rate": number(load.get("request_rate")),
        "fixed_schedule": source.get("fixed_schedule") is True,
        "canceled_pct": number(load.get("request_cancellation_rate")),
        "canceled_after_s": number(load.get("request_cancellation_delay")),
        "requests": _int(load.get("request_count")),
        "duration_s": number(load.get("benchmark_duration")),
        "grace_s": number(load.get("benchmark_grace_period")),
        "warmup_requests": _int(load.get("warmup_request_count")),
        "idle_cap_s": number(load.get("trace_idle_gap_cap_seconds")),
        "idle_cap_scope": "trace",
        "cuts": _pair(load.get("trajectory_start_min_ratio"), load.get("trajectory_start_max_ratio")),
        "agentic": "trajectory_start_min_ratio" in load,
        "failed_threshold": number(load.get("failed_request_threshold")),
        "sampling": mapping(source.get("extra_inputs_parsed")) or None,
    }


def setup_facts(setup: Setup) -> list[Fact]:
    """Identity fields of a configuration."""
    agentic = "agentic replay: the last request before the cut of each stream, full history and one output token"
    counted = None if setup.warmup_requests is None else f"{setup.warmup_requests} requests"
    cap = None if setup.idle_cap_s is None else f"{setup.idle_cap_s:g} s per {setup.idle_cap_scope}"
    return [
        ("model", "name", setup.model),
        ("tokenizer", "name", _base(setup.tokenizer)),
        ("trace", "name", setup.trace),
        ("trace", "format", setup.trace_format),
        ("trace", "rows", setup.trace_rows),
        ("client", "seed", setup.seed),
        ("client", "loop", _loop(setup)),
        ("client", "lanes", setup.concurrency),
        ("client", "trajectory_cuts", None if setup.cuts is None else list(setup.cuts)),
        ("client", "idle_caps", cap),
        ("client", "duration_s", setup.duration_s),
        ("client", "grace_s", setup.grace_s),
        ("client", "warmup_policy", agentic if setup.agentic else counted),
        ("client", "streaming", setup.streaming),
        ("client", "sampling", plain(setup.sampling)),
    ]


def _loop(setup: Setup) -> str | None:
    """What decides when a request is sent, and which ones the client itself breaks off."""
    if setup.fixed_schedule:
        loop = "open, at the times of the trace"
    elif setup.rate is not None:
        loop = f"open, {setup.rate:g} requests/s"
    elif setup.concurrency is not None:
        loop = "closed"
    else:
        return None
    if not setup.canceled_pct:
        return loop
    after = "" if setup.canceled_after_s is None else f" {setup.canceled_after_s:g} s after sending"
    return f"{loop}; {setup.canceled_pct:g} % of the requests are canceled{after}"


def command_facts(file: InputFile, engine: bool) -> list[Fact]:
    """Identity fields from a file that holds a command line; flags of the client are the configuration's matter."""
    command = "\n".join(text_lines(file))[:_COMMAND_BYTES]
    return launch_facts(command) if engine else []


def config_of_command(file: InputFile) -> dict[str, Any]:
    """What the client's command line says, as a flat configuration: the stand-in where no summary holds one."""
    try:
        words = shlex.split("\n".join(text_lines(file))[:_COMMAND_BYTES].replace("\\\n", " "))
    except ValueError:
        return {}
    given = {
        word: (following if not following.startswith("--") else True)
        for word, following in pairwise([*words, "--"])
        if word.startswith("--")
    }
    numbers = {flag: _number(value) for flag, value in given.items()}
    return {
        "endpoint": {
            "model_names": [given.get("--model")],
            "streaming": "--streaming" in given,
            "use_server_token_count": "--use-server-token-count" in given,
        },
        "input": {
            "public_dataset": given.get("--public-dataset"),
            "file": given.get("--input-file"),
            "custom_dataset_type": given.get("--custom-dataset-type"),
            "random_seed": numbers.get("--random-seed"),
            "conversation": {"num_dataset_entries": numbers.get("--num-dataset-entries")},
        },
        "tokenizer": {"name": given.get("--tokenizer")},
        "scenario": given.get("--scenario"),
        "loadgen": {
            "concurrency": numbers.get("--concurrency"),
            "request_rate": numbers.get("--request-rate"),
            "request_count": numbers.get("--request-count"),
            "benchmark_duration": numbers.get("--benchmark-duration"),
            "benchmark_grace_period": numbers.get("--benchmark-grace-period"),
            "warmup_request_count": numbers.get("--warmup-request-count"),
            "failed_request_threshold": numbers.get("--failed-request-threshold"),
        },
    }


_RECORD = (
    ("source", "engine", ("engine", "name")),
    ("source", "distribution", ("engine", "distribution")),
    ("source", "version", ("engine", "version")),
    ("model", "config_digest", ("model", "config.json")),
    ("tokenizer", "digest", ("model", "tokenizer.json")),
    ("tokenizer", "config_digest", ("model", "tokenizer_config.json")),
    ("trace", "digest", ("workload", "sha256_concat")),
    ("trace", "format", ("workload", "format")),
    ("capacity", "block_size", ("scheduler", "block_size")),
    ("capacity", "kv_blocks", ("scheduler", "num_kv_blocks")),
    ("capacity", "usable_kv_blocks", ("scheduler", "num_usable_kv_blocks")),
    ("capacity", "prefix_caching", ("scheduler", "prefix_caching")),
    ("capacity", "hash_algorithm", ("scheduler", "prefix_caching_hash_algo")),
    ("capacity", "max_model_len", ("scheduler", "max_model_len")),
    ("scheduler", "max_num_seqs", ("scheduler", "max_num_seqs")),
    ("scheduler", "max_num_batched_tokens", ("scheduler", "max_num_batched_tokens")),
    ("scheduler", "chunked_prefill", ("scheduler", "enable_chunked_prefill")),
    ("scheduler", "long_prefill_token_threshold", ("scheduler", "long_prefill_token_threshold")),
    ("scheduler", "reserve_full_prompt", ("scheduler", "scheduler_reserve_full_isl")),
    ("scheduler", "policy", ("scheduler", "policy")),
    ("scheduler", "watermark", ("scheduler", "watermark")),
    ("scheduler", "async_scheduling", ("scheduler", "async_scheduling")),
    ("scheduler", "class_name", ("scheduler", "scheduler")),
)


def record_facts(file: InputFile) -> list[Fact]:
    """Identity fields from the server's record beside the client's files (``identity.json``)."""
    document = json_document(file)
    values = [(group, name, dig(document, *path)) for group, name, path in _RECORD]
    return [(group, name, plain(value)) for group, name, value in values if not isinstance(value, dict | list)]


def _int(value: Any) -> int | None:
    found = number(value)
    return int(found) if found is not None and found.is_integer() else None


def _number(value: Any) -> float | None:
    try:
        return number(float(value)) if isinstance(value, str) else None
    except ValueError:
        return None


def _bool(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _base(value: Any) -> str | None:
    """A path's last part: where a file lay is no part of what it is. Names of models keep their owner."""
    found = text(value)
    if found is None or not found.startswith(("/", "./", "../", "~")):
        return found
    return found.rstrip("/").rpartition("/")[2] or None


def _pair(low: Any, high: Any) -> tuple[float, float] | None:
    first, second = number(low), number(high)
    return None if first is None or second is None else (first, second)
