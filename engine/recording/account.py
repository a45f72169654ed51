"""What a recording says of its load: what was played, in which phases, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import GapscopeError
from engine.knobs import BY_NAME
from engine.recording.client.answer import SHOWN
from engine.recording.client.load import Load
from engine.recording.journal import Journal
from engine.recording.plan import Plan
from engine.traces.prompts import TokenSource
from engine.traces.tree import Trace
from engine.workload.client import Client
from engine.workload.primed import PrimedClient


def profile_start_ns(client: Client) -> int | None:
    """From the start of the load to the start of the profile; None: its barrier has not opened."""
    if isinstance(client, PrimedClient):
        return client.origin_ns
    return -client.start_ns


def workload(
    plan: Plan, trace: Trace, source: TokenSource, client: Client, sampling: Mapping[str, Any], own: bool
) -> dict[str, Any]:
    """What was played, and how its prompts were made."""
    knobs = plan.knobs
    changed = {
        name: knobs[name]
        for name, knob in BY_NAME.items()
        if knob.group in ("client", "phases") and knobs[name] != knob.default
    }
    changed["duration_s"] = knobs["duration_s"]  # 0 as well: a replay of it ends with the trace
    return {
        "trace": plan.trace.name,
        "trace_sha256": trace.digest,
        "read_as": trace.read_as or None,
        "lanes": knobs["lanes"],
        "lane_assignment": knobs["lane_assignment"],
        "lane_stagger_s": knobs["lane_stagger_ms"] / 1000,
        "loop": "closed" if knobs["arrivals"] == "lanes" else f"arrivals: {knobs['arrivals']}",
        "knobs": changed,
        "sampling": dict(sampling),
        "never_issued": client.never_issued,
        "prompts": {
            "sent_as": "messages" if plan.chat else "token ids",
            "made_up": not source.given,
            "ids_from": source.low,
            "ids_below": source.high,
            "outputs": "own" if own else "made up",
        },
    }


def phases(plan: Plan, start_ns: int, load: Load, journal: Journal, reset: bool) -> dict[str, Any]:
    """The phases as asked for, the profile ``start_ns`` after the start; one without an end, as long as it was."""
    knobs = plan.knobs
    lasted_s = max(0, (load.ended_ns or 0) - load.started_ns - start_ns) / 1e9
    primed_ns = journal.primer_end_ns
    return {
        "prewarm": f"one request of one token; prefix cache {'reset' if reset else 'not reset'}",
        "warmup_s": round(start_ns / 1e9, 6),
        "primer_s": None if primed_ns is None else round((primed_ns - load.started_ns) / 1e9, 6),
        "duration_s": knobs["duration_s"] or round(lasted_s, 6),
        "grace_s": knobs["grace_s"],
        "cancel": "requests in flight after the grace are canceled by closing the connection",
        "prefix_cache_reset": reset,
    }


def end(client: Client, load: Load, journal: Journal) -> dict[str, Any]:
    """When sending stopped, what was left was canceled, and all was over."""
    if load.ended_ns is None:  # known once it is over
        return {"t_stop_s": None, "t_cancel_s": None, "t_end_s": None, "interrupted": True}
    ended_s = (load.ended_ns - load.started_ns) / 1e9
    deadline = None if client.deadline_ns is None else (client.deadline_ns - client.start_ns) / 1e9
    cancel = None if client.cancel_ns is None else (client.cancel_ns - client.start_ns) / 1e9
    if load.canceled_ns is not None:
        cancel = (load.canceled_ns - load.started_ns) / 1e9
    stop = ended_s if deadline is None else min(deadline, ended_s)
    return {
        "t_stop_s": round(stop, 6),
        "t_cancel_s": None if cancel is None else round(min(cancel, ended_s), 6),
        "t_end_s": round(ended_s, 6),
        "interrupted": load.stopped,
        "server_gone": load.server_gone,
        "problem": None if load.problem is None else cause(load.problem),
        "canceled": journal.canceled,
        "trace_exhausted": client.exhausted_ns is not None,
        "idle_shifts": len(client.shifts),
    }


def cause(problem: BaseException) -> str:
    """A problem of this program in words."""
    if isinstance(problem, GapscopeError):
        return str(problem)
    return f"a defect of gapscope, {type(problem).__name__}: {' '.join(str(problem).split())[:SHOWN] or 'no words'}"


def remarks(identity: Mapping[str, Any], journal: Journal) -> list[str]:
    """What a user should know besides the checks of the run."""
    said = []
    over, client = identity["end"], identity["client"]
    if over["interrupted"]:
        why = "the server was gone" if over["server_gone"] else over["problem"] or "interrupted"
        said.append(f"{why} {over['t_end_s']:.1f} s after the start: what was recorded is kept, and cut short")
    if client["cpu_share"] > 0.9:
        said.append(f"the client used {100 * client['cpu_share']:.0f} % of a processor: it is the bottleneck")
    if journal.failed:
        said.append(f"{journal.failed:,} of {journal.rows:,} requests failed, the first with: {journal.first_error}")
    return said
