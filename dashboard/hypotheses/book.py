"""The file of hypotheses in each store: read whole, appended to under a lock, never rewritten.

Rows of several stores are read as one book in the order of their times; new rows go into the last store. A line that
is cut off, foreign or against the rules is counted and shown, and never stops the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson

from dashboard.append_only import CUT_OFF, BadLine, append, distinct, iso, lines, locked, only, text_of
from dashboard.hypotheses.rules import (
    LAYERS,
    MOST_CHARACTERS,
    NEEDED,
    NOUNS,
    Event,
    Hypothesis,
    after,
    event_of,
    fold,
    refusal,
)
from dashboard.view import saved_view
from engine.errors import GapscopeError

FILE = "hypotheses.jsonl"


@dataclass(frozen=True, slots=True)
class Book:
    """What the stores say: hypotheses by id in the order in which they were opened, and lines that could not be used.

    ``copies`` counts rows that stand in several files word for word, as in a copied store; they count once.
    """

    hypotheses: dict[str, Hypothesis]
    bad: tuple[BadLine, ...]
    copies: int = 0

    def find(self, ref: str) -> Hypothesis:
        """The hypothesis with this id or unique beginning of one.

        Raises:
            GapscopeError: there is none, or several.
        """
        return only(self.hypotheses.values(), ref, "hypothesis", "hypothesis")


def read(stores: Sequence[Path]) -> Book:
    """The book of several stores. A store without the file has nothing to say.

    Raises:
        GapscopeError: a file that is there cannot be read.
    """
    return _book(stores, None)


def _book(stores: Sequence[Path], held: Path | None) -> Book:
    """The book. Who holds the file in the store ``held`` waits for no other: two could wait for each other."""
    rows: list[tuple[datetime, int, int, str, Event]] = []
    bad: list[BadLine] = []
    seen: set[Event] = set()
    copies = 0
    for place, store in enumerate(distinct(stores)):
        for line, text in lines(store, FILE, lock=held is None):
            found = _event(text)
            if isinstance(found, str):
                bad.append(BadLine(store.name, FILE, line, found))
            elif found in seen:
                copies += 1
            else:
                seen.add(found)
                rows.append((found.at, place, line, store.name, found))
    rows.sort(key=lambda row: row[:3])
    hypotheses, refused = fold([row[-1] for row in rows])
    bad += [BadLine(rows[at][3], FILE, rows[at][2], said) for at, said in refused.items()]
    return Book(hypotheses, tuple(sorted(bad, key=lambda one: (one.store, one.line))), copies)


def _event(text: bytes) -> Event | str:
    try:
        return event_of(orjson.loads(text))
    except orjson.JSONDecodeError:
        return CUT_OFF


def record(
    stores: Sequence[Path],
    event: str,
    ref: str = "",
    *,
    statement: str = "",
    prediction: str = "",
    text: str = "",
    link: str = "",
    layer: str = "",
    residual: str = "",
    now: datetime | None = None,
) -> Hypothesis:
    """Append an event to the last store; the hypothesis as it stands after it.

    Args:
        stores: the folders that make up the book.
        event: a key of ``EVENTS``.
        ref: the hypothesis, or a unique beginning of its id; empty for a new one.
        statement: of a new hypothesis: what is claimed.
        prediction: of a new hypothesis: what would not be seen if it were wrong, so that it can fail.
        text: what the evidence shows, or the reason.
        link: of evidence: the permalink of a view. Its page and values are kept, host and port are not.
        layer: a key of ``LAYERS``, or empty.
        residual: what stays unexplained.
        now: the time, where it is not that of the clock.

    Raises:
        GapscopeError: the rules do not allow it, something needed is missing, or the store cannot be written.
    """
    said = {"statement": statement, "prediction": prediction, "text": text, "residual": residual}
    drafted = Event(
        id="",
        event=event,
        time="",
        view=saved_view(link) if link.strip() else "",
        layer=_layer(layer),
        **{name: text_of(name, value, MOST_CHARACTERS) for name, value in said.items()},
    )
    missing = [words for name, words in NEEDED[event].items() if not getattr(drafted, name)]
    if missing:
        raise GapscopeError(f"Nothing was written: {NOUNS[event]} needs {' and '.join(missing)}.")
    store = stores[-1].resolve()
    with locked(store, FILE) as file:
        book = _book(stores, store)
        known = None if event == "opened" else book.find(ref)
        drafted = _stamped(drafted, known, book, now or datetime.now(UTC))
        if refused := refusal(known, drafted):
            raise GapscopeError(refused)
        append(file, drafted.row())
    return after(known, drafted)


def _layer(value: str) -> str:
    if value and value not in LAYERS:
        raise GapscopeError(f"Unknown layer {value!r}: expected one of {', '.join(LAYERS)}.")
    return value


def _stamped(event: Event, known: Hypothesis | None, book: Book, now: datetime) -> Event:
    """The event with id and time: later than what it follows, even where clocks differ."""
    tick = timedelta(microseconds=1)
    if known:
        return replace(event, id=known.id, time=iso(max(now, known.changed + tick)))
    while True:
        made = replace(event, time=iso(now))
        own = "h" + hashlib.sha256(orjson.dumps(made.row(), option=orjson.OPT_SORT_KEYS)).hexdigest()[:8]
        if own not in book.hypotheses:
            return replace(made, id=own)
        now += tick
