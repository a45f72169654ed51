"""What a hypothesis is, and which event may follow which.

A hypothesis is open until it is supported or retracted. Support needs evidence, and after a retraction newer evidence
than that; a retraction needs its reason; what is closed becomes open again only by an event that says why. Nothing
ends a hypothesis being listed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any

from dashboard.append_only import SAID, UTC_TIME
from engine.jsonl import TEXT, Spec, one_of, optional, problem_of

STATUSES = ("open", "supported", "retracted")
EVENTS = {
    "opened": "opened",
    "evidence": "evidence added",
    "supported": "supported",
    "retracted": "retracted",
    "reopened": "opened again",
}
"""Kinds of events, in words."""

LAYERS = {
    "memory": "memory model",
    "client": "client and closed loop",
    "cache": "cache behaviour",
    "timing": "timing model",
    "scheduler": "scheduler",
    "host": "host and frontend",
    "workload": "workload or configuration",
    "measurement": "the measurement itself",
}
"""What a difference can be attributed to: the layers that the ladder takes apart, and what lies outside of them."""

MOST_CHARACTERS = 4_000
"""Of one text."""

Row = Mapping[str, Any]


_BASE: Spec = {
    "id": SAID,
    "event": one_of(*EVENTS),
    "time": UTC_TIME,
}
NEEDED: dict[str, dict[str, str]] = {
    "opened": {"statement": "a statement", "prediction": "a prediction that could fail"},
    "evidence": {"view": "the link of a view"},
    "supported": {},
    "retracted": {"text": "the reason"},
    "reopened": {"text": "the reason"},
}
"""What each kind of event must say, by field, in words."""
NOUNS = {
    "opened": "a hypothesis",
    "evidence": "evidence",
    "supported": "support",
    "retracted": "a retraction",
    "reopened": "opening it again",
}


@dataclass(frozen=True, slots=True)
class Event:
    """One row of the book. What is empty was not said; ``time`` is UTC as ISO text."""

    id: str  # of the hypothesis
    event: str
    time: str
    statement: str = ""
    prediction: str = ""
    text: str = ""  # what the evidence shows, or the reason
    view: str = ""  # page?query of the saved view
    layer: str = ""
    residual: str = ""

    @property
    def at(self) -> datetime:
        """The time."""
        return datetime.fromisoformat(self.time)

    def row(self) -> dict[str, str]:
        """What is written: only what was said."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name))}


NAMES = tuple(field.name for field in fields(Event))


def event_of(row: Any) -> Event | str:
    """The event of a row, or what is wrong with it, in words. Fields that nobody knows are left alone."""
    problem = problem_of(row, _BASE)
    if problem is None:
        others = {name: optional(TEXT) for name in NAMES if name in row and name not in _BASE}
        problem = problem_of(row, others | dict.fromkeys(NEEDED[row["event"]], SAID))
    return problem or Event(**{name: row[name] for name in NAMES if row.get(name)})


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A hypothesis as its events leave it. ``layer`` and ``residual`` are what was said last, or empty."""

    id: str
    statement: str
    prediction: str
    status: str
    layer: str
    residual: str
    events: tuple[Event, ...]

    @property
    def evidence(self) -> tuple[Event, ...]:
        """Every saved view, oldest first."""
        return tuple(event for event in self.events if event.event == "evidence")

    @property
    def standing(self) -> tuple[Event, ...]:
        """The evidence that was added after the last retraction: what support may rest on."""
        kinds = [event.event for event in self.events]
        after = len(kinds) - kinds[::-1].index("retracted") if "retracted" in kinds else 0
        return tuple(event for event in self.events[after:] if event.event == "evidence")

    @property
    def reason(self) -> str:
        """Why it was retracted last; empty where it never was."""
        return next((event.text for event in reversed(self.events) if event.event == "retracted"), "")

    @property
    def changed(self) -> datetime:
        """Time of the last event."""
        return self.events[-1].at


def refusal(known: Hypothesis | None, event: Event) -> str | None:
    """Why the rules do not allow an event after what is known of its hypothesis, in a sentence; None when they do."""
    if event.event == "opened":
        return f"Hypothesis {event.id} is open already." if known else None
    if known is None:
        return f"There is no hypothesis {event.id}."
    if event.event == "evidence" and known.status == "retracted":
        return f"Hypothesis {known.id} is retracted: open it again before adding evidence."
    if event.event == "supported":
        if known.status != "open":
            return f"Hypothesis {known.id} is {known.status}: only an open one can be supported."
        if not known.standing:
            newer = " newer than its retraction" if known.reason else ""
            return f"Support needs evidence: hypothesis {known.id} has none{newer}."
    if event.event == "retracted" and known.status == "retracted":
        return f"Hypothesis {known.id} is retracted already."
    if event.event == "reopened" and known.status == "open":
        return f"Hypothesis {known.id} is open: only a supported or retracted one can be opened again."
    return None


def after(known: Hypothesis | None, event: Event) -> Hypothesis:
    """The hypothesis after an event that the rules allow."""
    if known is None:
        return Hypothesis(event.id, event.statement, event.prediction, "open", event.layer, event.residual, (event,))
    status = {"supported": "supported", "retracted": "retracted", "reopened": "open"}.get(event.event, known.status)
    return replace(
        known,
        status=status,
        layer=event.layer or known.layer,
        residual=event.residual or known.residual,
        events=(*known.events, event),
    )


def fold(events: Sequence[Event]) -> tuple[dict[str, Hypothesis], dict[int, str]]:
    """Hypotheses by id, in the order in which they were opened, and the events that the rules refuse, by position."""
    found: dict[str, Hypothesis] = {}
    refused: dict[int, str] = {}
    for at, event in enumerate(events):
        known = found.get(event.id)
        if said := refusal(known, event):
            refused[at] = said
        else:
            found[event.id] = after(known, event)
    return found, refused
