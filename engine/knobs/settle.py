"""Knobs that contradict each other, or that have no effect: what is refused, and what becomes the default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import GapscopeError
from engine.knobs.table import BY_NAME, KNOBS, OF_PREFILL, OTHERS_ONLY, SGLANG_ONLY

_HAS_EFFECT: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    ("arrival_rate", "arrivals", ("poisson", "constant")),
    ("cut_from", "cut", ("span", "turns")),
    ("cut_to", "cut", ("span", "turns")),
    ("prime", "cut", ("span", "turns")),
    ("warmup_requests", "prime", (True,)),
    ("tree_idle_cap_s", "idle_cap", ("per_trace", "system")),
    ("global_idle_cap_s", "idle_cap", ("system",)),
)
"""Client knobs that need another to be one of these."""
_ONE_POOL_ONLY: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("engine", ("vllm", "trtllm")),
    ("prefill_schedule_interval", (1,)),
    ("cache_blocks", (0,)),
)
"""Knobs of servers, and the values with which they can be one of two pools."""
LEAST_GB_S = 1e-9
"""A byte per second: what is slower is a mistake, and 0 stands for what takes no time."""
MOST_SCHEDULERS = 1024
"""Each has queues and a pool of its own; more of them take minutes to do nothing."""


def settle_client(values: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Refuse loads that contradict themselves; what has no use becomes the default, or is refused where asked for."""
    for name, other, needed in _HAS_EFFECT:
        if values[other] not in needed and values[name] != BY_NAME[name].default:
            if name in changes:
                raise GapscopeError(
                    f"Knob {name}={_said(values[name])} has no effect with {other}={_said(values[other])}: expected "
                    f"{other}={' or '.join(_said(value) for value in needed)}."
                )
            values[name] = BY_NAME[name].default
    arrivals = values["arrivals"]
    if values["wrap"] and (not values["duration_s"] or arrivals == "trace"):
        raise GapscopeError(
            "Knob wrap=true needs an end, and plays that no recording times: expected duration_s above 0, and arrivals "
            "other than trace."
        )
    for name in ("cut", "idle_cap"):
        if values[name] not in ("none", "per_trace") and arrivals != "lanes":
            raise GapscopeError(f"Knob {name}={values[name]} needs lanes: expected arrivals=lanes, not {arrivals}.")
    if values["cut_from"] > values["cut_to"]:
        raise GapscopeError(
            f"Knob cut_from={values['cut_from']:g} is above cut_to={values['cut_to']:g}: expected a span from 0 to 1."
        )
    if values["prime"] and values["warmup_s"]:
        raise GapscopeError(
            f"Knob prime=true starts the profile when its requests ended, and warmup_s={values['warmup_s']:g} after a "
            "time: expected one of them (warmup_s=0, or prime=false)."
        )
    if values["idle_cap"] == "per_trace" and (arrivals == "concurrency" or not values["tree_idle_cap_s"]):
        raise GapscopeError(
            "Knob idle_cap=per_trace: expected think times (no arrivals=concurrency) and a tree_idle_cap_s."
        )
    if values["idle_cap"] == "system" and not (values["tree_idle_cap_s"] or values["global_idle_cap_s"]):
        raise GapscopeError("Knob idle_cap=system: expected a tree_idle_cap_s, a global_idle_cap_s, or both.")


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value) or "none"


