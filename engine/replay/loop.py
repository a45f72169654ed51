"""Joins client, server and timing on one simulated clock, and writes what happened as a run bundle."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import pyarrow as pa

from engine import knobs as knob_table
from engine.bundle import Bundle, BundleWriter, Check, slugify
from engine.collector import collector_paused
from engine.errors import GapscopeError
from engine.replay.identity import About, changed_knobs, identity_of, knobs_from_run, lineage_of
from engine.replay.origin import move_back
from engine.replay.result import ReplayResult
from engine.replay.tables import Tables
from engine.replay.workers import host_memory, usable_blocks
from engine.serving import make_server
from engine.serving.clock import check_time
from engine.serving.cluster import Cluster, Disaggregated, Pool, behind_router, disaggregated, in_lockstep
from engine.serving.contract import Server, ServerConfig
from engine.serving.rules import SglangRules
from engine.serving.speculation import Speculation, acceptance_of
from engine.timing import build_timing
from engine.timing.contract import PassTimeSource
from engine.timing.hidden import HiddenHost, hides
from engine.traces.tree import Trace
from engine.workload.client import Client
from engine.workload.hash_ids import block_keys_of
from engine.workload.primed import PrimedClient, make_client
from engine.workload.recorded import RecordedClient

__all__ = ["Canceled", "knobs_from_run", "replay", "resolve_host_terms", "simulate"]

Progress = Callable[[int, float, int, int], None]
"""Called with simulated time (ns), wall time (s), passes and requests so far."""
MOST_NAMED = 5
"""Changed knobs that a title names."""
REPORT_EVERY_S = 0.1
LOOK_EVERY_NS = 1_000_000_000
"""Simulated time after something happened at which a replay that is watched looks up, even when nothing finished."""


class Canceled(Exception):
    """The replay was asked to stop; nothing was written."""


def resolve_host_terms(values: Mapping[str, Any], model: Mapping[str, Any] | None) -> dict[str, Any]:
    """The knobs with every term of the host that is *as fitted* replaced by what the model knows.

    Latencies that are negative become the model's, or 0. With ``host_model=fitted`` the terms become those fitted on
    warm-up, and the model *given*. Its term per chunk is the whole way from a pass to the client, so it takes the place
    of a ``response_latency_ms`` that is as fitted, and gives way to one that is set.

    Raises:
        GapscopeError: ``host_model=fitted``, and the model knows no such terms.
    """
    known = (model or {}).get("host") or {} if values["timing"] != "fixed" else {}
    resolved = dict(values)
    if resolved["host_model"] == "fitted":
        frontend = known.get("frontend")
        if frontend is None:
            raise GapscopeError(
                "Knob host_model=fitted: the timing rests on no run whose warm-up recorded requests with their cached "
                "tokens, batches and chunks; fit on such a run (`--fit RUN:warmup`), or give the terms with "
                "host_model=given."
            )
        resolved |= {"host_model": "given", **{name: float(frontend[name]) for name in knob_table.HOST_TERMS}}
        is_set = resolved["response_latency_ms"] >= 0
        resolved["host_chunk_ms" if is_set else "response_latency_ms"] = 0.0
    for name in ("dispatch_lag_ms", "request_latency_ms", "response_latency_ms"):
        if resolved[name] < 0:
            resolved[name] = float(known[name]["value"]) if name in known else 0.0
    return resolved


def speculation_of(values: Mapping[str, Any]) -> Speculation | None:
    """What the knobs say of drafts.

    Raises:
        GapscopeError: acceptance is given not at all, twice, or as what is no probability.
    """
    tokens = values["spec_tokens"]
    if not tokens:
        return None
    acceptance = acceptance_of(
        values["spec_acceptance"],
        values["spec_mean_length"],
        tokens,
        values["spec_decay"],
        values["spec_measured_tokens"],
    )
    return Speculation(tokens, acceptance, values["spec_seed"])


def server_config(values: Mapping[str, Any]) -> ServerConfig:
    """The server's part of the knobs."""
    return ServerConfig(
        usable_kv_blocks=usable_blocks(values["kv_blocks"]),
        block_size=values["block_size"],
        max_num_seqs=values["max_num_seqs"],
        max_num_batched_tokens=values["max_num_batched_tokens"],
        long_prefill_token_threshold=values["long_prefill_token_threshold"],
        prefix_caching=values["prefix_caching"],
        reserve_full_prompt=values["reserve_full_prompt"],
        record_events=values["record_events"],
        speculation=speculation_of(values),
        engine=values["engine"],
        policy=values["policy"],
        reservation=values["reservation"],
        eviction=values["eviction"],
        cache_blocks=values["cache_blocks"],
        host=host_memory(values),
        async_scheduling=values["async_scheduling"],
        prefill_schedule_interval=values["prefill_schedule_interval"],
        pooled=values["prefill_replicas"] > 0,
        sglang=SglangRules(**{name: values[name] for name in knob_table.SGLANG_ONLY}).of_rank(
            values["attention_dp"], values["block_size"]
        ),
    )


