"""The file of hypotheses in each store: read whole, appended to under a lock, never rewritten.

Rows of several stores are read as one book in the order of their times; new rows go into the last store. A line that
is cut off, foreign or against the rules is counted and shown, and never stops the others.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from io import FileIO
from pathlib import Path
from urllib.parse import urlencode

import orjson

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
from dashboard.view import from_link
from engine.errors import GapscopeError

FILE = "hypotheses.jsonl"


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that could not be used. ``store`` is the name of the folder, not where it lies."""

    store: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.store}/{FILE} line {self.line}: {self.reason}"


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
        found = [one for one in self.hypotheses.values() if ref and one.id.startswith(ref)]
        if len(found) == 1:
            return found[0]
        if found:
            raise GapscopeError(f"{ref!r} is the beginning of {', '.join(one.id for one in found)}: give more of it.")
        raise GapscopeError(f"No hypothesis {ref!r}: `gapscope hypothesis list` shows those of these stores.")


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
    for place, store in enumerate(_distinct(stores)):
        for line, text in enumerate(_bytes(store, lock=held is None).split(b"\n"), start=1):
            if not text.strip():
                continue
            found = _event(text)
            if isinstance(found, str):
                bad.append(BadLine(store.name, line, found))
            elif found in seen:
                copies += 1
            else:
                seen.add(found)
                rows.append((found.at, place, line, store.name, found))
    rows.sort(key=lambda row: row[:3])
    hypotheses, refused = fold([row[-1] for row in rows])
    bad += [BadLine(rows[at][3], rows[at][2], said) for at, said in refused.items()]
    return Book(hypotheses, tuple(sorted(bad, key=lambda one: (one.store, one.line))), copies)


def _distinct(stores: Sequence[Path]) -> list[Path]:
    return list(dict.fromkeys(store.resolve() for store in stores))


def _event(text: bytes) -> Event | str:
    try:
        return event_of(orjson.loads(text))
    except orjson.JSONDecodeError:
        return "not a JSON object; is the line cut off?"


def _bytes(store: Path, *, lock: bool) -> bytes:
    try:
        with (store / FILE).open("rb") as file:
            if lock:
                fcntl.flock(file, fcntl.LOCK_SH)  # not in the middle of a row
            return file.read()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise GapscopeError(f"{store.name}/{FILE} cannot be read: {error.strerror}.") from None


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
        **{name: _text(name, value) for name, value in said.items()},
    )
    missing = [words for name, words in NEEDED[event].items() if not getattr(drafted, name)]
    if missing:
        raise GapscopeError(f"Nothing was written: {NOUNS[event]} needs {' and '.join(missing)}.")
    store = stores[-1].resolve()
    with _locked(store) as file:
        book = _book(stores, store)
        known = None if event == "opened" else book.find(ref)
        drafted = _stamped(drafted, known, book, now or datetime.now(UTC))
        if refused := refusal(known, drafted):
            raise GapscopeError(refused)
        _append(file, orjson.dumps(drafted.row()) + b"\n")
    return after(known, drafted)


def saved_view(link: str) -> str:
    """What is kept of the permalink of a view: ``page?query``, as a permalink has them.

    Raises:
        GapscopeError: no such page, a version that is not known, values that cannot be used, or no run named.
    """
    shown = from_link(link.strip())
    if shown.ignored:
        raise GapscopeError(f"Parts of this link cannot be used: {'; '.join(shown.ignored)}. Copy it from Link.")
    if not shown["m"]:
        raise GapscopeError("This link names no measured run, so it would not show the same again: copy it from Link.")
    return f"{shown.page}?{urlencode(shown.query())}"


def _text(name: str, value: str) -> str:
    value = value.strip()
    if len(value) > MOST_CHARACTERS:
        raise GapscopeError(f"The {name} has {len(value):,} characters: expected at most {MOST_CHARACTERS:,}.")
    return value


def _layer(value: str) -> str:
    if value and value not in LAYERS:
        raise GapscopeError(f"Unknown layer {value!r}: expected one of {', '.join(LAYERS)}.")
    return value


def _stamped(event: Event, known: Hypothesis | None, book: Book, now: datetime) -> Event:
    """The event with id and time: later than what it follows, even where clocks differ."""
    tick = timedelta(microseconds=1)
    if known:
        return replace(event, id=known.id, time=_iso(max(now, known.changed + tick)))
    while True:
        made = replace(event, time=_iso(now))
        own = "h" + hashlib.sha256(orjson.dumps(made.row(), option=orjson.OPT_SORT_KEYS)).hexdigest()[:8]
        if own not in book.hypotheses:
            return replace(made, id=own)
        now += tick


def _iso(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


@contextmanager
def _locked(store: Path) -> Iterator[FileIO]:
    """The file of a store, open for appending and for nobody else meanwhile."""
    try:
        store.mkdir(parents=True, exist_ok=True)
        with (store / FILE).open("a+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
    except OSError as error:
        raise GapscopeError(
            f"Nothing was written: the store {store.name} cannot be written ({error.strerror}); "
            "start gapscope with --store FOLDER of your own."
        ) from None


def _append(file: FileIO, row: bytes) -> None:
    """One row, whole and on the disk, or none. What was there before stays as it is."""
    size = file.seek(0, os.SEEK_END)
    if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
        row = b"\n" + row  # somebody's row was cut off: it keeps its own line
    if file.write(row) != len(row):
        file.truncate(size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(file.fileno())
