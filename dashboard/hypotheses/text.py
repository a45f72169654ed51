"""The book of hypotheses as text: table, Markdown, JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dashboard.append_only import bad_lines
from dashboard.frame import escape
from dashboard.hypotheses.book import Book
from dashboard.hypotheses.rules import EVENTS, LAYERS, Event, Hypothesis

MARKS = {"open": "?", "supported": "+", "retracted": "-"}


def listed(book: Book, status: str = "all") -> list[Hypothesis]:
    """The hypotheses of a status, the one that changed last first."""
    found = [one for one in book.hypotheses.values() if status in ("all", one.status)]
    return sorted(found, key=lambda one: one.changed, reverse=True)


def layer_words(layer: str) -> str:
    """A layer in words; one that nobody knows stays as it was written."""
    return LAYERS.get(layer, layer) or "not attributed"


def bad_words(book: Book) -> str:
    """How many lines could not be used and why; empty where all could."""
    return bad_lines(book.bad, "the ledger")


def event_words(event: Event) -> str:
    """One event on one line: when, what, and what was said."""
    parts = [f"{event.time[:19].replace('T', ' ')} UTC", EVENTS[event.event]]
    parts += [event.text] if event.text else []
    parts += [f"attributed to {layer_words(event.layer)}"] if event.layer else []
    parts += [f"unexplained: {event.residual}"] if event.residual else []
    return " · ".join(" ".join(part.split()) for part in parts)


def book_text(book: Book, status: str = "all", form: str = "table") -> str:
    """The hypotheses of a status as text."""
    shown = listed(book, status)
    if form == "json":
        told: dict[str, Any] = {
            "hypotheses": [_object(one) for one in shown],
            "unusable": [str(one) for one in book.bad],
        }
        return json.dumps(told, indent=2, ensure_ascii=False)
    make = _markdown if form == "markdown" else _plain
    blocks = [make(one) for one in shown] or ["No hypotheses."]
    return "\n\n".join(blocks + ([bad_words(book)] if book.bad else []))


def _object(one: Hypothesis) -> dict[str, Any]:
    return {
        "id": one.id,
        "status": one.status,
        "statement": one.statement,
        "prediction": one.prediction,
        "layer": one.layer or None,
        "residual": one.residual or None,
        "events": [event.row() for event in one.events],
    }


def _plain(one: Hypothesis) -> str:
    lines = [
        f"{MARKS[one.status]} {one.id}  {one.status}  {' '.join(one.statement.split())}",
        f"    prediction: {' '.join(one.prediction.split())}",
        f"    attribution: {layer_words(one.layer)}",
        *([f"    unexplained: {' '.join(one.residual.split())}"] if one.residual else []),
    ]
    for event in one.events:
        lines += [f"    {event_words(event)}", *([f"      /{event.view}"] if event.view else [])]
    return "\n".join(lines)


def _markdown(one: Hypothesis) -> str:
    head = f"**{escape(one.statement)}** ({one.status}, {one.id})"
    facts: Sequence[str] = (
        f"prediction that could fail: {escape(one.prediction)}",
        f"attribution: {escape(layer_words(one.layer))}",
        *([f"unexplained: {escape(one.residual)}"] if one.residual else []),
    )
    events = [
        f"{escape(event_words(event))}" + (f" [view](/{event.view})" if event.view else "") for event in one.events
    ]
    return "\n".join([head, "", *(f"- {line}" for line in (*facts, *events))])
