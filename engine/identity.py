"""What a run is: every fact with where it was read, and the difference between two runs.

Unknown stays unknown: it is neither a match nor a mismatch. Fields that define the *regime* decide which kernels
run and what a pass costs; a pair that differs in one of them is not like for like.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

from engine.errors import GapscopeError

NOT_APPLICABLE = "not applicable"
"""Value of a field that a source rules out for its run (the driver of a CPU, say)."""

State = Literal["same", "differs", "unknown_left", "unknown_right", "unknown_both", "not_applicable"]


@dataclass(frozen=True, slots=True)
class Field:
    """A value and where it was read: file, header, command line, engine log, computed digest."""

    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """What is known about a field: its words, whether it defines the regime, and when it says nothing.

    ``not_if`` names a field of the same group and the values of it under which this one does not apply.
    """

    label: str
    regime: bool = False
    not_if: tuple[str, tuple[Any, ...]] | None = None


@dataclass(frozen=True, slots=True)
class FieldDiff:
    """One field on both sides. ``left`` and ``right`` are None where nobody recorded the field."""

    group: str
    field: str
    left: Field | None
    right: Field | None
    state: State
    regime: bool

    @property
    def label(self) -> str:
        """The field in words."""
        spec = FIELDS.get(self.group, {}).get(self.field)
        return spec.label if spec else self.field.replace("_", " ")


def _f(label: str, regime: bool = False, not_if: tuple[str, tuple[Any, ...]] | None = None) -> FieldSpec:
    return FieldSpec(label, regime, not_if)


_NO_SPECULATION = ("method", ("none", "off"))
_ONE_POOL = ("serving", ("aggregated",))

GROUPS: dict[str, str] = {
    "source": "Engine and its build",
    "model": "Model",
    "tokenizer": "Tokenizer",
    "trace": "Trace",
    "hardware": "Hardware",
    "topology": "Topology",
    "speculation": "Speculation",
    "kernels": "Kernels",
    "capacity": "KV capacity and memory",
    "scheduler": "Scheduler",
    "client": "Client",
    "telemetry": "Telemetry",
    "definitions": "Definitions of published numbers",
    "timing": "Timing model of a replay",
}

REPLAY_ONLY = frozenset({"timing"})
"""Groups that a measured run cannot have: they say nothing unless both sides have them."""

# Where a fact is a setting of a replay, the field has the name of the knob (engine.knobs).
FIELDS: dict[str, dict[str, FieldSpec]] = {
    "source": {
        "engine": _f("engine", regime=True),
        "version": _f("engine version", regime=True),
        "commit": _f("engine commit"),
        "distribution": _f("distribution or package"),
        "packages": _f("versions of the packages below it"),
        "native_digests": _f("digests of native libraries"),
        "image_digest": _f("container image digest"),
        "overlay_files": _f("files laid over the image"),
        "patches": _f("patches"),
        "launch": _f("launch arguments"),
        "seed": _f("engine seed"),
    },
    "model": {
        "name": _f("model", regime=True),
        "revision": _f("revision"),
        "config_digest": _f("digest of config.json"),
        "architecture": _f("architecture"),
        "weights_dtype": _f("weights dtype as resolved", regime=True),
        "quantizer": _f("quantizer tool"),
        "kv_dtype": _f("KV dtype", regime=True),
        "expert_dtype": _f("expert dtype", regime=True),
        "weights_origin": _f("origin of the weights"),
        "draft_model": _f("draft model"),
    },
    "tokenizer": {
        "name": _f("tokenizer"),
        "revision": _f("tokenizer revision"),
        "digest": _f("digest of tokenizer.json"),
        "config_digest": _f("digest of tokenizer_config.json"),
    },
    "trace": {
        "name": _f("trace"),
        "format": _f("format"),
        "revision": _f("trace revision"),
        "digest": _f("file digest"),
        "rows": _f("rows"),
        "seed": _f("seed of the generator"),
        "nested_timestamps": _f("times inside subagents, as asked"),
    },
    "hardware": {
        "part": _f("GPU part (or processor)", regime=True),
        "count": _f("count"),
        "memory_bytes": _f("memory of one part"),
        "driver": _f("driver"),
        "power_limit_w": _f("power limit"),
        "host": _f("host processor"),
        "os": _f("operating system"),
        "placement": _f("pinning and priority"),
        "load": _f("other load on the machine"),
    },
    "topology": {
        "tp": _f("tensor parallel"),
        "pp": _f("pipeline parallel"),
        "ep": _f("expert parallel"),
        "attention_dp": _f("attention data parallel"),
        "context_parallel": _f("context parallel"),
        "replicas": _f("replicas"),
        "serving": _f("aggregated or prefill/decode"),
        "prefill_workers": _f("prefill workers", not_if=_ONE_POOL),
        "decode_workers": _f("decode workers", not_if=_ONE_POOL),
        "kv_transfer": _f("KV transfer", not_if=_ONE_POOL),
        "router": _f("router policy"),
    },
    "speculation": {
        "method": _f("method", regime=True),
        "draft_tokens": _f("draft tokens", regime=True, not_if=_NO_SPECULATION),
        "acceptance_definition": _f("definition of acceptance", not_if=_NO_SPECULATION),
        "acceptance": _f("acceptance", not_if=_NO_SPECULATION),
    },
    "kernels": {
        "attention_family": _f("attention family", regime=True),
        "attention_backend": _f("attention backend as named"),
        "graph_mode": _f("graph mode", regime=True),
        "capture_sizes": _f("captured batch sizes", not_if=("graph_mode", ("eager", "none"))),
        "op_switches": _f("per-op kernel switches", regime=True),
        "model_runner": _f("model runner"),
    },
    "capacity": {
        "kv_blocks": _f("allocated KV blocks"),
        "usable_kv_blocks": _f("usable KV blocks"),
        "block_size": _f("tokens per block"),
        "prefix_caching": _f("prefix caching"),
        "eviction": _f("what is evicted first"),
        "cache_blocks": _f("blocks of a prefix cache counted apart"),
        "host_kv_blocks": _f("KV blocks in host memory"),
        "host_link_gb_s": _f("bandwidth to host memory"),
        "hash_algorithm": _f("block hash"),
        "memory_fraction": _f("memory fraction"),
        "kv_bytes_per_token": _f("KV bytes per token"),
        "max_model_len": _f("longest context"),
        "memory_weights_bytes": _f("memory: weights"),
        "memory_kv_bytes": _f("memory: KV"),
        "memory_activations_bytes": _f("memory: activations"),
        "memory_graphs_bytes": _f("memory: graphs"),
    },
    "scheduler": {
        "max_num_seqs": _f("running requests at most"),
        "max_num_batched_tokens": _f("token budget of a pass"),
        "chunked_prefill": _f("chunked prefill"),
        "long_prefill_token_threshold": _f("longest chunk of one prompt"),
        "reserve_full_prompt": _f("admit whole prompts only"),
        "max_prefill_tokens": _f("prompt tokens of a pass beyond which nobody is admitted to it"),
        "chunked_prefill_size": _f("prompt tokens of a pass"),
        "mixed_chunk": _f("decodes in passes with prompts"),
        "clip_max_new_tokens": _f("output tokens that admission holds room for"),
        "schedule_conservativeness": _f("factor on the outputs to come that admission holds room for"),
        "reservation": _f("blocks held for a request from its admission on"),
        "policy": _f("policy"),
        "preemption": _f("preemption"),
        "watermark": _f("watermark"),
        "prefill_interval": _f("prefill schedule interval"),
        "async_scheduling": _f("async scheduling"),
        "class_name": _f("scheduler class"),
        "core": _f("replay core"),
    },
    "client": {
        "generator": _f("load generator"),
        "version": _f("load generator version"),
        "digest": _f("load generator digest"),
        "seed": _f("seed"),
        "loop": _f("closed or open loop"),
        "lanes": _f("lanes"),
        "lane_assignment": _f("plays of a lane"),
        "lane_stagger_ms": _f("start stagger"),
        "arrival_rate": _f("plays per second"),
        "client_seed": _f("seed of arrivals and cuts"),
        "warmup_requests": _f("warm-up requests per lane"),
        "idle_cap": _f("how idle times are shortened"),
        "tree_idle_cap_s": _f("idle cap of a play"),
        "global_idle_cap_s": _f("idle cap of the client"),
        "trajectory_cuts": _f("trajectory cuts"),
        "corpus_cursor": _f("corpus cursor"),
        "wrap": _f("start the trace again"),
        "cache_bust": _f("content of a repeated play"),
        "think_scale": _f("factor on think times"),
        "primer": _f("what ran before the warm-up"),
        "warmup_policy": _f("warm-up policy"),
        "warmup_s": _f("warm-up"),
        "duration_s": _f("profile length"),
        "idle_caps": _f("idle caps"),
        "grace_s": _f("grace"),
        "drain": _f("drain"),
        "cancel": _f("what happens to requests after the grace"),
        "streaming": _f("streaming"),
        "sampling": _f("sampling"),
        "dispatch_lag_ms": _f("timer to dispatch"),
        "request_latency_ms": _f("dispatch to queue"),
        "response_latency_ms": _f("pass end to chunk"),
        "host_model": _f("host model"),
        "host_request_ms": _f("host, per request"),
        "host_prompt_token_us": _f("host, per new prompt token"),
        "host_prompt_cap_ms": _f("host, most for a prompt"),
        "host_chunk_ms": _f("host, per token"),
    },
    "telemetry": {
        "fpm_producer": _f("FPM producer"),
        "fpm_version": _f("FPM version"),
        "fpm_scope": _f("what a pass duration spans"),
        "recorder_own_us": _f("what the recorder took of a pass, in microseconds"),
        "kv_event_producer": _f("KV-event producer"),
        "missing_values": _f("meaning of missing values"),
        "clock": _f("clock"),
    },
    "definitions": {
        "first_token": _f("first-token rule"),
        "end_of_latency": _f("end-of-latency rule"),
        "token_source": _f("source of token counts"),
        "tpot": _f("TPOT"),
        "itl": _f("ITL"),
        "percentiles": _f("percentile rule"),
        "throughput_denominator": _f("throughput denominator"),
        "zero_output": _f("requests without output"),
        "stream_errors": _f("errors inside a stream"),
    },
    "timing": {
        "kind": _f("timing model"),
        "model_digest": _f("digest of the timing model"),
        "data_digests": _f("digests of its data"),
        "fitted_on": _f("runs and phases it was fitted on"),
        "regime": _f("regime of its data"),
        "calibrated": _f("parts that rest on measurement"),
        "composition": _f("composition of mixed passes"),
        "on_refused": _f("refused queries"),
        "pass_scale": _f("factor on pass durations"),
        "between_passes_ns": _f("host time between passes"),
        "corrections": _f("corrections"),
        "parameters": _f("parameters"),
        "hold_out": _f("hold-out error"),
        "deployment": _f("deployment that passes are priced for"),
        "deployment_digest": _f("digest of the figures of that deployment"),
        "fallback": _f("what answers refused queries"),
    },
}


class Identity:
    """The identity record of one run: ``{group: {field: Field}}``. Fields that nobody set are unknown."""

    def __init__(self, fields: Mapping[str, Mapping[str, Field]] | None = None) -> None:
        self._fields: dict[str, dict[str, Field]] = {g: dict(f) for g, f in (fields or {}).items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"Identity({sum(len(f) for f in self._fields.values())} fields)"

    def set(self, group: str, field: str, value: Any, source: str) -> None:
        """Record a fact. ``value`` None means that the source was read and does not say.

        Raises:
            ValueError: a group or field that :data:`FIELDS` does not list, a value that is not JSON, or no source.
        """
        if group not in FIELDS or field not in FIELDS[group]:
            near = (
                get_close_matches(field, FIELDS[group], n=1)
                if group in FIELDS
                else get_close_matches(group, GROUPS, n=1)
            )
            raise ValueError(f"identity has no field {group}.{field}" + (f"; nearest: {near[0]}" if near else ""))
        if not source:
            raise ValueError(f"identity {group}.{field}: every value needs a source")
        self._fields.setdefault(group, {})[field] = Field(_plain(value, f"{group}.{field}"), source)

    def get(self, group: str, field: str) -> Field | None:
        """The field, or None where nobody recorded it."""
        return self._fields.get(group, {}).get(field)

    def value(self, group: str, field: str) -> Any | None:
        """The value, or None where it is unknown."""
        found = self.get(group, field)
        return None if found is None else found.value

    def __iter__(self) -> Iterator[tuple[str, str, Field]]:
        """Every recorded field, in the order of the table; those of a newer version come last in their group."""
        for group, field in _names(self):
            found = self.get(group, field)
            if found is not None:
                yield group, field, found

    def copy(self) -> Identity:
        """An identity of its own with the same fields."""
        return Identity(self._fields)

    def to_json(self) -> dict[str, dict[str, dict[str, Any]]]:
        """``{group: {field: {value, source}}}``."""
        record: dict[str, dict[str, dict[str, Any]]] = {}
        for group, name, field in self:
            record.setdefault(group, {})[name] = {"value": field.value, "source": field.source}
        return record

    @classmethod
    def from_json(cls, record: Any) -> Identity:
        """The identity in a record; groups and fields that this version does not know are kept.

        Raises:
            GapscopeError: not the shape that :meth:`to_json` writes.
        """
        fields: dict[str, dict[str, Field]] = {}
        if not isinstance(record, dict):
            raise GapscopeError(f"Identity record is {type(record).__name__}, expected an object of groups.")
        for group, members in record.items():
            if not isinstance(members, dict):
                raise GapscopeError(
                    f"Identity group {group!r} is {type(members).__name__}, expected an object of fields."
                )
            for name, entry in members.items():
                if not isinstance(entry, dict) or "value" not in entry or not isinstance(entry.get("source"), str):
                    raise GapscopeError(f"Identity field {group}.{name} is {entry!r:.80}, expected {{value, source}}.")
                fields.setdefault(group, {})[name] = Field(entry["value"], entry["source"])
        return cls(fields)


def diff(left: Identity, right: Identity) -> list[FieldDiff]:
    """Every field of the table, and every other that either side has, with its state."""
    return [
        FieldDiff(
            group,
            name,
            left.get(group, name),
            right.get(group, name),
            _state(left, right, group, name),
            _regime(group, name),
        )
        for group, name in _names(left, right)
    ]


def like_for_like(diffs: list[FieldDiff]) -> bool:
    """Whether no field that defines the regime is known to differ."""
    return not any(d.regime and d.state == "differs" for d in diffs)


def attention_family(backend: str) -> str:
    """The family of kernels behind the names that engines give an attention backend."""
    name = backend.strip().lower()
    families = {
        "aiter": ("dsv4", "aiter", "rocm_aiter_mla", "rocm_aiter_unified_attn", "rocm_aiter_fa"),
        "triton": ("triton", "triton_attn", "triton_mla"),
        "cpu": ("cpu_attn", "torch_sdpa"),
    }
    return next((family for family, names in families.items() if name in names), name)


_KNOWN = {(group, field): None for group, fields in FIELDS.items() for field in fields}
"""The fields of the table, in its order."""


def _names(*sides: Identity) -> list[tuple[str, str]]:
    held = {(group, field) for side in sides for group, fields in side._fields.items() for field in fields}
    extra = held.difference(_KNOWN)
    if not extra:
        return list(_KNOWN)
    order = {group: position for position, group in enumerate(FIELDS)}
    return sorted([*_KNOWN, *sorted(extra)], key=lambda name: order.get(name[0], len(order)))


def _regime(group: str, field: str) -> bool:
    spec = FIELDS.get(group, {}).get(field)
    return spec is not None and spec.regime


def _state(left: Identity, right: Identity, group: str, field: str) -> State:
    values = (left.value(group, field), right.value(group, field))
    if _ruled_out(left, right, group, field) or values == (NOT_APPLICABLE, NOT_APPLICABLE):
        return "not_applicable"
    if values == (None, None):
        return "unknown_both"
    if values[0] is None:
        return "unknown_left"
    if values[1] is None:
        return "unknown_right"
    return "same" if _canonical(values[0]) == _canonical(values[1]) else "differs"


def _ruled_out(left: Identity, right: Identity, group: str, field: str) -> bool:
    sides = (left, right)
    if group in REPLAY_ONLY and not all(side._fields.get(group) for side in sides):
        return True
    spec = FIELDS.get(group, {}).get(field)
    if spec is None or spec.not_if is None:
        return False
    ruler, ruling = spec.not_if
    return any(_canonical(side.value(group, ruler)) in ruling for side in sides)


def _canonical(value: Any) -> Any:
    """What is compared: numbers by value, text without case and outer space, collections member by member."""
    if isinstance(value, bool) or value is None:
        return (type(value).__name__, value)
    if isinstance(value, str):
        return value.strip().casefold()
    if isinstance(value, list | tuple):
        return [_canonical(v) for v in value]
    if isinstance(value, dict):
        return {k: _canonical(v) for k, v in value.items()}
    return value


def _plain(value: Any, where: str) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float) and value == value and abs(value) != float("inf"):
        return value
    if isinstance(value, list | tuple):
        return [_plain(v, where) for v in value]
    if isinstance(value, dict) and all(isinstance(k, str) for k in value):
        return {k: _plain(v, where) for k, v in value.items()}
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a numpy scalar
        return _plain(value.item(), where)
    raise ValueError(f"identity {where}: {value!r:.80} is not a JSON value")
