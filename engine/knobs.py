"""Every setting of a replay, once. The command line and the what-if page read this table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import GapscopeError


@dataclass(frozen=True)
class Knob:
    """One setting: its type decides how text is read; ``low``/``high`` are inclusive."""

    name: str
    type: type
    default: Any
    group: str
    help: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()

    def parse(self, value: Any) -> Any:
        """The value in this knob's type, checked against its range.

        Raises:
            GapscopeError: not of the type, or outside the range or the choices.
        """
        expected = self.expectation()
        try:
            if self.type is bool:
                parsed: Any = _boolean(value)
            elif self.type is int:
                if isinstance(value, bool) or float(value) != int(float(value)):
                    raise ValueError
                parsed = int(float(value))
            elif self.type is float:
                if isinstance(value, bool):
                    raise ValueError
                parsed = float(value)
            else:
                parsed = str(value)
        except (TypeError, ValueError, OverflowError):
            raise GapscopeError(f"Knob {self.name}={value!r}: expected {expected}.") from None
        if self.choices and parsed not in self.choices:
            raise GapscopeError(f"Knob {self.name}={value!r}: expected {expected}.")
        if self.type in (int, float):
            outside = (self.low is not None and parsed < self.low) or (self.high is not None and parsed > self.high)
            if outside or parsed != parsed:
                raise GapscopeError(f"Knob {self.name}={value!r} is out of range: expected {expected}.")
        return parsed

    def expectation(self) -> str:
        """What a value must look like, in words: type, range, unit."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        name = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[self.type]
        if self.low is not None and self.high is not None:
            name += f" from {self.low:g} to {self.high:g}"
        elif self.low is not None:
            name += f" of at least {self.low:g}"
        return f"{name} ({self.unit})" if self.unit else name


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in ("true", "1", "yes", "on"):
        return True
    if text in ("false", "0", "no", "off"):
        return False
    raise ValueError(value)


GROUPS: dict[str, str] = {
    "client": "Client: lanes, phases and latency terms",
    "phases": "Phases: trajectory cuts, primers, and idle caps",
    "host": "Host: what frontend and client add before something is seen",
    "scheduler": "Scheduler",
    "topology": "Topology: replicas and who gets a request",
    "speculation": "Speculation: drafts, how many are accepted, what they cost",
    "capacity": "KV capacity",
    "timing": "Timing",
    "output": "What is written",
}

