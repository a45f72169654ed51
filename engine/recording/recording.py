"""One recording: a workload played against a server, with what the server's recorder wrote meanwhile, as a run."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from engine.bundle import slugify
from engine.errors import GapscopeError, Interrupted
from engine.importers import import_recording
from engine.recording import account, interrupts
from engine.recording.alive import check_rows, check_written
from engine.recording.client.lateness import Lateness
from engine.recording.client.load import Exchange, Load
from engine.recording.client.prompts import ChatPrompts, TokenPrompts
from engine.recording.client.requests import Asking
from engine.recording.client.sending import session
from engine.recording.clocks import boot_id
from engine.recording.endpoint import look_at, reset_cache
from engine.recording.facts import client_facts, endpoint_facts
from engine.recording.fits import check_fits
from engine.recording.folder import begin_client_half, finish_client_half, holds_requests
from engine.recording.interrupts import Interrupts
from engine.recording.join import join
from engine.recording.journal import Journal
from engine.recording.listeners import Listening
from engine.recording.plan import Plan
from engine.traces.prompts import TokenSource, load_played
from engine.traces.tree import Trace
from engine.workload.hash_ids import block_keys_of
from engine.workload.primed import make_client

FLUSH_S = 1.5
"""After the load: until the server's recorder has written, and events have arrived."""
NO_BLOCKS = 1 << 30
"""Tokens of a block that is never full: a real server names its own."""
Progress = Callable[[float | None, str], None]


@dataclass(frozen=True)
class Recorded:
    """What came of it: the run, the folder of raw files where they were kept, remarks for the user, and whether this
    program failed on the way."""

    run_id: str
    raw: Path | None
    remarks: list[str]
    broken: bool = False


def record(plan: Plan, store: Path, progress: Progress) -> Recorded:
    """Record a run into ``store``.

    Raises:
        GapscopeError: no server, another model, a trace that does not fit it, rows that are not there, or a folder that
            cannot be written.
        Interrupted: before the profile began, and nothing is left; or later, and it says where what was recorded lies.
        RecordingBroken: a defect of this program; what was recorded lies where it says.
    """
    trace, source = load_played(plan.trace, plan.read_as, plan.ids_from, plan.ids_below)
    if plan.rows is not None:
        check_rows(plan.rows)
    folder, made = _new_folder(plan, store)
    try:
        identity, remarks, problem = interrupts.run(partial(_record, plan, trace, source, folder, progress))
        finish_client_half(folder, identity)
    except _NotBegun as error:
        _remove(folder, made)
        raise (GapscopeError(error.words) if error.number is None else Interrupted(error.number, error.words)) from None
    except (Exception, KeyboardInterrupt) as error:
        if holds_requests(folder):
            raise _kept(error, folder, plan, store) from error
        _remove(folder, made)
        raise
    progress(None, "sealing")
    try:
        run_id = (
            import_recording(folder, store, plan.trace, plan.title)
            if plan.rows is None
            else join(folder, plan.rows, store, plan.trace, title=plan.title)
        )
    except (Exception, KeyboardInterrupt) as error:
        raise _kept(error, folder, plan, store) from error
    # Without the server's half that has yet to be laid under; aggregates are attached from where they lie.
    keep = plan.raw is not None or plan.rows is None or bool(plan.published.fpm)
    if not keep:
        _remove(folder, made)
    return Recorded(run_id, folder if keep else None, remarks, problem is not None)


class RecordingBroken(Exception):
    """This program failed; one sentence with the cause, and where what was recorded lies."""


class _NotBegun(Exception):
    """The load ended before there was anything to keep: by a signal of this ``number``, or by itself."""

    def __init__(self, words: str, number: int | None) -> None:
        super().__init__(words)
        self.words, self.number = words, number


def _kept(error: BaseException, folder: Path, plan: Plan, store: Path) -> BaseException:
    """The error with where what was recorded lies."""
    words = f"What was recorded lies in {folder}: `{_command(folder, plan, store)}` makes a run of it."
    if isinstance(error, GapscopeError):
        return GapscopeError(f"{error} {words}")
    if isinstance(error, KeyboardInterrupt):
        number = error.number if isinstance(error, Interrupted) else signal.SIGINT
        return Interrupted(number, f"interrupted; no run is written. {words}")
    return RecordingBroken(f"The recording was broken off by {account.cause(error)}. {words}")


def _command(folder: Path, plan: Plan, store: Path) -> str:
    """The command that makes a run of what lies in ``folder``."""
    words = ["gapscope", "import", folder] if plan.rows is None else ["gapscope", "record", "join", folder]
    words += [] if plan.rows is None else ["--rows", plan.rows]
    return shlex.join(map(str, [*words, "--trace", plan.trace, "--store", store]))


