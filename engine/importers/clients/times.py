"""Times of one request, checked against each other before anyone computes with them."""

from __future__ import annotations

from engine.importers.clients import flags

LASTS = "first_visible_ns", "last_visible_ns", "end_ns"
AFTER = "first_visible_after_ns", "last_visible_after_ns", "end_after_ns"


def in_order(start: int | None, first: int | None, last: int | None, end: int | None) -> tuple[list[int | None], bool]:
    """First, last and end with those NULL that lie before what they must follow, and whether there were such."""
    kept: list[int | None] = []
    before, wrong = start, False
    for time in (first, last, end):
        if time is not None and before is not None and time < before:
            wrong, time = True, None
        kept.append(time)
        before = before if time is None else time
    if kept[0] is None:
        kept[1] = None  # without a first there is no last that could be told from it
    return kept, wrong


def times(
    dispatched: int | None, first: int | None, last: int | None, end: int | None
) -> tuple[dict[str, int | None], list[str]]:
    """Columns of ``requests`` from times on one clock, and the flags that they give."""
    kept, wrong = in_order(dispatched, first, last, end)
    return {"dispatched_ns": dispatched, **dict(zip(LASTS, kept, strict=True))}, [flags.TIMES_WRONG] * wrong


def durations(first: int | None, last: int | None, end: int | None) -> tuple[dict[str, int | None], list[str]]:
    """Columns of ``requests`` from times since dispatch, of tools that keep no others, and the flags they give."""
    kept, wrong = in_order(0, first, last, end)
    return dict(zip(AFTER, kept, strict=True)), [flags.TIMES_WRONG] * wrong