def settle_topology(values: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Refuse what several replicas cannot do; what has no effect becomes the default, or is refused where asked."""

    def settle(name: str, has_effect: bool, needed: str) -> None:
        if not has_effect and values[name] != BY_NAME[name].default:
            if name in changes:
                raise GapscopeError(f"Knob {name}={_said(values[name])} has no effect: expected {needed}.")
            values[name] = BY_NAME[name].default

    settle("router", values["replicas"] > 1, "replicas above 1")
    has_ranks = max(values["attention_dp"], values["prefill_attention_dp"]) > 1
    settle("dp_router", has_ranks, "attention_dp above 1")
    settle("dp_price", has_ranks, "attention_dp above 1")
    settle(
        "router_overlap_weight",
        "kv_aware" in (values["router"], values["dp_router"], values["prefill_router"]),
        "router=kv_aware with replicas above 1, or dp_router=kv_aware with attention_dp above 1",
    )
    schedulers = values["replicas"] * values["attention_dp"]
    if schedulers > MOST_SCHEDULERS:
        raise GapscopeError(
            f"Knobs replicas={values['replicas']} and attention_dp={values['attention_dp']} make {schedulers:,} "
            f"schedulers: expected at most {MOST_SCHEDULERS:,} of them together."
        )
    several = [name for name in ("replicas", "attention_dp") if values[name] > 1]
    if several and values["timing"] == "measured" and values["measured_match"] == "order":
        raise GapscopeError(
            f"Knob {several[0]}={values[several[0]]}: recorded passes can be taken in their order by one scheduler "
            f"only; expected measured_match=geometry, or {several[0]}=1."
        )


def settle_disaggregation(values: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Refuse what two pools cannot do; without them their settings become the defaults, or are refused where asked."""
    prompts = values["prefill_replicas"]
    if not prompts:
        for knob in KNOBS:
            if knob.group == "disaggregation":
                drop(values, changes, knob.name, "prefill_replicas=0")
        if not values["host_kv_blocks"]:  # never refused, as it is a fact that recordings hold
            values["kv_bytes_per_token"] = BY_NAME["kv_bytes_per_token"].default
        return
    if values["prefill_kv_blocks"] == 1:
        raise GapscopeError(
            "Knob prefill_kv_blocks=1: one block holds no request (vLLM's null block); expected at least 2, or 0 for "
            "as many as kv_blocks."
        )
    _check_bandwidth(values, "transfer_gb_s")
    if prompts == 1:
        drop(values, changes, "prefill_router", "prefill_replicas=1")
    for name, known in _ONE_POOL_ONLY:
        if values[name] not in known:
            raise GapscopeError(
                f"Knobs prefill_replicas={prompts} and {name}={_said(values[name])}: the two pools do not have that "
                f"here; expected {name}={' or '.join(_said(value) for value in known)}, or prefill_replicas=0."
            )
    if values["core"] == "skipping" and (values["engine"], values["reservation"]) != ("vllm", "own"):
        raise GapscopeError(
            f"Knobs prefill_replicas={prompts} and core=skipping, with engine={values['engine']} and reservation="
            f"{values['reservation']}: expected core=auto, or plain."
        )
    ranks = values["attention_dp"]
    if prompts * (values["prefill_attention_dp"] or ranks) + values["replicas"] * ranks > MOST_SCHEDULERS:
        raise GapscopeError(
            f"Knobs prefill_replicas={prompts} and replicas={values['replicas']} make, with their ranks, more than "
            f"{MOST_SCHEDULERS:,} schedulers: expected at most so many of them together."
        )
    if values["timing"] == "measured" and values["measured_match"] == "order":
        raise GapscopeError(
            f"Knob prefill_replicas={prompts}: recorded passes can be taken in their order by one scheduler only; "
            "expected measured_match=geometry, or prefill_replicas=0."
        )
    seats, budget = (values[f"prefill_{name}"] or values[name] for name in OF_PREFILL[2:])
    if budget < seats:
        raise GapscopeError(
            f"A prefill engine has a budget of {budget} tokens for {seats} requests: expected "
            "prefill_max_num_batched_tokens of at least prefill_max_num_seqs (where 0, those of a decode engine)."
        )


def settle_lookahead(values: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Refuse batches formed ahead, and steps without prompts, where they are not known to work, or have no effect."""
    if values["engine"] != "vllm":
        for name in ("async_scheduling", "prefill_schedule_interval"):
            drop(values, changes, name, f"engine={values['engine']}")
    if values["attention_dp"] == 1:
        drop(values, changes, "prefill_schedule_interval", "attention_dp=1")
    for name in ("spec_tokens", "prefill_replicas"):
        if values["async_scheduling"] and values[name]:
            raise GapscopeError(
                f"Knobs async_scheduling=true and {name}={values[name]}: no rule for both is known here; expected "
                f"async_scheduling=false, or {name}=0."
            )


def settle_speculation(values: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Refuse drafts that nobody makes or verifies; settings without drafts become the default, or are refused."""
    tokens, method = values["spec_tokens"], values["spec_method"]
    if bool(tokens) != (method != "none"):
        raise GapscopeError(
            f"Knobs spec_method={method} and spec_tokens={tokens}: expected a method with at least one draft token, or "
            "spec_method=none and spec_tokens=0."
        )
    if not tokens:
        for knob in KNOBS:
            if knob.group == "speculation" and values[knob.name] != knob.default:
                if knob.name in changes:
                    raise GapscopeError(
                        f"Knob {knob.name}={_said(values[knob.name])} has no effect without drafts: expected "
                        "spec_method and spec_tokens."
                    )
                values[knob.name] = knob.default
        return
    if not values["spec_mean_length"]:
        drop(values, changes, "spec_measured_tokens", "spec_acceptance, which is no length")
    if "," in values["spec_acceptance"]:
        drop(values, changes, "spec_decay", "a probability for each draft")
    if values["timing"] == "measured":
        raise GapscopeError(
            f"Knob spec_tokens={tokens} with timing=measured: expected another timing, as recorded passes hold no "
            "drafts of this replay."
        )
    if values["engine"] == "sglang":
        if values["mixed_chunk"]:
            raise GapscopeError(
                f"Knobs spec_tokens={tokens} and mixed_chunk=true: SGLang puts no prompts into passes that verify "
                "drafts; expected mixed_chunk=false, or spec_tokens=0."
            )
        return
    needed = values["max_num_seqs"] * (1 + tokens)
    if values["max_num_batched_tokens"] < needed or 0 < values["long_prefill_token_threshold"] <= tokens:
        raise GapscopeError(
            f"Knob spec_tokens={tokens}: every running request computes {1 + tokens} tokens per pass; expected "
            f"max_num_batched_tokens of at least {needed} (now {values['max_num_batched_tokens']}) and no "
            f"long_prefill_token_threshold below {1 + tokens}."
        )


def settle_engine(values: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Refuse settings that the engine does not have where they are asked for; they are at their defaults otherwise."""
    engine = values["engine"]
    without = set(OTHERS_ONLY if engine == "sglang" else SGLANG_ONLY)
    if values["policy"] == ("longest_prefix" if engine == "sglang" else "lpm"):
        without.add("policy")
    for name in sorted(without):
        drop(values, changes, name, f"engine={engine}")
    if not values["prefix_caching"]:
        for name in ("eviction", "cache_blocks"):
            drop(values, changes, name, "prefix_caching=false")
    core = values["core"]
    if engine == "sglang" and core == "plain":
        raise GapscopeError("Knob core=plain: SGLang's scheduler has one core; expected core=auto.")
    by_pass = [name for name in ("policy", "eviction", "cache_blocks") if values[name] != BY_NAME[name].default]
    if core == "skipping" and (engine == "atom" or (engine != "sglang" and by_pass)):
        name = "engine" if engine == "atom" else by_pass[0]
        raise GapscopeError(f"Knobs core=skipping and {name}={values[name]}: expected core=auto, or plain.")
    if engine == "sglang" and 0 < values["chunked_prefill_size"] < values["block_size"]:
        raise GapscopeError(
            f"Knob chunked_prefill_size={values['chunked_prefill_size']} is less than a block: expected at least "
            f"block_size={values['block_size']}, or 0 for prompts in one piece."
        )


_WITH_HOST: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("engine", ("vllm",)),
    ("prefix_caching", (True,)),
    ("policy", ("fcfs",)),
    ("cache_blocks", (0,)),
    ("prefill_replicas", (0,)),
)
"""Knobs of servers, and the values with which they can have host memory."""


def settle_host(values: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Refuse host memory where it is not known how it is used; its link has no effect without it."""
    blocks = values["host_kv_blocks"]
    if not blocks:
        drop(values, changes, "host_link_gb_s", "host_kv_blocks=0")
        return
    _check_bandwidth(values, "host_link_gb_s")
    for name, known in _WITH_HOST:
        if values[name] not in known:
            raise GapscopeError(
                f"Knobs host_kv_blocks={blocks} and {name}={_said(values[name])}: no rule for that is known here; "
                f"expected {name}={_said(known[0])}, or host_kv_blocks=0."
            )


def _check_bandwidth(values: Mapping[str, Any], name: str) -> None:
    if 0 < values[name] < LEAST_GB_S:
        raise GapscopeError(
            f"Knob {name}={_said(values[name])}: expected at least {LEAST_GB_S:g} GB/s, a byte per second, or 0 for "
            "any amount at once."
        )


def drop(values: dict[str, Any], changes: Mapping[str, Any], name: str, reason: str) -> None:
    """Set a knob without effect to its default, or refuse it where it was asked for."""
    default = BY_NAME[name].default
    if values[name] != default and name in changes:
        raise GapscopeError(
            f"Knob {name}={_said(values[name])} has no effect with {reason}: expected its default, {_said(default)}."
        )
    values[name] = default
