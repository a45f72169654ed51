"""One recording: a workload played against a server, with what the server's recorder wrote meanwhile, as a run."""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from engine.bundle import slugify
from engine.errors import GapscopeError
from engine.importers import import_recording
from engine.knobs import BY_NAME
from engine.recording.client.lateness import Lateness
from engine.recording.client.load import Load
from engine.recording.client.prompts import ChatPrompts, TokenPrompts
from engine.recording.client.requests import Asking
from engine.recording.client.rows import request_row
from engine.recording.client.sending import session
from engine.recording.clocks import boot_id
from engine.recording.endpoint import look_at, reset_cache
from engine.recording.facts import client_facts, endpoint_facts
from engine.recording.fits import check_fits
from engine.recording.folder import write_client_half
from engine.recording.join import join
from engine.recording.listeners import Listening, Published
from engine.traces.prompts import HIGH, LOW, TokenSource, load_played
from engine.traces.tree import Trace
from engine.workload.client import Client
from engine.workload.hash_ids import block_keys_of
from engine.workload.primed import make_client

FLUSH_S = 1.5
"""After the load: until the server's recorder has written, and events have arrived."""
NO_BLOCKS = 1 << 30
"""Tokens of a block that is never full: a real server names its own."""
Progress = Callable[[float | None, str], None]


@dataclass(frozen=True)
class Plan:
    """What is to be recorded.

    ``knobs`` are complete client settings (``engine.knobs``). ``rows`` is where the server's recorder writes,
    ``published`` where the engine tells of itself. ``raw`` keeps the files of the recording.
    """

    url: str
    trace: Path
    knobs: Mapping[str, Any]
    name: str
    model: str | None = None
    title: str | None = None
    chat: bool = False
    read_as: Mapping[str, str] = field(default_factory=dict)
    rows: Path | None = None
    published: Published = field(default_factory=Published)
    raw: Path | None = None
    timeout_s: float = 600.0
    ids_from: int = LOW
    ids_below: int = HIGH
    keep_cache: bool = False


@dataclass(frozen=True)
class Recorded:
    """What came of it: the run, the folder of raw files where they were kept, and remarks for the user."""

    run_id: str
    raw: Path | None
    remarks: list[str]


def record(plan: Plan, store: Path, progress: Progress) -> Recorded:
    """Record a run into ``store``.

    Raises:
        GapscopeError: no server, another model, a trace that does not fit it, rows that are not there, a folder that
            cannot be written, or an interrupt before the profile began.
    """
    trace, source = load_played(plan.trace, plan.read_as, plan.ids_from, plan.ids_below)
    folder = _new_folder(plan, store)
    try:
        identity, requests = asyncio.run(_record(plan, trace, source, folder, progress))
        write_client_half(folder, identity, requests)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    progress(None, "sealing")
    try:
        run_id = (
            import_recording(folder, store, plan.trace, plan.title)
            if plan.rows is None
            else join(folder, plan.rows, store, plan.trace, title=plan.title)
        )
    except GapscopeError as error:
        raise GapscopeError(f"{error} What was recorded lies in {folder} (`gapscope record join`).") from None
    keep = plan.raw is not None or plan.rows is None  # without the server's half it has yet to be laid under
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)
    return Recorded(run_id, folder if keep else None, _remarks(identity, requests))


