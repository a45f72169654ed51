"""Saved views in words: page, runs, and whether the stores hold them; as table, Markdown, JSON."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from dashboard.frame import escape
from dashboard.render.tables import grid
from dashboard.saved.book import SavedView, Views
from dashboard.view import PAGES
from engine.errors import GapscopeError


def page_of(one: SavedView) -> str:
    """The page in words; a sentence where the view cannot be opened."""
    try:
        return PAGES[one.shown.page]
    except GapscopeError as error:
        return f"cannot be opened: {error}"


def runs_of(one: SavedView) -> list[str]:
    """Ids of the runs that a view names, each once; none where it cannot be opened."""
    try:
        named = one.shown.runs.values()
    except GapscopeError:
        return []
    return list(dict.fromkeys(run_id for found in named for run_id in found))


def held_words(one: SavedView, held: Collection[str]) -> str:
    """Whether the stores hold the runs of a view, and which they lack."""
    absent = [run_id for run_id in runs_of(one) if run_id not in held]
    return f"not in the store: {', '.join(absent)}" if absent else "all runs in the store"


def when(one: SavedView) -> str:
    """The day and minute of saving, UTC."""
    return one.saved[:16].replace("T", " ")


def views_text(found: Views, held: Collection[str], form: str = "table") -> str:
    """The saved views of the stores; ``held`` are the ids of the runs that lie there."""
    if form == "json":
        told = {"views": [_object(one, held) for one in found.views], "unusable": [str(line) for line in found.bad]}
        return json.dumps(told, indent=2, ensure_ascii=False)
    markdown = form == "markdown"
    say = _in_cell if markdown else str
    headers = ("id", "name", "page", "run", "note", "saved", "state", "link")
    rows = [
        (
            one.id,
            say(one.name),
            say(page_of(one)),
            say(", ".join(runs_of(one))),
            say(one.note),
            when(one),
            say(held_words(one, held)),
            f"[open](/{one.view})" if markdown else f"/{one.view}",
        )
        for one in found.views
    ]
    body = grid(headers, rows, markdown) if rows else "No saved views."
    return "\n\n".join([body] + ([found.bad_words] if found.bad else []))


def _in_cell(text: str) -> str:
    return escape(text).replace("\\|", "|")  # the table escapes what would end a cell


def _object(one: SavedView, held: Collection[str]) -> dict[str, Any]:
    return {
        "id": one.id,
        "name": one.name,
        "note": one.note or None,
        "page": page_of(one),
        "runs": runs_of(one),
        "absent": [run_id for run_id in runs_of(one) if run_id not in held],
        "view": one.view,
        "saved": one.saved,
        "changed": one.changed,
    }
