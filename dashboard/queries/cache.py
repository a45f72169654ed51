"""Reuse of prompt tokens, cache events and the KV pool, always beside preemptions and latency."""

from __future__ import annotations

from dashboard.metrics import Population
from dashboard.queries.ranges import Span, block_size, capture_span
from dashboard.store import Result, Store

LAST_TURN = 12
"""Turns from this one on share a row."""
CHANGED_TURNS = 2_000


def hit_ratio_time(store: Store, run_id: str, span: Span | None = None, bins: int = 30) -> Result:
    """Columns ``time_ns, requests, cached_tokens, prompt_tokens, hit_ratio``; bins without admissions are absent."""
    span = span or capture_span(store, run_id)
    return store.query("hit_ratio_time", {"bins": bins, **span.params()}, runs={"run": run_id})


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


def event_links(store: Store, run_id: str) -> Result:
    """Columns ``kind, identified, joined_by, blocks, share``: by what rule blocks were joined with pass and request."""
    return store.query("event_links", {"block_size": block_size(store, run_id)}, runs={"run": run_id})


def pool_occupancy(store: Store, run_id: str, span: Span | None = None, bins: int = 240) -> Result:
    """Blocks referred to, contents held and blocks free over time.

    ``cached_blocks`` counts distinct contents whether or not a request refers to them; ``free_blocks`` are those no
    request refers to, so cached and free overlap.
    """
    span = span or capture_span(store, run_id)
    return store.query("pool_occupancy", {"bins": bins, **span.params()}, runs={"run": run_id})


def recompute_totals(store: Store, run_id: str) -> Result:
    """Columns ``use, blocks, tokens, share``: what was computed and reused in the whole recording, docs/metrics.md."""
    return store.query("recompute_totals", {"block_size": block_size(store, run_id)}, runs={"run": run_id})


def recompute_time(store: Store, run_id: str, span: Span | None = None, bins: int = 60) -> Result:
    """Columns ``time_ns, computed_blocks, lost_blocks, reused_blocks, reused_once_blocks``; empty bins are absent."""
    span = span or capture_span(store, run_id)
    return store.query("recompute_time", {"bins": bins, **span.params()}, runs={"run": run_id})


def recompute_turn(store: Store, run_id: str, population: Population, last_turn: int = LAST_TURN) -> Result:
    """The same by turn of the conversation over the requests of a population, with preemptions and mean TTFT."""
    params = {"last_turn": last_turn, "block_size": block_size(store, run_id)}
    return store.query("recompute_turn", params, runs={"run": run_id}, population=population)


def _shared(population: Population, replay: str) -> Population:
    rule = population if population.matched else Population(population.phase, "matched")
    return rule.for_side(replay)


def reuse_bins(store: Store, measured: str, replay: str, population: Population) -> Result:
    """Shared source-turns in cells of reused tokens: ``measured_tokens, replay_tokens`` (means), ``turns, width``."""
    runs = {"measured": measured, "replay": replay}
    return store.query("reuse_bins", runs=runs, population=_shared(population, replay))


def reuse_histogram(store: Store, measured: str, replay: str, population: Population) -> Result:
    """Shared source-turns by how far their reuse differs: ``from_tokens, to_tokens`` inclusive, ``turns``."""
    runs = {"measured": measured, "replay": replay}
    return store.query("reuse_histogram", runs=runs, population=_shared(population, replay))


def reuse_missing(
    store: Store, measured: str, replay: str, population: Population, less: str, turns: int = CHANGED_TURNS
) -> Result:
    """Shared source-turns that reused less on the side ``less`` (``measured`` or ``replay``), and why.

    ``reason`` is what had become of the first block that only the other side reused: ``evicted``, ``not_stored``,
    ``diverged``, ``held``, ``no_block``, ``cleared``, ``elsewhere`` or ``unknown`` (docs/metrics.md).
    """
    first, second = (measured, replay) if less == "measured" else (replay, measured)
    sizes = {"less_block": block_size(store, first), "more_block": block_size(store, second)}
    return store.query(
        "reuse_missing",
        {"less": less, "turns": turns, **sizes},
        runs={"measured": measured, "replay": replay, "less": first, "more": second},
        population=_shared(population, replay),
    )


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


def reuse_conversations(store: Store, measured: str, replay: str, population: Population) -> Result:
    """Columns ``conversation_id, turns, changed_turns, changed_tokens``: the one whose reuse differs most first."""
    runs = {"measured": measured, "replay": replay}
    return store.query("reuse_conversations", runs=runs, population=_shared(population, replay))


def recompute_conversations(store: Store, run_id: str, population: Population) -> Result:
    """Columns ``conversation_id, lost_blocks`` of one run, the one that computed most again first."""
    return store.query("recompute_conversations", runs={"run": run_id}, population=population)


def block_history(store: Store, run_id: str, conversation_id: str, row_cap: int = 2_000) -> Result:
    """Stores, own hits and evictions of the blocks of a conversation's prompts, in order, with who and how long after.

    Neighbouring blocks that one request moved at one time share a row. ``since_last_*_ns`` of an eviction is its age:
    what the run recorded, else the time since the last request that used the block was released; of a store or a hit
    it is the time since the last event of the block. ``again`` says that the content had been evicted before.
    """
    return store.query("block_history", {"conversation_id": conversation_id}, runs={"run": run_id}, row_cap=row_cap)


def block_lives(store: Store, run_id: str, conversation_id: str) -> Result:
    """A row for each copy of a block of a conversation's prompts: stored, reused, last used, evicted, by whom."""
    return store.query("block_lives", {"conversation_id": conversation_id}, runs={"run": run_id}, row_cap=4_000)