def two_pools(values: Mapping[str, Any], timing: PassTimeSource) -> Disaggregated:
    """Workers that compute prompts, with limits and ranks of their own where they are given, and those that decode."""
    own = {name: values[f"prefill_{name}"] or values[name] for name in knob_table.OF_PREFILL}

    def pool(knobs: Mapping[str, Any], prefills: bool) -> Pool:
        limits = replace(server_config(knobs), prefills=prefills)
        return limits, partial(in_lockstep, knobs, timing, partial(make_server, limits, timing, knobs["core"]))

    return disaggregated(values, timing, pool({**values, **own}, True), pool(values, False))


def simulate(
    trace: Trace,
    knobs: Mapping[str, Any],
    timing: PassTimeSource,
    model: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    cancel: Callable[[], bool] | None = None,
    client: RecordedClient | None = None,
    server: Server | None = None,
) -> ReplayResult:
    """Play ``trace`` against a simulated server until nothing is left to happen.

    ``knobs`` are changes to the defaults or a complete set; latencies that are *as fitted* come from ``model``.
    ``client`` and ``server`` replace those that the knobs describe.

    Raises:
        GapscopeError: bad knobs, a prompt that can never fit the pool, a refused timing query (if so configured).
        Canceled: ``cancel`` said so.
    """
    asked = knob_table.resolve(knobs)
    values = resolve_host_terms(asked, model)
    begun, begun_cpu = time.perf_counter(), time.process_time()
    with collector_paused():
        keys = block_keys_of(trace, values["block_size"]) if client is None else client.keys
        sender = make_client(trace, values, keys) if client is None else client
        if server is None:
            clock: PassTimeSource = HiddenHost(timing) if hides(values, model) else timing
            if values["prefill_replicas"]:
                server = two_pools(values, timing)
            else:
                rank = partial(make_server, server_config(values), clock, values["core"])
                server = behind_router(values, clock, partial(in_lockstep, values, clock, rank))
        watch = _Watch(progress, cancel, begun) if progress or cancel else None
        aborted = _run(sender, server, watch)
        if isinstance(server, Cluster | Disaggregated):  # which a replica learns of after its pass
            aborted |= server.dropped_ns
        record = server.finish()
        if isinstance(sender, PrimedClient):
            by = sender.rebase()
            move_back(record, by)
            aborted = {index: time - by for index, time in aborted.items()}
    host = {"wall_s": time.perf_counter() - begun, "cpu_s": time.process_time() - begun_cpu}
    return ReplayResult(trace, asked, values, timing, keys, sender, record, aborted, host)


def _run(client: Client, server: Server, watch: _Watch | None) -> dict[int, int]:
    """The event loop; returns when the engine dropped each request that the client canceled."""
    aborted: dict[int, int] = {}
    now = client.start_ns
    while True:
        check_time(now)
        for request in client.due(now):
            server.receive(request, now)
        for index in client.aborts(now):
            server.abort(index, now)
            aborted[index] = now
        until = client.next_ns
        if server.has_work:
            if watch:  # stopping between two passes changes nothing
                look = LOOK_EVERY_NS + (server.next_ns if isinstance(server, Cluster | Disaggregated) else now)
                until = look if until is None else min(until, look)
            now, finished = server.advance(now, until)
            for done in finished:
                client.finished(done)
            if watch:
                watch.look(now, finished[-1].pass_index if finished else None, len(client.sent))
        elif until is not None:
            now = max(now, until)
        else:
            return aborted


class _Watch:
    """Reports progress and asks for a cancel, a few times per second of wall time."""

    def __init__(self, progress: Progress | None, cancel: Callable[[], bool] | None, begun: float) -> None:
        self._progress = progress
        self._cancel = cancel
        self._begun = begun
        self._next = begun + REPORT_EVERY_S
        self._passes = 0

    def look(self, now_ns: int, pass_index: int | None, requests: int) -> None:
        if pass_index is not None:
            self._passes = pass_index + 1
        at = time.perf_counter()
        if at < self._next:
            return
        self._next = at + REPORT_EVERY_S
        if self._progress:
            self._progress(now_ns, at - self._begun, self._passes, requests)
        if self._cancel and self._cancel():
            raise Canceled


def replay(
    trace: Trace,
    knobs: Mapping[str, Any],
    model: Mapping[str, Any] | None = None,
    *,
    store: Path,
    presets: Sequence[Path] = (),
    progress: Progress | None = None,
    cancel: Callable[[], bool] | None = None,
    **about: Unpack[About],
) -> str:
    """Simulate and write the bundle; returns its run id.

    Args:
        trace: the workload.
        knobs: changes to the defaults, or a complete set.
        model: a timing model (:mod:`engine.timing`), unless ``timing`` is fixed or analytic.
        store: the folder that gets the bundle.
        presets: folders with a user's parts and models.
        progress: see :data:`Progress`.
        cancel: asked a few times per second; True ends the replay with nothing written.
        about: what the bundle says besides what happened.

    Raises:
        GapscopeError: see :func:`simulate`; the store cannot be written.
        Canceled: ``cancel`` said so.
    """
    values = knob_table.resolve(knobs)
    timing = build_timing(values, model, presets)
    if cancel and cancel():
        raise Canceled
    result = simulate(trace, values, timing, model, progress, cancel)
    return write(result, model, store, cancel=cancel, **about)