KNOBS: tuple[Knob, ...] = (
    Knob(
        "arrivals",
        str,
        "lanes",
        "client",
        "lanes: closed loop of sessions; trace: each play starts when it arrived in the recording; concurrency: as "
        "many requests in flight as there are lanes, each for itself, without think times; poisson, constant: plays "
        "start at arrival_rate; the last three in the order of the trace",
        choices=("lanes", "trace", "concurrency", "poisson", "constant"),
    ),
    Knob(
        "arrival_rate",
        float,
        1.0,
        "client",
        "poisson and constant arrivals: plays that start per second; requests where each play is one request",
        "plays/s",
        0.000001,
        1_000_000,
    ),
    Knob(
        "client_seed",
        int,
        0,
        "client",
        "seed of poisson arrivals and of trajectory cuts",
        "",
        0,
        2**53 - 1,
    ),
    Knob(
        "lanes",
        int,
        8,
        "client",
        "concurrent sessions; a lane holds one play until its whole tree ended",
        "lanes",
        1,
        100_000,
    ),
    Knob(
        "lane_assignment",
        str,
        "strided",
        "client",
        "strided: lane l of N plays l, l+N, l+2N, ...; cursor: a free lane takes the next play of a shared cursor",
        choices=("strided", "cursor"),
    ),
    Knob(
        "lane_stagger_ms",
        float,
        0.0,
        "client",
        "lane l starts l times this after the start",
        "ms",
        0,
        3_600_000,
    ),
    Knob(
        "warmup_s",
        float,
        0.0,
        "client",
        "warm-up before profile start, which is time 0; a request's phase is that of its dispatch",
        "s",
        0,
        86_400,
    ),
    Knob(
        "duration_s",
        float,
        0.0,
        "client",
        "profile length: from profile start to the admission deadline, at or after which nothing is sent; 0: until the "
        "trace is exhausted",
        "s",
        0,
        604_800,
    ),
    Knob(
        "grace_s",
        float,
        0.0,
        "client",
        "how long requests in flight at the admission deadline may go on before they are canceled; without a deadline "
        "nothing is",
        "s",
        0,
        86_400,
    ),
    Knob(
        "wrap",
        bool,
        False,
        "client",
        "start the trace again when every play was taken; needs a duration",
    ),
    Knob(
        "cache_bust",
        str,
        "play",
        "client",
        "content of a play that is played again; none: the same; play: fresh, shared system prompts included; session: "
        "every play shares nothing with any other",
        choices=("none", "play", "session"),
    ),
    Knob("think_scale", float, 1.0, "client", "factor on recorded think times", "", 0, 1000),
    Knob(
        "dispatch_lag_ms",
        float,
        -1.0,
        "client",
        "a request's scheduled time to its dispatch; negative: as fitted (0 for fixed timing)",
        "ms",
        -1,
        60_000,
    ),
    Knob(
        "request_latency_ms",
        float,
        -1.0,
        "client",
        "dispatch (or cancel) to the engine, which takes it between two passes; negative: as fitted (0 for fixed "
        "timing)",
        "ms",
        -1,
        60_000,
    ),
    Knob(
        "response_latency_ms",
        float,
        -1.0,
        "client",
        "end of a pass to its tokens at the client; frees nothing later; negative: as fitted (0 for fixed timing)",
        "ms",
        -1,
        60_000,
    ),
    Knob(
        "cut",
        str,
        "none",
        "phases",
        "where the first play of each lane begins; none: at its first turn; span: at a share of the time between its "
        "first and last recorded start; turns: after a share of the turns of its root conversation",
        choices=("none", "span", "turns"),
    ),
    Knob("cut_from", float, 0.25, "phases", "cuts are drawn evenly from this share on", "", 0, 1),
    Knob("cut_to", float, 0.75, "phases", "up to this one", "", 0, 1),
    Knob(
        "prime",
        bool,
        False,
        "phases",
        "before the profile send the last turn before the cut of every conversation that goes on, for one output "
        "token; the profile starts when all of that ended",
    ),
    Knob(
        "warmup_requests",
        int,
        0,
        "phases",
        "after the primers of a lane send them again, in turn, so many requests one after the other",
        "requests per lane",
        0,
        100_000,
    ),
    Knob(
        "idle_cap",
        str,
        "none",
        "phases",
        "how idle times are shortened; per_trace: gaps between recorded starts of a play, before it is played; "
        "system: what is due next is due earlier when nothing is in flight; they give different loads",
        choices=("none", "per_trace", "system"),
    ),
    Knob(
        "tree_idle_cap_s",
        float,
        0.0,
        "phases",
        "the longest gap of a play (per_trace), or the longest that nothing of it is in flight (system); 0: no limit",
        "s",
        0,
        86_400,
    ),
    Knob(
        "global_idle_cap_s",
        float,
        0.0,
        "phases",
        "idle_cap=system: the longest that nothing at all is in flight; 0: no limit",
        "s",
        0,
        86_400,
    ),
    Knob(
        "host_model",
        str,
        "off",
        "host",
        "delays what the client sees and does next, never the engine; fitted: on the warm-up of the runs behind the "
        "timing; given: the four terms below",
        choices=("off", "fitted", "given"),
    ),
    Knob(
        "host_request_ms",
        float,
        0.0,
        "host",
        "host model given: later the first token of each request",
        "ms",
        0,
        60_000,
    ),
    Knob(
        "host_prompt_token_us",
        float,
        0.0,
        "host",
        "host model given: later still, per prompt token that its first admission did not hit",
        "us",
        0,
        100_000,
    ),
    Knob(
        "host_prompt_cap_ms",
        float,
        0.0,
        "host",
        "host model given: at most this for a whole prompt; 0: no limit",
        "ms",
        0,
        60_000,
    ),
    Knob(
        "host_chunk_ms",
        float,
        0.0,
        "host",
        "host model given: later every token, on top of response_latency_ms",
        "ms",
        0,
        60_000,
    ),
    Knob(
        "engine",
        str,
        "vllm",
        "scheduler",
        "whose scheduler is simulated; vllm: one token budget for prompts and decodes; sglang: passes with prompts "
        "hold no decodes, radix cache; atom: the same with vLLM's pool; trtllm: vLLM's passes, room for a whole "
        "request from its admission on, nobody is preempted",
        choices=("vllm", "sglang", "atom", "trtllm"),
    ),
    Knob("max_num_seqs", int, 256, "scheduler", "running requests at most", "requests", 1, 1_000_000),
    Knob(
        "max_num_batched_tokens",
        int,
        2048,
        "scheduler",
        "tokens that one pass may compute, over all requests; at least max_num_seqs",
        "tokens",
        1,
        100_000_000,
    ),
    Knob(
        "long_prefill_token_threshold",
        int,
        0,
        "scheduler",
        "tokens of one prompt that one pass may compute; 0: no limit of its own",
        "tokens",
        0,
        100_000_000,
    ),
    Knob(
        "reserve_full_prompt",
        bool,
        True,
        "scheduler",
        "admit a request only when blocks for its whole prompt are free",
    ),
    Knob(
        "policy",
        str,
        "fcfs",
        "scheduler",
        "who is admitted next; fcfs: who came first; lpm (sglang): who has the longest cached prefix, while at most "
        "128 wait; longest_prefix (the others): the same without a limit, to reproduce what another simulator does",
        choices=("fcfs", "lpm", "longest_prefix"),
    ),
    Knob(
        "reservation",
        str,
        "own",
        "scheduler",
        "blocks that a request must find to be admitted; own: the engine's rule; whole_sequence: for prompt and "
        "output, less what it hits; per_sharer: for both in full, a shared prefix once for each: to reproduce that "
        "bias",
        choices=("own", "whole_sequence", "per_sharer"),
    ),
    Knob(
        "max_prefill_tokens",
        int,
        16384,
        "scheduler",
        "sglang: prompt tokens of one pass, beyond which no further request is admitted to it",
        "tokens",
        1,
        100_000_000,
    ),
    Knob(
        "chunked_prefill_size",
        int,
        8192,
        "scheduler",
        "sglang: prompt tokens of one pass, the last prompt cut to fit; at least block_size; 0: prompts are not cut",
        "tokens",
        0,
        100_000_000,
    ),
    Knob("mixed_chunk", bool, False, "scheduler", "sglang: decodes ride along in passes with prompts"),
    Knob(
        "clip_max_new_tokens",
        int,
        4096,
        "scheduler",
        "sglang: output tokens of one request that admission holds room for at most",
        "tokens",
        1,
        100_000_000,
    ),
    Knob(
        "schedule_conservativeness",
        float,
        1.0,
        "scheduler",
        "sglang: factor on the share of outputs to come (0.7 at first) that admission holds room for",
        "",
        0,
        100,
    ),
    Knob(
        "core",
        str,
        "auto",
        "scheduler",
        "skipping: from event to event; plain: pass by pass; both give the same bundle",
        choices=("auto", "skipping", "plain"),
    ),
    Knob(
        "replicas",
        int,
        1,
        "topology",
        "engines with a scheduler, a KV pool and a clock each; limits and capacity are those of one",
        "replicas",
        1,
        1024,
    ),
    Knob(
        "router",
        str,
        "round_robin",
        "topology",
        "round_robin: one after the other; least_loaded: fewest requests in flight; session: where its play began; "
        "sibling: where the first began that was spawned with it; kv_aware: fewest blocks to compute, and load",
        choices=("round_robin", "least_loaded", "session", "sibling", "kv_aware"),
    ),
    Knob(
        "router_overlap_weight",
        float,
        1.0,
        "topology",
        "kv_aware router: what a prompt block that a replica lacks counts against a block of load",
        "",
        0,
        1000,
    ),
    Knob(
        "attention_dp",
        int,
        1,
        "topology",
        "attention data-parallel ranks of an engine: each has a scheduler and a KV pool with the limits below, and a "
        "pass of all ends with the slowest",
        "ranks",
        1,
        1024,
    ),
    Knob(
        "dp_router",
        str,
        "least_loaded",
        "topology",
        "which rank of its engine gets a request; the words of router",
        choices=("round_robin", "least_loaded", "session", "sibling", "kv_aware"),
    ),
    Knob(
        "dp_price",
        str,
        "slowest",
        "topology",
        "slowest: every rank's batch is priced for itself and the longest counts; combined: one batch of all ranks' "
        "requests and tokens, as shared experts see it, that reads the KV of the largest",
        choices=("slowest", "combined"),
    ),
    Knob(
        "spec_method",
        str,
        "none",
        "speculation",
        "how tokens are drafted; a name for the record, as acceptance and cost are given below",
        choices=("none", "ngram", "mtp", "eagle3", "dspark", "draft_model"),
    ),
    Knob(
        "spec_tokens",
        int,
        0,
        "speculation",
        "drafts per decoding request and pass; it computes one token more, and keeps those up to the first rejection",
        "tokens",
        0,
        64,
    ),
    Knob(
        "spec_acceptance",
        str,
        "",
        "speculation",
        "probability that a draft is accepted if those before it were: one for all positions, or one for each, "
        "separated by commas",
    ),
    Knob(
        "spec_mean_length",
        float,
        0.0,
        "speculation",
        "instead of spec_acceptance: mean tokens per verification, the sampled one included; every position gets the "
        "probability that gives it",
        "tokens",
        0,
        65,
    ),
    Knob("spec_seed", int, 42, "speculation", "seed of the draws of acceptance", "", 0, 2**53 - 1),
    Knob(
        "spec_pricing",
        str,
        "tokens",
        "speculation",
        "what verifying costs; tokens: as many decodes as tokens are verified; as_measured: the timing was measured "
        "with this speculation",
        choices=("tokens", "as_measured"),
    ),
    Knob(
        "spec_draft_cost",
        float,
        0.0,
        "speculation",
        "what drafting adds per draft token, as a share of a pass that decodes one token of the same requests",
        "",
        0,
        10,
    ),
    Knob(
        "kv_blocks",
        int,
        8192,
        "capacity",
        "allocated KV blocks; one of them is vLLM's null block",
        "blocks",
        2,
        1_000_000_000,
    ),
    Knob("block_size", int, 16, "capacity", "tokens per KV block", "tokens", 1, 4096),
    Knob("prefix_caching", bool, True, "capacity", "share blocks of equal content between requests"),
    Knob(
        "eviction",
        str,
        "own",
        "capacity",
        "what goes first; own: the engine's rule, by which nothing goes before what is built on it; flat_lru: by last "
        "use alone, the first block of a prompt first: to reproduce that bias",
        choices=("own", "flat_lru"),
    ),
    Knob(
        "cache_blocks",
        int,
        0,
        "capacity",
        "blocks of a prefix cache besides kv_blocks, which then are for running requests alone: to reproduce the bias "
        "of counting memory twice; 0: one pool for both, as engines have it",
        "blocks",
        0,
        1_000_000_000,
    ),
    Knob(
        "timing",
        str,
        "fpm",
        "timing",
        "fpm: fitted on measured passes; measured: the recorded passes of the run itself; fixed: the constants below",
        choices=("fpm", "measured", "fixed"),
    ),
    Knob(
        "measured_match",
        str,
        "geometry",
        "timing",
        "measured timing; order: one recorded pass after the other while the batches agree in shape; geometry: those "
        "nearest in shape",
        choices=("order", "geometry"),
    ),
    Knob(
        "on_refused",
        str,
        "clamp",
        "timing",
        "what to do with a query outside the measured domain",
        choices=("clamp", "extrapolate", "abort"),
    ),
    Knob(
        "mixed_composition",
        str,
        "auto",
        "timing",
        "how a mixed pass is composed; auto: the one that fits the fit data better",
        choices=("auto", "sum", "marginal"),
    ),
    Knob(
        "pass_scale",
        float,
        1.0,
        "timing",
        "factor on every pass duration (what if the part were faster)",
        "",
        0.001,
        1000,
    ),
    Knob(
        "between_passes_ms",
        float,
        -1.0,
        "timing",
        "host time between passes; negative: as fitted (0 for fixed timing)",
        "ms",
        -1,
        60_000,
    ),
    Knob("fixed_pass_us", float, 5000.0, "timing", "fixed timing: per pass", "us", 0, 1e9),
    Knob(
        "fixed_prefill_token_us",
        float,
        20.0,
        "timing",
        "fixed timing: per freshly computed prompt token",
        "us",
        0,
        1e9,
    ),
    Knob("fixed_decode_request_us", float, 20.0, "timing", "fixed timing: per decoding request", "us", 0, 1e9),
    Knob("fixed_kv_token_ns", float, 40.0, "timing", "fixed timing: per KV token read", "ns", 0, 1e9),
    Knob("record_events", bool, True, "output", "write cache events"),
    Knob("record_chunks", bool, True, "output", "write one row per token received"),
    Knob("record_members", bool, True, "output", "write the exact composition of each batch"),
)

