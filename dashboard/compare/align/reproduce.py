"""Rung 1: does the same config give the same prediction? If not, the gap is a difference of config, not of fidelity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dashboard.compare.align.values import REPLAY, Check, unknown
from dashboard.store import Store
from engine.bundle import Bundle
from engine.errors import GapscopeError
from engine.replay.again import RESTS_ON, SHOWN_DIGEST, Again, compared, why_not
from engine.traces import find_trace

RESTS = "what the timing rests on"
PLAY_AGAIN = "Play the replay again (the button on the page, or `gapscope align` without --quick)."


def checks(store: Store, replay: str, again: Again | None) -> tuple[Check, ...]:
    """One check per table; ``again`` is what came of playing the replay again, None where nobody did.

    Without it another replay of the stores that has the same config, trace and timing model says as much.
    """
    bundle = store.bundle(replay)
    if said := problem(store, bundle):
        return (unknown("the replay can be played again", REPLAY, said, "A replay with its knobs, trace and timing."),)
    found = again if again is not None and again.run_id == replay else twin(store, bundle)
    if found is None:
        return (unknown("equal tables", REPLAY, "it was not played again yet", PLAY_AGAIN),)
    by = found.recorded_by
    other = f"; recorded by {by}, played again by {found.made_by}" if by != found.made_by else ""
    tables = tuple(
        Check(
            f"table {table.name}",
            REPLAY,
            _short(table.recorded),
            _short(table.again),
            "content digest",
            "pass" if table.equal else "fail",
            (table.difference + other).removeprefix("; ") if not table.equal else "",
            n=bundle.rows(table.name),
        )
        for table in found.tables
    )
    causes = tuple(
        Check(RESTS, REPLAY, None, None, "content digest", "fail", cause) for cause in found.causes if not found.equal
    )
    return (*causes, *tables)


def problem(store: Store, bundle: Bundle) -> str:
    """Why a replay cannot be played again here; empty where it can."""
    if said := why_not(bundle):
        return said
    try:
        find_trace(list(store.roots), str(bundle.identity.value("trace", "digest")))
    except GapscopeError as error:
        return str(error)
    return ""


def twin(store: Store, bundle: Bundle) -> Again | None:
    """A replay of other content or name that was made of the same things, compared with this one; None without any."""
    own = _made_of(bundle)
    if own is None:
        return None
    for entry in store.catalogue():
        if entry.kind == "replay" and entry.state == "ok" and entry.run_id != bundle.run_id and not entry.ladder:
            other = store.bundle(entry.run_id)
            if _made_of(other) == own:
                return compared(bundle, other)
    return None


def _made_of(bundle: Bundle) -> tuple[Any, ...] | None:
    """What decides a replay: knobs, trace, timing model; None where the record does not name all of them."""
    lineage = bundle.lineage
    config, trace = lineage.get("config_digest"), bundle.identity.value("trace", "digest")
    timing: Mapping[str, Any] = lineage.get("timing") or {}
    if not config or not trace or not timing:
        return None
    rests_on = tuple(digest(timing) for digest in RESTS_ON.values())
    return config, trace, timing.get("kind"), timing.get("run_id"), *rests_on


def _short(digest: str | None) -> str | None:
    return None if digest is None else digest[:SHOWN_DIGEST]
