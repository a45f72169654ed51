"""Cache events and the KV pool of a run, block by block, always beside preemptions and latency."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from dashboard.metrics import Population
from dashboard.queries.ranges import Span, block_size, capture_span, timed
from dashboard.store import ROW_CAP, Result, Store

LAST_TURN = 12
"""Turns from this one on share a row."""
FOLLOWED = 400_000
"""Blocks moved by the events of a run, up to which each is followed: about 2 kB of the database's memory apiece."""


def hit_ratio_time(store: Store, run_id: str, span: Span | None = None, bins: int = 30) -> Result:
    """Columns ``time_ns, requests, cached_tokens, prompt_tokens, hit_ratio``; bins without admissions are absent."""
    params = {"bins": bins, **(span or capture_span(store, run_id)).params()}
    return timed(store, run_id, "requests", lambda: store.query("hit_ratio_time", params, runs={"run": run_id}))


def hit_ratio_turn(store: Store, run_id: str, population: Population, last_turn: int = LAST_TURN) -> Result:
    """Hit ratio by turn depth; ``reusable_hit_ratio`` is over the tokens that whole blocks can serve."""
    return store.query(
        "hit_ratio_turn",
        {"last_turn": last_turn, "block_size": block_size(store, run_id)},
        runs={"run": run_id},
        population=population,
    )


def event_timeline(store: Store, run_id: str, span: Span | None = None, bins: int = 120) -> Result:
    """Columns ``time_ns, kind, events, blocks``: stores, evictions, hits, preemptions, readmissions, clears."""
    span = span or capture_span(store, run_id)
    return store.query("event_timeline", {"bins": bins, **span.params()}, runs={"run": run_id})


def event_totals(store: Store, run_id: str) -> Result:
    """Events and blocks of the whole capture by kind and reason."""
    return store.query("event_totals", runs={"run": run_id})


def not_followed(store: Store, run_id: str) -> str | None:
    """A sentence where the events of a run moved more blocks than are followed one by one."""
    found = event_totals(store, run_id)
    moved = sum(row["blocks"] or 0 for row in found.rows() if row["kind"] not in ("clear", "preempt"))
    if moved <= FOLLOWED:
        return None
    return f"The events of run {run_id} moved {moved:,} blocks: they are followed one by one up to {FOLLOWED:,}."


def _of_blocks(
    store: Store,
    run_id: str,
    name: str,
    params: Mapping[str, Any] | None = None,
    population: Population | None = None,
    row_cap: int | None = ROW_CAP,
) -> Result:
    """The answer to a question about single blocks, or the sentence why it is not given."""
    if said := not_followed(store, run_id):
        return Result(pa.table({}), "", not_recorded=said)
    return store.query(name, params, runs={"run": run_id}, population=population, row_cap=row_cap)


def event_links(store: Store, run_id: str) -> Result:
    """Columns ``kind, identified, joined_by, blocks, share``: by what rule blocks were joined with pass and request."""
    return _of_blocks(store, run_id, "event_links")


def pool_occupancy(store: Store, run_id: str, span: Span | None = None, bins: int = 240) -> Result:
    """Blocks referred to, contents held and blocks free over time.

    ``cached_blocks`` counts distinct contents whether or not a request refers to them; ``free_blocks`` are those no
    request refers to, so cached and free overlap.
    """
    params = {"bins": bins, **(span or capture_span(store, run_id)).params()}
    return timed(store, run_id, "passes", lambda: store.query("pool_occupancy", params, runs={"run": run_id}))


def recompute_totals(store: Store, run_id: str) -> Result:
    """Columns ``use, blocks, tokens, share``: what was computed and reused in the whole recording, docs/metrics.md."""
    return _of_blocks(store, run_id, "recompute_totals", {"block_size": block_size(store, run_id)})


def recompute_time(store: Store, run_id: str, span: Span | None = None, bins: int = 60) -> Result:
    """Columns ``time_ns, computed_blocks, lost_blocks, reused_blocks, reused_once_blocks``; empty bins are absent."""
    span = span or capture_span(store, run_id)
    return _of_blocks(store, run_id, "recompute_time", {"bins": bins, **span.params()})


def recompute_turn(store: Store, run_id: str, population: Population, last_turn: int = LAST_TURN) -> Result:
    """The same by turn of the conversation over the requests of a population, with preemptions and mean TTFT."""
    params = {"last_turn": last_turn, "block_size": block_size(store, run_id)}
    return _of_blocks(store, run_id, "recompute_turn", params, population)


def recompute_conversations(store: Store, run_id: str, population: Population) -> Result:
    """Columns ``conversation_id, lost_blocks`` of one run, the one that computed most again first."""
    return _of_blocks(store, run_id, "recompute_conversations", {}, population)


def block_history(store: Store, run_id: str, conversation_id: str, row_cap: int = 2_000) -> Result:
    """Stores, own hits and evictions of the blocks of a conversation's prompts, in order, with who and how long after.

    Neighbouring blocks that one request moved at one time share a row. ``since_last_*_ns`` of an eviction is its age:
    what the run recorded, else the time since the last request that used the block was released; of a store or a hit
    it is the time since the last event of the block. ``again`` says that the content had been evicted before.
    """
    return _of_blocks(store, run_id, "block_history", {"conversation_id": conversation_id}, row_cap=row_cap)


def block_lives(store: Store, run_id: str, conversation_id: str) -> Result:
    """A row for each copy of a block of a conversation's prompts: stored, reused, last used, evicted, by whom."""
    return _of_blocks(store, run_id, "block_lives", {"conversation_id": conversation_id}, row_cap=4_000)