SHORTEST_S = 1e-6
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
FIXED = tuple(knob.name for knob in KNOBS if knob.name.startswith("fixed_"))
HOST_TERMS = tuple(knob.name for knob in KNOBS if knob.group == "host" and knob.name != "host_model")
SGLANG_ONLY = (
    "max_prefill_tokens",
    "chunked_prefill_size",
    "mixed_chunk",
    "clip_max_new_tokens",
    "schedule_conservativeness",
)
"""Knobs that only SGLang's scheduler has."""
OTHERS_ONLY = (
    "max_num_batched_tokens",
    "long_prefill_token_threshold",
    "reserve_full_prompt",
    "reservation",
    "eviction",
    "cache_blocks",
)
"""Knobs that it does not have."""
BY_NAME: dict[str, Knob] = {k.name: k for k in KNOBS}


def defaults() -> dict[str, Any]:
    """Every knob at its default."""
    return {k.name: k.default for k in KNOBS}


def _settle_client(values: dict[str, Any], changes: Mapping[str, Any]) -> None:
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
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def resolve(changes: Mapping[str, Any], base: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A complete, checked set of knobs: ``base`` (or the defaults) with ``changes`` applied.

    Raises:
        GapscopeError: an unknown knob (the nearest known one is named), a value of the wrong type or out of range,
            or values that contradict each other.
    """
    values = defaults()
    for given in (base or {}, changes):
        for name, value in given.items():
            values[name] = _known(name).parse(value)
    if 0 < values["duration_s"] < SHORTEST_S:
        raise GapscopeError(
            f"Knob duration_s={values['duration_s']:g} is no time at all: expected 0 (until the trace is exhausted) "
            f"or at least {SHORTEST_S:g} s."
        )
    if values["timing"] == "fixed" and not any(values[name] for name in FIXED):
        raise GapscopeError(
            f"Knobs {', '.join(FIXED)} are all 0, so no pass would take any time: expected one of them above 0."
        )
    if values["host_model"] != "given":
        for name in HOST_TERMS:
            if name in changes and values[name]:
                raise GapscopeError(
                    f"Knob {name}={values[name]:g} has no effect with host_model={values['host_model']}: expected "
                    "host_model=given."
                )
            values[name] = BY_NAME[name].default
    _settle_client(values, changes)
    _settle_engine(values, changes)
    if values["engine"] != "sglang" and values["max_num_batched_tokens"] < values["max_num_seqs"]:
        raise GapscopeError(
            f"Knob max_num_batched_tokens={values['max_num_batched_tokens']} is smaller than "
            f"max_num_seqs={values['max_num_seqs']}: expected a budget that holds one token of each running request."
        )
    _settle_topology(values, changes)
    _settle_speculation(values, changes)
    return values


def _settle_topology(values: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Refuse what several replicas cannot do; what has no effect becomes the default, or is refused where asked."""

    def settle(name: str, has_effect: bool, needed: str) -> None:
        if not has_effect and values[name] != BY_NAME[name].default:
            if name in changes:
                raise GapscopeError(f"Knob {name}={values[name]} has no effect: expected {needed}.")
            values[name] = BY_NAME[name].default

    settle("router", values["replicas"] > 1, "replicas above 1")
    settle("dp_router", values["attention_dp"] > 1, "attention_dp above 1")
    settle("dp_price", values["attention_dp"] > 1, "attention_dp above 1")
    settle(
        "router_overlap_weight",
        "kv_aware" in (values["router"], values["dp_router"]),
        "router=kv_aware with replicas above 1, or dp_router=kv_aware with attention_dp above 1",
    )
    several = [name for name in ("replicas", "attention_dp") if values[name] > 1]
    if several and values["timing"] == "measured" and values["measured_match"] == "order":
        raise GapscopeError(
            f"Knob {several[0]}={values[several[0]]}: recorded passes can be taken in their order by one scheduler "
            f"only; expected measured_match=geometry, or {several[0]}=1."
        )


def _settle_speculation(values: dict[str, Any], changes: Mapping[str, Any]) -> None:
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
    if values["timing"] == "measured" or values["engine"] != "vllm":
        raise GapscopeError(
            f"Knob spec_tokens={tokens} with timing={values['timing']} and engine={values['engine']}: expected "
            "timing=fpm or fixed, as recorded passes hold no drafts of this replay, and engine=vllm."
        )
    needed = values["max_num_seqs"] * (1 + tokens)
    if values["max_num_batched_tokens"] < needed or 0 < values["long_prefill_token_threshold"] <= tokens:
        raise GapscopeError(
            f"Knob spec_tokens={tokens}: every running request computes {1 + tokens} tokens per pass; expected "
            f"max_num_batched_tokens of at least {needed} (now {values['max_num_batched_tokens']}) and no "
            f"long_prefill_token_threshold below {1 + tokens}."
        )


def _settle_engine(values: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Refuse settings that the engine does not have where they are asked for; they are at their defaults otherwise."""
    engine = values["engine"]
    without = set(OTHERS_ONLY if engine == "sglang" else SGLANG_ONLY)
    if values["policy"] == ("longest_prefix" if engine == "sglang" else "lpm"):
        without.add("policy")
    for name in sorted(without):
        _drop(values, changes, name, f"engine={engine}")
    if not values["prefix_caching"]:
        for name in ("eviction", "cache_blocks"):
            _drop(values, changes, name, "prefix_caching=false")
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


def _drop(values: dict[str, Any], changes: Mapping[str, Any], name: str, reason: str) -> None:
    """Set a knob without effect to its default, or refuse it where it was asked for."""
    default = BY_NAME[name].default
    if values[name] != default and name in changes:
        raise GapscopeError(f"Knob {name}={values[name]} has no effect with {reason}: expected its default, {default}.")
    values[name] = default


def _known(name: str) -> Knob:
    if name in BY_NAME:
        return BY_NAME[name]
    from difflib import get_close_matches

    near = get_close_matches(name, BY_NAME, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise GapscopeError(f"Unknown knob {name!r}.{hint} `gapscope replay --help` lists all {len(KNOBS)} of them.")
