"""Hypotheses on what is wrong with a replay: stated with a prediction that could fail, never rewritten.

A store keeps them in ``hypotheses.jsonl``, a row per event. ``rules`` folds events into hypotheses and says what may
follow, ``book`` reads and appends, ``text`` lays them out, ``command`` is the command line.
"""

from dashboard.hypotheses.book import FILE, Book, read, record
from dashboard.hypotheses.rules import EVENTS, LAYERS, STATUSES, Event, Hypothesis

__all__ = ["EVENTS", "FILE", "LAYERS", "STATUSES", "Book", "Event", "Hypothesis", "read", "record"]
