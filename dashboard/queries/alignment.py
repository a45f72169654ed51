"""Sums that the arithmetic of a run is held against: tokens asked for and computed, time in passes, lanes, decodes."""

from __future__ import annotations

from typing import Any

from dashboard.queries.ranges import Span
from dashboard.store import Result, Store


def request_tokens(store: Store, run_id: str) -> Result:
    """One row over the whole recording: ``ok, prompts_unknown, outputs_unknown, open_unknown, new_tokens,
    decode_tokens, open_new_tokens, open_decode_tokens, preemptions``."""
    return store.query("alignment_request_tokens", runs={"run": run_id})


def pass_tokens(store: Store, run_id: str) -> Result:
    """One row over the whole recording: ``passes, tokens_unknown, new_tokens, decode_tokens, most_running``."""
    return store.query("alignment_pass_tokens", runs={"run": run_id})


def busy(store: Store, run_id: str, span: Span) -> Result:
    """One row: ``passes, ranks, busy_ns`` inside the span."""
    return store.query("alignment_busy", span.params(), runs={"run": run_id})


def edges(store: Store, run_id: str, span: Span) -> float:
    """Time outside the span of the requests in flight in it, as a share of their time inside; 0 without any."""
    return float(store.query("alignment_edges", span.params(), runs={"run": run_id}).one()["edges"] or 0.0)


def busy_lanes(store: Store, run_id: str, span: Span) -> Result:
    """One row: ``lanes`` that sent anything, and ``busy_lanes`` with a request in flight, on average over the span."""
    return store.query("alignment_lanes", span.params(), runs={"run": run_id})


def decoding(store: Store, run_id: str, span: Span) -> Result:
    """One row: ``requests, decoding, first_tokens, per_token_ns`` inside the span."""
    return store.query("alignment_decoding", span.params(), runs={"run": run_id})


def chunk_tokens(store: Store, run_id: str, span: Span) -> dict[str, Any] | None:
    """Visible tokens inside the span, ``{tokens, unknown}``; None without chunks."""
    found = store.query("alignment_chunk_tokens", span.params(), runs={"run": run_id})
    return None if found.not_recorded else found.one()
