"""One source-turn: which request it is in a run, the passes that it took part in, its neighbours, blocks and chunks.

Every question but that of the blocks is bounded by the time that the request was in the system, so that a long run is
not read for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dashboard.metrics import Metric, Population
from dashboard.queries.cache import not_followed
from dashboard.queries.ranges import block_size
from dashboard.store import Result, Store

SOURCE = ("source_trace_id", "source_kind", "source_outer_index", "source_inner_index", "conversation_id", "turn_index")
"""What makes a source-turn the same on both sides."""
TURNS = 500
SLACK_NS = 1_000_000_000
"""Clocks of client and engine may differ by less than this: what follows a request is looked for so far around it."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a run: its row, and how many other source-turns of the run go by the same name."""

    row: dict[str, Any]
    namesakes: int = 0

    @property
    def request_id(self) -> str:
        """Its id in the run."""
        return str(self.row["request_id"])

    @property
    def window(self) -> dict[str, int]:
        """From dispatch to the last thing known of it, as query parameters; clocks may differ by SLACK_NS."""
        names = ("dispatched_ns", "received_ns", "first_admit_ns", "last_visible_ns", "end_ns", "released_ns")
        known = [self.row[name] for name in names if self.row[name] is not None]
        if not known:
            return {"start_ns": 0, "end_ns": -1, "dispatched_ns": 0}  # of no length: nothing is around it
        dispatched = self.row["dispatched_ns"] if self.timed else min(known)
        return {"start_ns": min(known) - SLACK_NS, "end_ns": max(known) + SLACK_NS, "dispatched_ns": dispatched}

    @property
    def origin_ns(self) -> int:
        """The moment of its dispatch, or of the first thing known of it; 0 where no moment is."""
        return self.window["dispatched_ns"]

    @property
    def timed(self) -> bool:
        """Whether the moment of its dispatch is known."""
        return self.row["dispatched_ns"] is not None

    def since_dispatch_ms(self, name: str) -> float | None:
        """A moment of it, in ms from its dispatch; of tools that keep no times, where they keep that duration."""
        value = self.row[name]
        if value is not None and self.timed:
            return float(value - self.row["dispatched_ns"]) / 1e6
        after = self.row.get(name.removesuffix("_ns") + "_after_ns")
        return None if after is None else float(after) / 1e6


def turns(store: Store, measured: str, replay: str, population: Population, metric: Metric) -> Result:
    """Columns ``turn, measured_status, replay_status, measured, replay, difference`` in the raw unit of the metric.

    Turns that succeeded on both sides come first, the largest difference in front.
    """
    return store.query(
        "request_turns",
        {"matched": population.matched},
        runs={"measured": measured, "replay": replay},
        population=population.for_side(replay),
        metric=metric,
        row_cap=TURNS,
    )


def find(store: Store, run_ids: Sequence[str], turn: str) -> list[Request | None]:
    """The request that is a source-turn in each run, by its name in a link; None where a run never sent it.

    The first run that knows the name decides which source-turn is meant; the others follow its whole key.
    """
    rows = [facts(store, run_id, turn).rows() for run_id in run_ids]
    first = next((found[0] for found in rows if found), None)
    if first is None:
        return [None] * len(rows)
    found = []
    for named in rows:
        same = [row for row in named if all(row[name] == first[name] for name in SOURCE)]
        found.append(Request(same[0], len(named) - 1) if same else None)
    return found


def facts(store: Store, run_id: str, turn: str) -> Result:
    """The rows of the requests of a run that go by this name."""
    return store.query("request_facts", {"turn": turn}, runs={"run": run_id})


def passes_of(store: Store, run_id: str, request: Request) -> Result:
    """Passes of its rank from its dispatch to its last; NULL ``own_tokens, computed_before`` where it was in none."""
    params = {"request_id": request.request_id, **request.window}
    return store.query("request_passes", params, runs={"run": run_id}, row_cap=20_000)


def neighbours(store: Store, run_id: str, request: Request) -> Result:
    """Columns ``turn, request_id, passes, new_tokens, prefill_passes, decode_passes, first_start_ns``."""
    return store.query("request_neighbours", {"request_id": request.request_id, **request.window}, runs={"run": run_id})


def admissions(store: Store, run_id: str, request: Request) -> Result:
    """Its admissions, the first and those after preemptions."""
    return store.query("request_admissions", {"request_id": request.request_id, **request.window}, runs={"run": run_id})


def transfers(store: Store, run_id: str, request: Request) -> Result:
    """Columns ``reserved_ns, transferred_ns``: when the worker that decodes it had room, and had its KV."""
    return store.query("request_transfers", {"request_id": request.request_id}, runs={"run": run_id})


def chunks(store: Store, run_id: str, request: Request) -> Result:
    """What the client received: ``ordinal, time_ns, since_dispatch_ns, tokens, visible, tokens_so_far``."""
    return store.query("request_chunks", {"request_id": request.request_id, **request.window}, runs={"run": run_id})


def blocks(store: Store, run_id: str, request: Request) -> Result:
    """The full blocks of its prompt: ``block_index, state, stored_by, stored_ns, evicted_before_ns, stored_again_ns,
    evicted_after_ns``; before and after are seen from the first admission."""
    if said := not_followed(store, run_id):
        return Result(pa.table({}), "", not_recorded=said)
    row = request.row
    first = admissions(store, run_id, request).rows()[:1]
    hits = first[0]["hit_blocks"] if first else None
    size = block_size(store, run_id)
    restored = (first[0]["restored_blocks"] or 0) if first else 0
    if hits is None and row["cached_tokens"] is not None and size:
        hits = row["cached_tokens"] // size
    admitted = row["first_admit_ns"] if row["first_admit_ns"] is not None else row["dispatched_ns"]
    params = {"request_id": request.request_id, "hit_blocks": hits, "restored_blocks": restored, "admit_ns": admitted}
    return store.query("request_blocks", params, runs={"run": run_id})