def write(
    result: ReplayResult,
    model: Mapping[str, Any] | None,
    store: Path,
    *,
    more: Mapping[str, pa.Table] | None = None,
    cancel: Callable[[], bool] | None = None,
    **about: Unpack[About],
) -> str:
    """Write a finished replay as a bundle; returns its run id.

    ``more`` are further tables; the other arguments are as for :func:`replay`.
    """
    if not result.num_requests:
        raise GapscopeError(
            f"The replay of {result.trace.name} sent no request before its admission deadline: expected a longer "
            "duration_s, or shorter think times."
        )
    tables, values, like = Tables(result), result.knobs, about.get("like")
    title = about.get("title") or _title(result, about)
    slug = about.get("slug") or _slug(like, result.trace, about.get("title"))
    wanted: list[tuple[str, Any]] = [("requests", tables.requests), ("passes", tables.passes)]
    if values["record_events"]:
        wanted.append(("kv_events", tables.kv_events))
    wanted.append(("admissions", tables.admissions))
    if values["record_chunks"]:
        wanted.append(("chunks", tables.chunks))
    wanted.append(("coverage", tables.coverage))
    if values["idle_cap"] == "system":
        wanted.append(("idle_shifts", tables.idle_shifts))
    if result.record.transfers is not None:
        wanted.append(("transfers", tables.transfers))
    wanted += [(name, lambda table=table: table) for name, table in (more or {}).items()]
    identity = identity_of(result, model, about)
    with BundleWriter(store, "replay", slug, title, identity) as writer:
        for name, rows in wanted:
            if cancel and cancel():
                raise Canceled
            writer.write_table(name, rows())
        return writer.seal(
            phases=result.phases,
            lineage=lineage_of(result, model, about),
            qualification=_qualification(result),
            never_issued=result.client.never_issued,
            host={"core": values["core"], **{name: round(value, 6) for name, value in result.host.items()}},
        )


def _qualification(result: ReplayResult) -> list[Check]:
    client = result.client
    if client.deadline_ns is None or isinstance(client, RecordedClient):
        return []
    open_loop = result.knobs["arrivals"] not in ("lanes", "concurrency")
    ended = _last_start_ns(result) if open_loop else client.exhausted_ns
    if ended is None:
        return [Check("trace_outlasts_profile", "pass", "")]
    what = "the last play of the trace started" if open_loop else "a lane found no play left"
    at = f"{what} {ended / 1e9:.1f} s after profile start, which lasts {client.deadline_ns / 1e9:.1f} s"
    remedy = "" if result.knobs["arrivals"] == "trace" else " (set wrap=true to go on)"
    return [Check("trace_outlasts_profile", "fail", f"{at}; the load falls from there on{remedy}")]


def _last_start_ns(result: ReplayResult) -> int | None:
    """When an open loop started its last play, if the trace ran out by that; None where it did not."""
    client = result.client
    if result.knobs["wrap"] or len(client.plays) < len(result.trace.plays):
        return None
    sent = client.sent
    starts = [
        at
        for talk, turn, at in zip(sent.conversation, sent.turn, sent.dispatched_ns, strict=True)
        if turn == 0 and talk.parent is None
    ]
    return max(starts, default=None)


def _title(result: ReplayResult, about: About) -> str:
    """What is replayed, and the settings in which it departs from what it is like."""
    like, base = about.get("like"), about.get("base")
    if base is not None:
        start = knob_table.resolve({}, knobs_from_run(base))
        changed = {
            name: value for name, value in result.asked.items() if start[name] not in (value, result.knobs[name])
        }
        return ", ".join([base.run_id.rpartition("-")[0], *_named(changed)])
    title = f"Replay of {result.trace.name if like is None else like.title}"
    departs = changed_knobs(result, about) if like is not None else {}
    named = _named({name: told["to"] for name, told in departs.items() if result.knobs[name] != told["from"]})
    return f"{title}, with {', '.join(named)}" if named else title


def _named(changes: Mapping[str, Any]) -> list[str]:
    """Changed knobs in words, at most :data:`MOST_NAMED`."""
    named = [f"{name}={value}" for name, value in changes.items()]
    if len(named) > MOST_NAMED:
        named[MOST_NAMED - 1 :] = [f"{len(named) - MOST_NAMED + 1} more changes"]
    return named


def _slug(like: Bundle | None, trace: Trace, title: str | None) -> str:
    if title is None and like is not None:
        return slugify(f"{like.run_id.rpartition('-')[0]}-replay")
    return slugify(title or f"{trace.name}-replay")