def _new_folder(plan: Plan, store: Path) -> Path:
    """An empty folder for the files.

    Raises:
        GapscopeError: there is one already that holds something, or it cannot be made.
    """
    folder = plan.raw or store / "recordings" / slugify(plan.name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise GapscopeError(f"{folder} is there already: give the recording another --name, or --raw an empty folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GapscopeError(f"The recording cannot be written to {folder}: {error.strerror or error}.") from error
    return folder


async def _record(
    plan: Plan, trace: Trace, source: TokenSource, folder: Path, progress: Progress
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Play the load; returns the identity and the rows of the client's half."""
    async with session(plan.timeout_s) as http:
        endpoint = await look_at(http, plan.url, plan.model)
        check_fits(trace, endpoint)
        client = make_client(trace, plan.knobs, block_keys_of(trace, trace.hash_block_tokens or NO_BLOCKS))
        asking = Asking(http, endpoint, plan.chat)
        await asking.try_out(source)
        with Listening(folder, plan.published) as listening:
            reset = False if plan.keep_cache else await reset_cache(http, endpoint)
            own = plan.knobs["arrivals"] != "concurrency"
            prompts = ChatPrompts(source) if plan.chat else TokenPrompts(source, own)
            load = Load(client, prompts, asking.send, asking.tag(plan.name), partial(_show, progress, plan.knobs))
            lateness = Lateness()
            wall_ns, mono_ns = time.time_ns(), time.monotonic_ns()
            with _interrupts(load):
                lateness.start()
                await load.play()
            late = lateness.end()
            progress(None, "waiting for the server's rows")
            await asyncio.sleep(FLUSH_S if plan.rows or plan.published else 0)
        profile_s = _profile_start_ns(client) / 1e9
        if load.stopped and (load.ended_ns or 0) - load.started_ns < _profile_start_ns(client):
            raise GapscopeError("Interrupted before the profile began: nothing was written.")
        rows = [request_row(one, load.started_ns, profile_s) for one in load.exchanges if one.answer.dispatched_ns]
        rows.sort(key=lambda row: row["dispatch_s"])
    identity = {
        "run": plan.name,
        "measured": True,
        **endpoint_facts(endpoint),
        "workload": _workload(plan, trace, source, client, asking, own),
        "phases": _phases(plan, client, load, reset),
        "client": {**client_facts(), **late},
        "clock": {
            "origin": "t0 = start of the load; all *_s are seconds since then on CLOCK_MONOTONIC of the client",
            "t0_unix_ns": wall_ns + load.started_ns - mono_ns,
            "t0_mono_ns": load.started_ns,
            "boot_id": boot_id(),
        },
        "end": _end(client, load),
    }
    if listening.words:
        identity["listeners"] = listening.words
    return identity, rows


def _show(progress: Progress, knobs: Mapping[str, Any], now_ns: int, in_flight: int, over: int) -> None:
    whole = knobs["warmup_s"] + knobs["duration_s"]
    share = (now_ns / 1e9 + knobs["warmup_s"]) / whole if knobs["duration_s"] else None
    progress(share, f"{now_ns / 1e9:,.0f} s, {in_flight} in flight, {over:,} over")


@contextmanager
def _interrupts(load: Load) -> Iterator[None]:
    """Ctrl-C ends the load; what was recorded is kept. A second one ends the program."""
    loop, before = asyncio.get_running_loop(), signal.getsignal(signal.SIGINT)

    def interrupt() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)
        load.stop()

    try:
        loop.add_signal_handler(signal.SIGINT, interrupt)
    except (ValueError, RuntimeError, NotImplementedError):  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)


def _profile_start_ns(client: Client) -> int:
    """From the start of the load to the start of the profile."""
    origin = getattr(client, "origin_ns", None)
    return -client.start_ns if origin is None else int(origin) - client.start_ns


def _workload(
    plan: Plan, trace: Trace, source: TokenSource, client: Client, asking: Asking, own: bool
) -> dict[str, Any]:
    knobs = plan.knobs
    changed = {
        name: knobs[name]
        for name, knob in BY_NAME.items()
        if knob.group in ("client", "phases") and knobs[name] != knob.default
    }
    return {
        "trace": plan.trace.name,
        "trace_sha256": trace.digest,
        "read_as": trace.read_as or None,
        "lanes": knobs["lanes"],
        "lane_assignment": knobs["lane_assignment"],
        "lane_stagger_s": knobs["lane_stagger_ms"] / 1000,
        "loop": "closed" if knobs["arrivals"] == "lanes" else f"arrivals: {knobs['arrivals']}",
        "knobs": changed,
        "sampling": asking.sampling,
        "never_issued": client.never_issued,
        "prompts": {
            "sent_as": "messages" if plan.chat else "token ids",
            "made_up": not source.given,
            "ids_from": source.low,
            "ids_below": source.high,
            "outputs": "own" if own else "made up",
        },
    }


def _phases(plan: Plan, client: Client, load: Load, reset: bool) -> dict[str, Any]:
    start_ns, knobs = _profile_start_ns(client), plan.knobs
    lasted_s = ((load.ended_ns or 0) - load.started_ns - start_ns) / 1e9
    return {
        "prewarm": f"one request of one token; prefix cache {'reset' if reset else 'not reset'}",
        "warmup_s": round(start_ns / 1e9, 6),
        "primed": bool(knobs["prime"]),
        "duration_s": knobs["duration_s"] or round(lasted_s, 6),
        "grace_s": knobs["grace_s"],
        "cancel": "requests in flight after the grace are canceled by closing the connection",
        "prefix_cache_reset": reset,
    }


def _end(client: Client, load: Load) -> dict[str, Any]:
    ended_s = ((load.ended_ns or 0) - load.started_ns) / 1e9
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
        "canceled": sum(one.answer.status == "canceled" for one in load.exchanges),
        "trace_exhausted": client.exhausted_ns is not None,
        "idle_shifts": len(client.shifts),
    }


def _remarks(identity: Mapping[str, Any], rows: list[dict[str, Any]]) -> list[str]:
    """What a user should know besides the checks of the run."""
    remarks = []
    end, client = identity["end"], identity["client"]
    if end["interrupted"]:
        remarks.append(f"interrupted {end['t_end_s']:.1f} s after the start: what was recorded is kept, and cut short")
    if client["cpu_share"] > 0.9:
        remarks.append(f"the client used {100 * client['cpu_share']:.0f} % of a processor: it is the bottleneck")
    failed = [row for row in rows if row["status"] == "error"]
    if failed:
        remarks.append(f"{len(failed):,} of {len(rows):,} requests failed, the first with: {failed[0]['error']}")
    return remarks
