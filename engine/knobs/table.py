"""All knobs, by group and by name."""

from __future__ import annotations

from engine.knobs import client, deployment, disaggregation, run, server
from engine.knobs.knob import Knob

GROUPS: dict[str, str] = {
    "client": "Client: lanes, phases and latency terms",
    "phases": "Phases: trajectory cuts, primers, and idle caps",
    "host": "Host: what frontend and client add before something is seen",
    "scheduler": "Scheduler",
    "topology": "Topology: replicas and who gets a request",
    "disaggregation": "Disaggregation: prompts in one pool of engines, decodes in another",
    "speculation": "Speculation: drafts, how many are accepted, what they cost",
    "capacity": "KV capacity",
    "timing": "Timing",
    "deployment": "Deployment: what a pass is priced for with timing=analytic or on_refused=analytic",
    "output": "What is written",
}

KNOBS: tuple[Knob, ...] = (*client.KNOBS, *server.KNOBS, *disaggregation.KNOBS, *deployment.KNOBS, *run.KNOBS)
BY_NAME: dict[str, Knob] = {k.name: k for k in KNOBS}
FIXED = tuple(knob.name for knob in KNOBS if knob.name.startswith("fixed_"))
DEPLOYMENT = tuple(knob.name for knob in deployment.KNOBS)
HOST_TERMS = tuple(knob.name for knob in KNOBS if knob.group == "host" and knob.name != "host_model")
SGLANG_ONLY = (
    "max_prefill_tokens",
    "chunked_prefill_size",
    "mixed_chunk",
    "clip_max_new_tokens",
    "schedule_conservativeness",
)
"""Knobs that only SGLang's scheduler has."""
OF_PREFILL = ("attention_dp", "kv_blocks", "max_num_seqs", "max_num_batched_tokens")
"""What prefill engines may have of their own, under names that begin with ``prefill_`` (0: as the others)."""
OTHERS_ONLY = (
    "max_num_batched_tokens",
    "long_prefill_token_threshold",
    "reserve_full_prompt",
    "reservation",
    "eviction",
    "cache_blocks",
)
"""Knobs that it does not have."""
