"""Reuse of prompt tokens, cache events and the KV pool, always beside preemptions and latency."""

from __future__ import annotations

from dashboard.metrics import Population
from dashboard.queries.ranges import Span, block_size, capture_span
from dashboard.store import Result, Store


def hit_ratio_time(store: Store, run_id: str, span: Span | None = None, bins: int = 30) -> Result:
    """Columns ``time_ns, requests, cached_tokens, prompt_tokens, hit_ratio``; bins without admissions are absent."""
    span = span or capture_span(store, run_id)
    return store.query("hit_ratio_time", {"bins": bins, **span.params()}, runs={"run": run_id})


def hit_ratio_turn(store: Store, run_id: str, population: Population, last_turn: int = 12) -> Result:
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


def pool_occupancy(store: Store, run_id: str, span: Span | None = None, bins: int = 240) -> Result:
    """Blocks referred to, contents held and blocks free over time.

    ``cached_blocks`` counts distinct contents whether or not a request refers to them; ``free_blocks`` are those no
    request refers to, so cached and free overlap.
    """
    span = span or capture_span(store, run_id)
    return store.query("pool_occupancy", {"bins": bins, **span.params()}, runs={"run": run_id})


def _shared(population: Population, replay: str) -> Population:
    rule = population if population.matched else Population(population.phase, "matched")
    return rule.for_side(replay)


def reuse_change(store: Store, measured: str, replay: str, population: Population, row_cap: int = 500) -> Result:
    """Reused tokens of each shared source-turn on both sides, the largest change first."""
    return store.query(
        "reuse_change",
        runs={"measured": measured, "replay": replay},
        population=_shared(population, replay),
        row_cap=row_cap,
    )


def reuse_summary(store: Store, measured: str, replay: str, population: Population) -> Result:
    """One row: shared turns, those with equal, more and less reuse, and the tokens in each direction."""
    return store.query(
        "reuse_summary", runs={"measured": measured, "replay": replay}, population=_shared(population, replay)
    )


def block_history(store: Store, run_id: str, conversation_id: str, row_cap: int = 5000) -> Result:
    """Stores, hits and evictions of each block of a conversation's prompts, in order, with who and how long after.

    ``since_last_ns`` of an eviction is the age that the run recorded, else the time since the last event of the block.
    """
    return store.query("block_history", {"conversation_id": conversation_id}, runs={"run": run_id}, row_cap=row_cap)
