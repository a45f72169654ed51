"""The file of saved views in each store: read whole, appended to under a lock, never rewritten.

Rows of several stores are read as one list in the order of their times; new rows go into the last store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson

from dashboard.append_only import (
    CUT_OFF,
    SAID,
    UTC_TIME,
    BadLine,
    append,
    bad_lines,
    distinct,
    iso,
    lines,
    locked,
    only,
    text_of,
)
from dashboard.view import View, from_link, saved_view
from engine.errors import GapscopeError
from engine.jsonl import TEXT, Spec, one_of, optional, problem_of

FILE = "views.jsonl"
MOST_NAME, MOST_NOTE = 120, 1_000
"""Characters of a name and of a note."""
_BASE: Spec = {"id": SAID, "event": one_of("saved", "renamed", "deleted"), "time": UTC_TIME}
_NEEDED: dict[str, Spec] = {
    "saved": {"name": SAID, "view": SAID},
    "renamed": {"name": SAID},
    "deleted": {},
}


@dataclass(frozen=True, slots=True)
class SavedView:
    """A view as it was saved: ``view`` is ``page?query``, ``saved`` and ``changed`` are UTC as ISO text."""

    id: str
    name: str
    note: str
    view: str
    saved: str
    changed: str

    @property
    def shown(self) -> View:
        """Page and values.

        Raises:
            GapscopeError: written by a newer gapscope, or by hand and wrong.
        """
        return from_link(self.view)


@dataclass(frozen=True, slots=True)
class Views:
    """What the stores hold: the views that are not deleted, the newest first, and lines that could not be used."""

    views: tuple[SavedView, ...]
    bad: tuple[BadLine, ...] = ()
    deleted: frozenset[str] = frozenset()

    @property
    def bad_words(self) -> str:
        """How many lines could not be used and why; empty where all could."""
        return bad_lines(self.bad, "the saved views")

    def find(self, ref: str) -> SavedView:
        """The view with this name, this id, or a unique beginning of an id.

        Raises:
            GapscopeError: there is none, or several.
        """
        return only(self.views, ref, "saved view", "views")


def read(stores: Sequence[Path]) -> Views:
    """The saved views of several stores. A store without the file has none.

    Raises:
        GapscopeError: a file that is there cannot be read.
    """
    return _views(stores, lock=True)


def save(stores: Sequence[Path], link: str, name: str, note: str = "", now: datetime | None = None) -> SavedView:
    """Keep the view of a permalink in the last store.

    Raises:
        GapscopeError: no name, one that another view has, a link that cannot be kept, or no place to write.
    """
    view, name = saved_view(link), _name(name)
    note = text_of("note", note, MOST_NOTE)
    with locked(stores[-1].resolve(), FILE) as file:
        held = _views(stores, lock=False)
        _free(held, name)
        made = _new(held, SavedView("", name, note, view, iso(now or datetime.now(UTC)), ""))
        append(file, _row("saved", made.id, made.saved, name=name, note=note, view=view))
    return made


def rename(
    stores: Sequence[Path], ref: str, name: str, note: str | None = None, now: datetime | None = None
) -> SavedView:
    """Give a view another name, and another note where one is given.

    Raises:
        GapscopeError: no such view, no name, one that another view has, or no place to write.
    """
    name = _name(name)
    with locked(stores[-1].resolve(), FILE) as file:
        held = _views(stores, lock=False)
        known = held.find(ref)
        if name != known.name:
            _free(held, name)
        said = known.note if note is None else text_of("note", note, MOST_NOTE)
        made = replace(known, name=name, note=said, changed=_after(known, now))
        append(file, _row("renamed", made.id, made.changed, name=name, note=said))
    return made


def delete(stores: Sequence[Path], ref: str, now: datetime | None = None) -> SavedView:
    """Take a view off the list; what was written of it stays in the file.

    Raises:
        GapscopeError: no such view, or no place to write.
    """
    with locked(stores[-1].resolve(), FILE) as file:
        known = _views(stores, lock=False).find(ref)
        append(file, _row("deleted", known.id, _after(known, now)))
    return known


def _views(stores: Sequence[Path], *, lock: bool) -> Views:
    rows: list[tuple[str, int, int, str, dict[str, Any]]] = []
    bad: list[BadLine] = []
    for place, store in enumerate(distinct(stores)):
        for line, text in lines(store, FILE, lock=lock):
            found = _event(text)
            if isinstance(found, str):
                bad.append(BadLine(store.name, FILE, line, found))
            else:
                rows.append((found["time"], place, line, store.name, found))
    views: dict[str, SavedView] = {}
    deleted: set[str] = set()
    for time, _, line, store_name, event in sorted(rows, key=lambda row: row[:3]):
        known = views.get(event["id"])
        if event["event"] == "saved":
            said = (event["name"], event.get("note") or "", event["view"])
            if known is None and event["id"] not in deleted:  # the same row twice: a copied store
                views[event["id"]] = SavedView(event["id"], *said, time, time)
        elif known is None:
            if event["id"] not in deleted:
                bad.append(BadLine(store_name, FILE, line, f"there is no saved view {event['id']}"))
        elif event["event"] == "deleted":
            deleted.add(views.pop(event["id"]).id)
        else:
            views[known.id] = replace(known, name=event["name"], note=event.get("note") or "", changed=time)
    newest = sorted(views.values(), key=lambda one: one.saved, reverse=True)
    return Views(tuple(newest), tuple(bad), frozenset(deleted))


def _event(text: bytes) -> dict[str, Any] | str:
    try:
        row = orjson.loads(text)
    except orjson.JSONDecodeError:
        return CUT_OFF
    if problem := problem_of(row, _BASE):
        return problem
    note: Spec = {"note": optional(TEXT)} if "note" in row else {}
    return problem_of(row, {**_NEEDED[row["event"]], **note}) or dict(row)


def _row(event: str, own: str, time: str, **said: str) -> dict[str, str]:
    return {"id": own, "event": event, "time": time} | {name: value for name, value in said.items() if value}


def _name(text: str) -> str:
    name = " ".join(text_of("name", text, MOST_NAME).split())
    if not name:
        raise GapscopeError("Nothing was written: a saved view needs a name.")
    return name


def _free(held: Views, name: str) -> None:
    if taken := next((one for one in held.views if one.name == name), None):
        raise GapscopeError(f"Nothing was written: {taken.id} has the name {name!r} already. Choose another.")


def _new(held: Views, made: SavedView) -> SavedView:
    """The view with an id of its own."""
    known = {one.id for one in held.views} | held.deleted
    time = datetime.fromisoformat(made.saved)
    while True:
        said = iso(time)
        text = "\n".join((made.name, made.note, made.view, said))
        own = "v" + hashlib.sha256(text.encode()).hexdigest()[:8]
        if own not in known:
            return replace(made, id=own, saved=said, changed=said)
        time += timedelta(microseconds=1)


def _after(known: SavedView, now: datetime | None) -> str:
    """A time later than what it follows, even where clocks differ."""
    return iso(max(now or datetime.now(UTC), datetime.fromisoformat(known.changed) + timedelta(microseconds=1)))
