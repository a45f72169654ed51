"""Drives a server into known shapes of passes, for fitting pass times.

The server's recorder has the passes; this says which of them belong to which shape. Every prompt is new, so nothing
but what is meant to be is in the cache.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.bundle import slugify
from engine.errors import GapscopeError
from engine.importers import import_sweep
from engine.recording import interrupts
from engine.recording.alive import check_rows, check_written
from engine.recording.client.prompts import Prompt
from engine.recording.client.requests import Asking
from engine.recording.client.sending import session
from engine.recording.clocks import boot_id, clock_of
from engine.recording.endpoint import Endpoint, look_at
from engine.recording.facts import endpoint_facts, server_facts
from engine.recording.folder import write_sweep
from engine.recording.joining import Rows, server_half
from engine.recording.recording import FLUSH_S, Progress
from engine.recording.rows import Series, read_series
from engine.recording.shapes import DECODE_TOKENS, Limits, Shape, labels, shapes_for
from engine.traces.content import TokenIds
from engine.traces.prompts import TokenSource

MIXED_PROMPTS = 4
SETTLE_S = 0.2


@dataclass(frozen=True)
class SweepPlan:
    """What is to be swept, and when it ends: after so many ``repeats`` of each shape, or ``max_minutes``."""

    url: str
    rows: Path
    name: str = "sweep"
    model: str | None = None
    title: str | None = None
    timeout_s: float = 600.0
    ids_from: int = 256
    ids_below: int = 8000
    repeats: int = 3
    max_minutes: float = 10.0
    max_context: int | None = None


def sweep(plan: SweepPlan, store: Path, progress: Progress) -> str:
    """Sweep a server into a run of kind sweep in ``store``; returns its id.

    Raises:
        GapscopeError: no server, no rows of its recorder, or a request that failed.
        Interrupted: nothing was written.
    """
    if plan.repeats < 1 or not plan.max_minutes > 0:
        raise GapscopeError(
            f"A sweep of {plan.repeats} repeats in {plan.max_minutes:g} minutes is none: expected more."
        )
    limits = limits_of(check_rows(plan.rows)[0], plan.max_context)
    started_ns = time.monotonic_ns()
    endpoint, shapes = interrupts.run(lambda _: _drive(plan, limits, progress))
    passes, meta = _passes(plan.rows, shapes, started_ns, time.monotonic_ns())
    identity = endpoint_facts(endpoint)
    identity |= server_facts(identity, meta)
    with tempfile.TemporaryDirectory(prefix="gapscope-sweep-") as held:
        folder = Path(held) / slugify(plan.name)
        write_sweep(folder, identity, meta, passes, labels(shapes, passes))
        return import_sweep(folder, store, title=plan.title)


def limits_of(series: Series, max_context: int | None = None) -> Limits:
    """What the row of the recorder that describes the scheduler says.

    Raises:
        GapscopeError: it does not say that, or batches are not recorded.
    """
    names = ("max_num_batched_tokens", "max_num_seqs", "max_model_len", "num_usable_kv_blocks", "block_size")
    missing = [name for name in names if type(series.meta.get(name)) is not int]
    if missing:
        raise GapscopeError(f"The server's recorder does not say {', '.join(missing)}, which a sweep needs.")
    if not series.meta["exact_batches"]:
        raise GapscopeError("The server's recorder cannot tell batches with asynchronous scheduling: start it without.")
    budget, seats, context, blocks, block = (int(series.meta[name]) for name in names)
    return Limits(budget, seats, min(context, max_context or context), blocks * block, block)


async def _drive(plan: SweepPlan, limits: Limits, progress: Progress) -> tuple[Endpoint, list[Shape]]:
    """Run shape after shape, the whole list again and again; returns those that were run."""
    wanted = shapes_for(limits)
    until = time.monotonic() + 60 * plan.max_minutes
    done: list[Shape] = []
    async with session(plan.timeout_s) as http:
        endpoint = await look_at(http, plan.url, plan.model)
        asking = Asking(http, endpoint, chat=False)
        source = TokenSource(low=plan.ids_from, high=plan.ids_below)
        await check_written(plan.rows, lambda: asking.try_out(source))
        driver = _Driver(asking, source, plan.name, limits.block)
        await driver.ask(limits.budget, 2)  # the first passes of a server are slow
        for rep in range(plan.repeats):
            for number, shape in enumerate(wanted):
                if time.monotonic() > until:
                    return endpoint, done
                whole = rep * len(wanted) + number
                progress(whole / (plan.repeats * len(wanted)), f"{shape.kind}, context {shape.ctx:,}")
                run = Shape(shape.kind, shape.new, shape.ctx, shape.batch, rep)
                await driver.run(run)
                done.append(run)
        await asyncio.sleep(FLUSH_S)
    return endpoint, done


class _Driver:
    def __init__(self, asking: Asking, source: TokenSource, name: str, block: int) -> None:
        self._asking, self._source, self._block = asking, source, block
        self._tag = asking.tag(name)
        self._made = self._sent = 0

    def tokens(self, count: int) -> TokenIds:
        """So many tokens that were never sent before."""
        self._made += 1
        return self._source.ids(f"{self._tag}:{self._made}", count)

    async def ask(self, prompt: int | TokenIds, tokens: int) -> str:
        """Send a prompt; returns the request's id.

        Raises:
            GapscopeError: the server failed.
        """
        ids = self.tokens(prompt) if isinstance(prompt, int) else prompt
        self._sent += 1
        name = f"{self._tag}-{self._sent:05d}"
        answer = await self._asking.send(name, Prompt({"prompt": ids.tolist()}, "", len(ids)), tokens)
        if answer.status == "canceled":
            raise asyncio.CancelledError
        if answer.status != "ok":
            raise GapscopeError(f"The sweep was broken off: a request failed ({answer.error}).")
        return name

    async def run(self, shape: Shape) -> None:
        """Drive the server into a shape, and note who made it."""
        if shape.kind == "prefill":
            base = self.tokens(shape.ctx)
            if shape.ctx:
                await self.ask(np.concatenate([base, self.tokens(1)]), 1)
            # The last token of a prompt is never hit, so that what is new is computed, and nothing besides.
            shape.requests.append(await self.ask(np.concatenate([base, self.tokens(shape.new)]), 1))
            return
        prompts = [self.tokens(shape.ctx) for _ in range(shape.batch)]
        for prompt in prompts:
            await self.ask(prompt, 1)  # so that all start together with what little is left to compute
        tokens = DECODE_TOKENS if shape.kind == "decode" else 4 * DECODE_TOKENS
        tasks = [asyncio.ensure_future(self.ask(prompt, tokens)) for prompt in prompts]
        if shape.kind == "mixed":
            await asyncio.sleep(SETTLE_S)
            for _ in range(MIXED_PROMPTS):
                if not all(task.done() for task in tasks):
                    shape.requests.append(await self.ask(shape.new, 1))
        shape.requests += await asyncio.gather(*tasks)


def _passes(rows: Path, shapes: Sequence[Shape], started_ns: int, ended_ns: int) -> tuple[Rows, dict[str, Any]]:
    """The passes whose members all belong to one shape, each with its number."""
    owner = {name: number for number, shape in enumerate(shapes) for name in shape.requests}
    series = read_series(rows, started_ns, client_ids=owner)[:1]
    here = boot_id()
    if series[0].meta.get("boot_id") != here:
        raise GapscopeError("A sweep is run on the machine of the server: expected rows that were written on this one.")
    clock = clock_of(series[0], (), started_ns, here)
    half = server_half(series, [clock], owner, started_ns, ended_ns)
    kept: Rows = []
    for row in half.passes:
        own = {owner.get(name) for name, *_ in row["reqs"]}
        if row["kind"] == "iter" and len(own) == 1 and None not in own:
            shape_id = own.pop()
            assert shape_id is not None
            kept.append({**row, "iter": len(kept), "shape_id": shape_id, "shape": shapes[shape_id].kind})
    if not kept:
        raise GapscopeError(f"{rows} has no pass of the sweep: expected the rows of the server at --url.")
    return kept, half.meta
