"""Reuse of shared source-turns on both sides: how far it differs, and what had become of the missing blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow.compute as pc

from dashboard.metrics import Population
from dashboard.queries.cache import not_followed
from dashboard.queries.ranges import block_size
from dashboard.store import ROW_CAP, Result, Store

CHANGED_TURNS = 2_000
LISTED = 500
"""Conversations that are offered by name; others can be typed."""


def _shared(population: Population, replay: str) -> Population:
    rule = population if population.matched else Population(population.phase, "matched")
    return rule.for_side(replay)


def bins(store: Store, measured: str, replay: str, population: Population) -> Result:
    """Shared source-turns in cells of reused tokens: ``measured_tokens, replay_tokens`` (means), ``turns, width``."""
    runs = {"measured": measured, "replay": replay}
    return store.query("reuse_bins", runs=runs, population=_shared(population, replay))


def histogram(store: Store, measured: str, replay: str, population: Population) -> Result:
    """Shared source-turns by how far their reuse differs: ``from_tokens, to_tokens`` inclusive, ``turns``."""
    runs = {"measured": measured, "replay": replay}
    return store.query("reuse_histogram", runs=runs, population=_shared(population, replay))


def change(store: Store, measured: str, replay: str, population: Population, row_cap: int = 500) -> Result:
    """Reused tokens of each shared source-turn on both sides, the largest change first."""
    return store.query(
        "reuse_change",
        runs={"measured": measured, "replay": replay},
        population=_shared(population, replay),
        row_cap=row_cap,
    )


@dataclass(frozen=True, slots=True)
class Summary:
    """Shared source-turns by whose reuse is larger, and the tokens that one side reused and the other computed."""

    equal_turns: int
    more_turns: int  # the replay reused more
    less_turns: int
    measured_missed_tokens: int
    replay_missed_tokens: int

    @property
    def turns(self) -> int:
        """All of them."""
        return self.equal_turns + self.more_turns + self.less_turns


def summary(store: Store, measured: str, replay: str, population: Population) -> Summary:
    """The whole of :func:`histogram`; nothing where a side recorded no reuse."""
    rows = histogram(store, measured, replay, population).rows()
    more, less = ([row for row in rows if sign * row["from_tokens"] > 0] for sign in (1, -1))
    return Summary(
        sum(row["turns"] for row in rows if not row["from_tokens"]),
        sum(row["turns"] for row in more),
        sum(row["turns"] for row in less),
        sum(row["change_tokens"] for row in more),
        -sum(row["change_tokens"] for row in less),
    )


def conversations(store: Store, measured: str, replay: str, population: Population) -> Result:
    """Columns ``conversation_id, turns, changed_turns, changed_tokens``: the LISTED whose reuse differs most."""
    runs = {"measured": measured, "replay": replay}
    return store.query("reuse_conversations", runs=runs, population=_shared(population, replay), row_cap=LISTED)


@dataclass(frozen=True, slots=True)
class Missing:
    """Source-turns that reused less on one side: rows of :func:`change` with what had become of the missing blocks.

    ``reason`` is the fate of the first block that only the other side reused: ``evicted``, ``not_stored``,
    ``diverged``, ``held``, ``no_block``, ``cleared``, ``elsewhere`` or ``unknown`` (docs/metrics.md); ``by_turn``
    evicted it, or stored it first afterwards. Where no eviction explains that it is missing, ``origin`` is the
    source-turn that had stored it on the other side, and ``origin_state`` what that one was here: ``never sent``,
    ``sent later``, ``running or waiting`` or ``ended``.
    """

    rows: Sequence[dict[str, Any]]
    sql: str = ""
    not_recorded: str | None = None
    truncated: bool = False


def missing(
    store: Store, measured: str, replay: str, population: Population, less: Literal["measured", "replay"]
) -> Missing:
    """Shared source-turns that reused less on the side ``less``, the largest difference first, and why."""
    changes = change(store, measured, replay, population, ROW_CAP)
    if changes.not_recorded:
        return Missing((), changes.sql, changes.not_recorded)
    sign, (own, other) = (1, (measured, replay)) if less == "measured" else (-1, (replay, measured))
    turns = changes.table.filter(pc.greater(pc.multiply(changes.table["change_tokens"], sign), 0))
    size, width = block_size(store, own), block_size(store, other)
    if not turns.num_rows:
        return Missing((), changes.sql)
    if not size or not width:
        return Missing(
            (), changes.sql, f"Not recorded: the identity of run {own if not size else other} has no block size."
        )
    shown = turns.slice(0, CHANGED_TURNS).to_pylist()
    low = [min(row["measured_cached_tokens"], row["replay_cached_tokens"]) for row in shown]
    high = [max(row["measured_cached_tokens"], row["replay_cached_tokens"]) for row in shown]
    mine, theirs = ("measured", "replay") if less == "measured" else ("replay", "measured")
    if said := not_followed(store, own) or not_followed(store, other):
        return Missing((), changes.sql, said)
    fates = store.query(
        "reuse_fates",
        {
            "requests": [row[f"{mine}_request_id"] for row in shown],
            "firsts": [tokens // size for tokens in low],
            "untils": [-(-tokens // size) for tokens in high],
            "block_size": size,
        },
        runs={"less": own},
    )
    if fates.not_recorded:
        return Missing((), fates.sql, fates.not_recorded)
    found = {row["request_id"]: row for row in fates.rows()}
    rows = [row | {"less": less} | found[row[f"{mine}_request_id"]] for row in shown]
    open_ = [row for row in rows if row["reason"] != "evicted"]
    origins = {}
    if open_ and "kv_events" in store.tables(other):
        asked = store.query(
            "reuse_origins",
            {
                "requests": [row["request_id"] for row in open_],
                "others": [row[f"{theirs}_request_id"] for row in open_],
                "blocks": [min(row["measured_cached_tokens"], row["replay_cached_tokens"]) // width for row in open_],
            },
            runs={"less": own, "more": other},
        )
        origins = {row["request_id"]: row for row in asked.rows()}
    nobody = {"origin": None, "origin_state": None}
    rows = [row | nobody | origins.get(row["request_id"], {}) for row in rows]
    return Missing(rows, fates.sql, truncated=turns.num_rows > len(shown))