def _new_folder(plan: Plan, store: Path) -> tuple[Path, list[Path]]:
    """An empty folder for the files, and which folders had to be made for that, the innermost first.

    Raises:
        GapscopeError: there is one already that holds something, or it cannot be made.
    """
    folder = plan.raw or store / "recordings" / slugify(plan.name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        command = _command(folder, plan, store)
        left = f" `{command}` makes a run of what lies there." if holds_requests(folder) else ""
        raise GapscopeError(
            f"{folder} is there already: give the recording another --name, or --raw an empty folder.{left}"
        )
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GapscopeError(f"The recording cannot be written to {folder}: {error.strerror or error}.") from error
    return folder, made


def _remove(folder: Path, made: Sequence[Path]) -> None:
    """Take the files away, and the folders that were made for them, unless others use them by now."""
    for path in folder.iterdir():
        path.unlink()
    with suppress(OSError):
        for path in made:
            path.rmdir()


async def _record(
    plan: Plan, trace: Trace, source: TokenSource, folder: Path, progress: Progress, signals: Interrupts
) -> tuple[dict[str, Any], list[str], Exception | None]:
    """Play the load, and write its requests as they end; returns the identity of the client's half, remarks, and what
    ended it that should not."""
    async with session(plan.timeout_s) as http:
        endpoint = await look_at(http, plan.url, plan.model)
        check_fits(trace, endpoint)
        client = make_client(trace, plan.knobs, block_keys_of(trace, trace.hash_block_tokens or NO_BLOCKS))
        asking = Asking(http, endpoint, plan.chat)
        if plan.rows:
            await check_written(plan.rows, lambda: asking.try_out(source))
        else:
            await asking.try_out(source)
        with Listening(folder, plan.published) as listening:
            await listening.connected()
            reset = False if plan.keep_cache else await reset_cache(http, endpoint)
            own = plan.knobs["arrivals"] != "concurrency"
            prompts = ChatPrompts(source) if plan.chat else TokenPrompts(source, own)
            lateness = Lateness()
            wall_ns, mono_ns, busy = time.time_ns(), time.monotonic_ns(), os.getloadavg()

            def identity() -> dict[str, Any]:
                """What is known of the recording by now."""
                return {
                    "run": plan.name,
                    "measured": True,
                    **endpoint_facts(endpoint),
                    "workload": account.workload(plan, trace, source, client, asking.sampling, own),
                    "phases": account.phases(plan, account.profile_start_ns(client) or 0, load, journal, reset),
                    "client": client_facts(),
                    "clock": {
                        "origin": "t0 = start of the load; all *_s are seconds since then on CLOCK_MONOTONIC of the "
                        "client",
                        "t0_unix_ns": wall_ns + load.started_ns - mono_ns,
                        "t0_mono_ns": load.started_ns,
                        "boot_id": boot_id(),
                    },
                    "end": account.end(client, load, journal),
                }

            def keep(exchange: Exchange) -> None:
                began_ns = account.profile_start_ns(client)
                if began_ns is not None and (journal.profile_start_s is None or not journal.rows):
                    # As soon as the profile is known, so that even a program that is killed leaves a recording.
                    journal.profile_start_s = began_ns / 1e9
                    begin_client_half(folder, identity())
                journal.started_ns = load.started_ns
                journal.take(exchange)

            with Journal(folder) as journal:
                tag = asking.tag(plan.name)
                load = Load(client, prompts, asking.send, tag, keep, partial(_show, progress, plan.knobs))
                with signals.ending(load.stop):
                    lateness.start()
                    await load.play()
                late = lateness.end()
            progress(None, "waiting for the server's rows")
            await _flushed(FLUSH_S if plan.rows or plan.published else 0, signals)
        began_ns = account.profile_start_ns(client)
        if load.stopped and (began_ns is None or (load.ended_ns or 0) - load.started_ns < began_ns):
            if load.problem is not None:
                raise load.problem
            why = "The server was gone" if load.server_gone else "interrupted"
            number = None if load.server_gone else signals.number
            raise _NotBegun(f"{why} before the profile began: nothing was written.", number)
        if isinstance(load.problem, GapscopeError):
            raise load.problem
    told = identity()
    told["client"] |= late
    if endpoint.is_local:
        told["machine_load"] = {"load_before": busy, "load_after": os.getloadavg()}
    if listening.words:
        told["listeners"] = listening.words
    return told, account.remarks(told, journal), load.problem


async def _flushed(seconds: float, signals: Interrupts) -> None:
    """Wait; a signal ends that, and the run is sealed."""
    enough = asyncio.Event()
    with signals.ending(enough.set), suppress(TimeoutError):
        await asyncio.wait_for(enough.wait(), seconds)


def _show(progress: Progress, knobs: Mapping[str, Any], now_ns: int, in_flight: int, over: int) -> None:
    whole = knobs["warmup_s"] + knobs["duration_s"]
    share = (now_ns / 1e9 + knobs["warmup_s"]) / whole if knobs["duration_s"] else None
    progress(share, f"{now_ns / 1e9:,.0f} s, {in_flight} in flight, {over:,} over")
