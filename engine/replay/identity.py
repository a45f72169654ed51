"""Who a replay says it is: its identity record and lineage, and the knobs that a run's own record asks for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypedDict

from engine import knobs as knob_table
from engine.bundle import Bundle, replay_lineage
from engine.definitions import FIRST_SAMPLED, ZERO_OUTPUT_COUNTED
from engine.errors import GapscopeError
from engine.identity import FIELDS, NOT_APPLICABLE, Identity
from engine.replay.counterfactual import Counterfactual
from engine.replay.result import ReplayResult
from engine.timing.notes import circular, other_fallback

CORES = {"vllm": "vLLM", "sglang": "SGLang", "atom": "ATOM", "trtllm": "TensorRT-LLM"}
"""Engines whose schedulers are simulated, by the value of the knob."""
ASSUMED_GROUPS = ("source", "model", "tokenizer", "hardware", "topology", "speculation", "kernels", "capacity")
"""What a replay takes over from the deployment it stands for; the rest are its own settings."""
NOT_ASSUMED = frozenset(
    ("launch", "overlay_files", "patches", "distribution", "packages", "load", "placement", "host", "os", "seed")
)
"""Facts of that group that belong to the recording alone."""
ASSUMED_ANYWHERE = ("tokenizer",)
"""The same where a deployment is priced that the knobs name: what ran elsewhere says nothing of it."""
KNOB_GROUPS = ("client", "capacity", "scheduler", "topology")
CARRIED = ("fpm", "anchor", "table")
"""Values of the knob ``timing`` whose model is small, and goes into the record of a replay."""
NAMED = {
    "part": ("hardware", "part"),
    "model_preset": ("model", "name"),
    "weight_dtype": ("model", "weights_dtype"),
    "expert_dtype": ("model", "expert_dtype"),
    "kv_dtype": ("model", "kv_dtype"),
    "graph_mode": ("kernels", "graph_mode"),
    "attention_family": ("kernels", "attention_family"),
}
"""Knobs that change what a replay stands for without naming a whole deployment, and the fields that they change."""
UNFITTED = ("fixed", "analytic")
"""Values of the knob ``timing`` that rest on no measured pass."""
SIZE = "kv_bytes_per_token"
"""A fact of a deployment, which becomes a setting where KV is moved."""
FREE_KNOBS = frozenset({"core"})
"""Knobs that change how a replay is computed but nothing in it: no part of its identity."""
NAMED_ALWAYS = frozenset(
    (
        "arrivals",
        "lanes",
        "lane_assignment",
        "lane_stagger_ms",
        "warmup_s",
        "duration_s",
        "grace_s",
        "wrap",
        "cache_bust",
        "think_scale",
        "dispatch_lag_ms",
        "request_latency_ms",
        "response_latency_ms",
        "host_model",
        "host_request_ms",
        "host_prompt_token_us",
        "host_prompt_cap_ms",
        "host_chunk_ms",
        "max_num_seqs",
        "max_num_batched_tokens",
        "long_prefill_token_threshold",
        "reserve_full_prompt",
        "core",
        "kv_blocks",
        "block_size",
        "prefix_caching",
        "timing",
        "measured_match",
        "on_refused",
        "mixed_composition",
        "pass_scale",
        "between_passes_ms",
        "fixed_pass_us",
        "fixed_prefill_token_us",
        "fixed_decode_request_us",
        "fixed_kv_token_ns",
        "record_events",
        "record_chunks",
        "record_members",
    )
)
"""Knobs of the first release. Later ones are named only where they are set, so that a replay made without them keeps
its run id."""


class About(TypedDict, total=False):
    """What the bundle of a replay says besides what happened.

    ``title`` is what people read, made from the workload where not given; ``slug`` the first part of the run id, made
    from the title. ``like`` is the measured run whose deployment is replayed: changed knobs are named against it, and
    its model, hardware and topology are assumed. ``held`` are ids of the measured runs in the stores, for the label of
    a comparison; ``parent_run`` is the replay that this one varies, and ``base`` that replay itself, where the title
    names what changed against it; ``counterfactual`` is what it took from a measurement, ``point`` what it is a point
    of, where it belongs to a sweep (``{base, changes, fit}``).
    """

    title: str | None
    slug: str | None
    like: Bundle | None
    held: Sequence[str]
    parent_run: str | None
    base: Bundle | None
    counterfactual: Counterfactual | None
    point: Mapping[str, Any] | None


def package_version() -> str:
    """Version of this program."""
    try:
        return version("gapscope")
    except PackageNotFoundError:
        return "unknown"


def knobs_from_run(bundle: Bundle) -> dict[str, Any]:
    """The knobs with which a run was made, as far as its record says: complete for a replay, partial for others.

    What a measured run was deployed on is no knob of its replay: a deployment to be priced is named whole.

    Raises:
        GapscopeError: the record holds a value that no knob accepts.
    """
    if bundle.kind == "replay" and isinstance(bundle.lineage.get("config"), Mapping):
        config = {n: v for n, v in bundle.lineage["config"].items() if n in knob_table.BY_NAME}
        known = bundle.identity.value("capacity", SIZE)
        return config if known is None or _moves_kv(config) else {SIZE: known} | config
    found: dict[str, Any] = {}
    apart = FREE_KNOBS | frozenset(knob_table.DEPLOYMENT)
    for group in KNOB_GROUPS:
        for name in FIELDS[group]:
            value = bundle.identity.value(group, name)
            if name in knob_table.BY_NAME and name not in apart and value not in (None, NOT_APPLICABLE):
                found[name] = value
    if found.get("router") not in knob_table.BY_NAME["router"].choices:
        found.pop("router", None)
    policy = found.pop("policy", None)
    engine = str(bundle.identity.value("source", "engine")).lower()
    if engine in CORES and engine != knob_table.BY_NAME["engine"].default:
        found["engine"] = engine
        if policy in knob_table.BY_NAME["policy"].choices:  # others are no scheduler's here
            found["policy"] = policy
    if "engine" in found:  # others have no such rules here
        found.pop("async_scheduling", None)
    elif (interval := bundle.identity.value("scheduler", "prefill_interval")) and found.get("attention_dp", 1) > 1:
        found["prefill_schedule_interval"] = interval
    usable = bundle.identity.value("capacity", "usable_kv_blocks")
    if "kv_blocks" not in found and usable is not None:
        found["kv_blocks"] = usable + 1
    spans = {phase.name: (phase.end_ns - phase.start_ns) / 1e9 for phase in bundle.phases}
    for knob, phase in (("warmup_s", "warmup"), ("duration_s", "profile"), ("grace_s", "grace")):
        if phase in spans:
            found.setdefault(knob, spans[phase])
    try:
        return {name: knob_table.BY_NAME[name].parse(value) for name, value in found.items()}
    except GapscopeError as error:
        raise GapscopeError(f"The identity of {bundle.run_id} cannot be replayed: {error}") from None


def identity_of(result: ReplayResult, model: Mapping[str, Any] | None, about: About) -> Identity:
    """The identity record of a replay: settings as simulated, the deployment as assumed from ``like``."""
    like, counterfactual = about.get("like"), about.get("counterfactual")
    identity, values, program = Identity(), result.knobs, f"gapscope {package_version()}"
    unused, described = _unused(values), result.timing.describe()
    regime = described.get("regime")  # of a source that prices a named deployment
    assumed: tuple[str, ...] = ASSUMED_GROUPS if regime is None else ASSUMED_ANYWHERE
    if values["timing"] == "anchor" and values["part"]:
        assumed = tuple(group for group in assumed if group != "hardware")
    if like is not None:
        for group, name, field in like.identity:
            if group in assumed and name not in NOT_ASSUMED and name in FIELDS.get(group, {}):
                identity.set(group, name, field.value, f"assumed, as of {like.run_id}")
    engine = values["engine"]
    identity.set("source", "engine", engine, f"simulated by the {CORES[engine]} core of {program}")
    identity.set("source", "distribution", program, "this program")
    for name in ("name", "format", "digest"):
        identity.set("trace", name, getattr(result.trace, name), "trace file")
    for name, value in result.trace.read_as.items():
        identity.set("trace", name, value, "asked for when the trace was read")
    identity.set("trace", "rows", sum(len(c.turns) for p in result.trace.plays for c in p.conversations), "trace file")
    for group in KNOB_GROUPS:
        for name in FIELDS[group]:
            if name in values and name not in unused:
                identity.set(group, name, values[name], f"knob {name}")
    identity.set("capacity", "usable_kv_blocks", values["kv_blocks"] - 1, "knob kv_blocks, less the null block")
    identity.set("capacity", "hash_algorithm", None, "content is named, not hashed")
    _set_all(
        identity,
        program,
        {
            "topology": _topology(values),
            "speculation": _speculation(values),
            "scheduler": _scheduler(values),
            "client": {
                "generator": "gapscope",
                "version": package_version(),
                **_client(values),
                "cancel": "requests in flight after the grace are canceled",
                "streaming": True,
            },
            "telemetry": {
                "fpm_producer": "gapscope",
                "fpm_version": package_version(),
                "kv_event_producer": "gapscope" if values["record_events"] else None,
                "missing_values": "null is not recorded; counters are always present",
                "clock": "one simulated clock",
            },
            "definitions": {
                "first_token": FIRST_SAMPLED,
                "token_source": "sampled tokens that reached the client",
                "zero_output": ZERO_OUTPUT_COUNTED,
            },
        },
    )
    scope = None if like is None else like.identity.value("telemetry", "fpm_scope")
    if scope is not None and values["timing"] == "fpm":
        identity.set("telemetry", "fpm_scope", scope, f"assumed, as of {like.run_id if like else ''}")
    _set_timing(identity, result, model, like)
    for knob, (group, name) in NAMED.items():
        if regime is None and values[knob] != knob_table.BY_NAME[knob].default and described.get("kind") == "anchor":
            identity.set(group, name, values[knob], f"knob {knob}")
    if regime is not None:
        _set_all(identity, "knobs of the deployment", regime)
        identity.set("hardware", "count", regime["hardware"]["count"] * values["replicas"], "tp, pp and replicas")
    if counterfactual is not None:
        counterfactual.describe(identity)
    return identity


def recorded_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """The knobs that a replay with these ``values`` (every knob) has in its record."""
    unused = _unused(values)
    return {name: value for name, value in values.items() if name not in unused}


def _unused(values: Mapping[str, Any]) -> frozenset[str]:
    """Knobs that change nothing in a replay with these, or that are younger than its format and not set."""
    silent = {name for name, value in values.items() if value == knob_table.BY_NAME[name].default} - NAMED_ALWAYS
    if values["engine"] == "sglang":
        silent -= set(knob_table.SGLANG_ONLY)
    if values["arrivals"] in ("poisson", "constant"):
        silent |= {"lanes", "lane_assignment", "lane_stagger_ms"}
    if _moves_kv(values):
        silent -= {SIZE}
    return FREE_KNOBS | silent | (frozenset() if values["host_model"] == "given" else frozenset(knob_table.HOST_TERMS))


def _moves_kv(values: Mapping[str, Any]) -> bool:
    """Whether KV goes between pools, or to host memory and back."""
    return bool(values.get("prefill_replicas") or values.get("host_kv_blocks"))


def _client(values: Mapping[str, Any]) -> dict[str, Any]:
    """When requests are sent, in the words of the record."""
    at_a_rate = f"open by play, {values['arrivals']}, closed inside a play"
    told: dict[str, Any] = {
        "loop": {
            "lanes": "closed",
            "trace": "open by play, closed inside a play",
            "concurrency": "closed, a request for itself, without think times",
        }.get(values["arrivals"], at_a_rate),
        "warmup_policy": "by time",
    }
    if values["cut"] != "none":
        told["trajectory_cuts"] = [values["cut_from"], values["cut_to"], values["cut"]]
    if values["prime"]:
        told["primer"] = "the last turn before the cut of each conversation that goes on, one output token"
        told["warmup_policy"] = "by count; the profile starts when all requests ended"
    return told


def _scheduler(values: Mapping[str, Any]) -> dict[str, Any]:
    """Rules of the simulated scheduler that are no knobs, and the knobs that it does not have."""
    rules = {
        "chunked_prefill": True,
        "policy": values["policy"],
        "preemption": "the last in, recomputed",
        "watermark": 0.0,
        "async_scheduling": values["async_scheduling"],
    }
    if values["prefill_schedule_interval"] > 1:
        rules["prefill_interval"] = values["prefill_schedule_interval"]
    if values["engine"] == "sglang":
        rules |= {
            "chunked_prefill": values["chunked_prefill_size"] > 0,
            "preemption": "the one with the fewest outputs, to the back of the queue, recomputed",
            "watermark": NOT_APPLICABLE,
            **{name: NOT_APPLICABLE for name in knob_table.OTHERS_ONLY if name in FIELDS["scheduler"]},
        }
    elif values["engine"] == "trtllm" and values["reservation"] == "own":
        rules["reservation"] = "whole_sequence"
    if values["reservation"] != "own" or values["engine"] == "trtllm":
        rules["preemption"] = "none: a request has all its blocks from its admission on"
    return rules


def _topology(values: Mapping[str, Any]) -> dict[str, Any]:
    """What stands where: how many engines, and who sends them their requests."""
    topology = {"replicas": values["replicas"], "serving": "aggregated", "attention_dp": values["attention_dp"]}
    if values["prefill_replicas"]:
        topology |= {
            "serving": "prefill/decode",
            "prefill_workers": _prefill_workers(values),
            "decode_workers": values["replicas"],
            "kv_transfer": {
                **{name: values[name] for name in ("kv_bytes_per_token", "transfer_gb_s", "transfer_latency_us")},
                "sent": f"{values['transfer_bytes']} tokens of the prompt",
                "reserved first": values["transfer_hold"],
            },
        }
    return topology if values["replicas"] == 1 else {**topology, "router": values["router"]}


def _prefill_workers(values: Mapping[str, Any]) -> dict[str, Any]:
    """How many there are, who sends them requests, and their limits where they have their own."""
    own = {name: values[f"prefill_{name}"] for name in knob_table.OF_PREFILL if values[f"prefill_{name}"]}
    router = {"router": values["prefill_router"]} if values["prefill_replicas"] > 1 else {}
    return {"replicas": values["prefill_replicas"], **router, **own}


def _speculation(values: Mapping[str, Any]) -> dict[str, Any]:
    """Drafts and how many of them are accepted, in the words of the record."""
    if not values["spec_tokens"]:
        return {"method": "none"}
    given = values["spec_acceptance"] or f"{values['spec_mean_length']:g} tokens per verification"
    if values["spec_measured_tokens"]:
        given += f" of {values['spec_measured_tokens']} drafts"
    if values["spec_decay"] != 1.0:
        given += f", each further draft {values['spec_decay']:g} times as likely"
    return {
        "method": values["spec_method"],
        "draft_tokens": values["spec_tokens"],
        "acceptance_definition": "probability that a draft is accepted if those before it were, the same at any time",
        "acceptance": given,
    }


def _set_all(identity: Identity, source: str, groups: Mapping[str, Mapping[str, Any]]) -> None:
    for group, fields in groups.items():
        for name, value in fields.items():
            identity.set(group, name, value, source)


def _set_timing(identity: Identity, result: ReplayResult, model: Mapping[str, Any] | None, like: Bundle | None) -> None:
    values, described = result.knobs, result.timing.describe()
    fields: dict[str, Any] = {
        "kind": described.get("kind", values["timing"]),
        "model_digest": described.get("model_digest"),
        "on_refused": values["on_refused"],
        "pass_scale": values["pass_scale"],
        "between_passes_ns": described.get("between_ns", result.timing.between_ns),
        "composition": described.get("composition"),
        "hold_out": described.get("holdout"),
        "corrections": _corrections(described, "" if like is None else circular(described, like.run_id)),
        "parameters": described.get("constants"),
        "regime": described.get("data_regime"),
        "calibrated": described.get("calibrated"),
        "deployment": _deployed(described),
        "deployment_digest": deployment_digest(described),
        "fallback": _deployed(described.get("fallback") or {}),
    }
    if fields["fallback"] and like is not None and (note := other_fallback(described, like.identity)):
        fields["fallback"] += f". {note}"
    sources = ((model or {}).get("lineage") or {}).get("sources")
    if sources and values["timing"] not in UNFITTED:
        fields["fitted_on"] = [{"run_id": s["run_id"], "phases": s["phases"]} for s in sources]
        fields["data_digests"] = {s["run_id"]: s["tables"] for s in sources}
    if "table_sha256" in described:
        fields["data_digests"] = {described["table"]: described["table_sha256"]}
    for name, value in fields.items():
        if value is not None:
            identity.set("timing", name, value, "timing model" if name not in values else f"knob {name}")


def _corrections(described: Mapping[str, Any], note: str) -> dict[str, Any] | None:
    """Factors that a source multiplies its answers with: levels by class, and a learned correction with its note."""
    levels, learned = described.get("levels"), described.get("correction")
    if learned is None:
        return levels
    said = {name: learned[name] for name in ("name", "digest", "learned_on", "bounds", "factors")}
    return {**(levels or {}), "learned": said | ({"note": note} if note else {})}


def deployment_digest(described: Mapping[str, Any]) -> str | None:
    """Digest of the figures of the presets that a source prices: of its deployment, else of its fallback's.

    SHA-256 of their canonical JSON, a draft model included; where a figure is from is no part of it. None where no
    deployment is priced.
    """
    told = described if described.get("deployment") else described.get("fallback") or {}
    deployment = told.get("deployment")
    if not deployment:
        return None
    draft = (told.get("drafting") or {}).get("shape")
    figures = _without_sources({"deployment": deployment} | ({"draft": draft} if draft else {}))
    return hashlib.sha256(json.dumps(figures, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _without_sources(record: Any) -> Any:
    if not isinstance(record, Mapping):
        return record
    return {name: _without_sources(value) for name, value in record.items() if name != "sources"}


def _deployed(described: Mapping[str, Any]) -> str | None:
    """The deployment that a source priced, in words; its figures are in the lineage."""
    deployment = described.get("deployment")
    if deployment is None:
        return None
    gpus = deployment["tp"] * deployment["pp"]
    return f"{deployment['model']['name']} on {gpus} {deployment['part']['name']}, {described['kind']}"


def changed_knobs(result: ReplayResult, about: About) -> dict[str, dict[str, Any]]:
    """``{name: {from, to}}`` of the knobs that depart from ``like``, or the defaults; of a rung from the prediction."""
    like, counterfactual = about.get("like"), about.get("counterfactual")
    told = {} if like is None else knobs_from_run(like)
    base = knob_table.resolve({}, told)
    if SIZE in told and _moves_kv(result.asked):
        base[SIZE] = told[SIZE]
    if counterfactual is not None and counterfactual.knobs is not None:
        base = dict(counterfactual.knobs)
    return {
        name: {"from": base[name], "to": value}
        for name, value in result.asked.items()
        if value != base[name] and name not in FREE_KNOBS
    }


def _point(about: About) -> dict[str, Any]:
    """What a point of a sweep is one of; nothing for any other replay."""
    point = about.get("point")
    return {"point": dict(point)} if point else {}


def lineage_of(
    result: ReplayResult,
    model: Mapping[str, Any] | None,
    about: About,
) -> dict[str, Any]:
    """What the replay rests on, the timing model itself included, so that the run can be varied from its record alone.

    ``knobs_changed`` has ``{name: {from, to}}`` against ``like``, or the defaults; of a rung against the prediction.
    """
    like, counterfactual = about.get("like"), about.get("counterfactual")
    changed = changed_knobs(result, about)
    fitted = ((model or {}).get("lineage") or {}).get("sources", ()) if result.knobs["timing"] not in UNFITTED else ()
    rests_on = [{"run_id": s["run_id"], "phases": s["phases"], "tables": s["tables"]} for s in fitted]
    learned = (result.timing.describe().get("correction") or {}).get("learned_on", ())
    rests_on += [source for source in learned if source not in rests_on]
    config = recorded_config(result.knobs)
    canonical = json.dumps(config, sort_keys=True, separators=(",", ":"))
    return replay_lineage(
        fitted_on=rests_on,
        config=config,
        knobs_changed=changed,
        store_held_at_seal=about.get("held", ()),
        parent_run=about.get("parent_run"),
        **(counterfactual.lineage() if counterfactual else {}),
        **_point(about),
        like=None if like is None else like.run_id,
        config_digest=hashlib.sha256(canonical.encode()).hexdigest(),
        trace={"name": result.trace.name, "digest": result.trace.digest},
        timing={
            **result.timing.describe(),
            "model": dict(model) if model and result.knobs["timing"] in CARRIED else None,
        },
    )
