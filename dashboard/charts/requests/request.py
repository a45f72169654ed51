"""One source-turn in words and numbers: which request it is on each side, its boundaries, neighbours and blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from dashboard.charts import style
from dashboard.charts.answer import Answer, Column
from dashboard.compare.rows import refused
from dashboard.frame import Frame, Side
from dashboard.metrics import METRICS
from dashboard.queries import request
from dashboard.queries.cohort import not_joined
from dashboard.queries.identity import repeats
from dashboard.queries.request import Request
from dashboard.store import Store

NAMED = 6
"""So many turns are named in a sentence; the table has the others."""
STATUS = {
    "ok": "succeeded",
    "error": "failed",
    "rejected": "was rejected",
    "canceled": "was canceled",
    "in_flight": "has no outcome in the recording: it was in flight at the end, or its record does not say",
}


@dataclass(frozen=True)
class Chosen:
    """A source-turn on the sides that sent it, and the sides that did not."""

    turn: str
    sides: tuple[tuple[Side, Request], ...]
    absent: tuple[Side, ...]
    apart: Mapping[str, str] = field(default_factory=dict)
    """Of absent sides by run: why nobody can say whether they sent it."""

    def on(self, side: Side) -> Request | None:
        """The request of a side."""
        return next((found for own, found in self.sides if own is side), None)

    @property
    def n(self) -> dict[str, int | None]:
        """One request on each side that sent it."""
        return dict.fromkeys([side.run_id for side, _ in self.sides], 1)


def choose(frame: Frame, store: Store, turn: str) -> Chosen:
    """The source-turn with this name on every side that recorded requests."""
    sides = [side for side in frame.sides if "requests" in side.bundle.tables]
    found = request.find(store, [side.run_id for side in sides], turn)
    pairs = list(zip(sides, found, strict=True))
    present = tuple((side, one) for side, one in pairs if one is not None)
    absent = tuple(side for side, one in pairs if one is None)
    apart = {side.run_id: not_joined(store, present[0][0].run_id, side.run_id) for side in absent if present}
    return Chosen(turn, present, absent, apart)


def turns(frame: Frame, store: Store, metric_name: str) -> Answer:
    """Source-turns of the population: successes of both sides first, by the difference in ``metric_name``."""
    metric = METRICS[metric_name]
    other = (frame.replay or frame.measured).run_id
    result = request.turns(store, frame.measured.run_id, other, frame.population, metric)
    unit, decimals = metric.unit, "%.1f" if metric.unit == "ms" else "%d"
    columns = [
        Column("turn", "Source-turn", pinned=True),
        Column("measured_status", "Measured"),
        Column("replay_status", "Replay"),
        Column("measured", f"{metric.label}, measured ({unit})", decimals),
        Column("replay", f"{metric.label}, replay ({unit})", decimals),
        Column("difference", f"Difference ({unit})", decimals.replace("%", "%+")),
    ]
    said = refused(store, frame.measured.run_id, other, metric_name)
    rows = result.rows()
    for row in rows:
        for name in ("measured", "replay", "difference"):
            row[name] = None if said and name == "difference" else metric.shown(row.get(name))
    shown = pa.Table.from_pylist(rows) if rows else pa.table({})
    n = {
        run_id: None if result.not_recorded else sum(row[f"{name}_status"] is not None for row in rows)
        for name, run_id in (("replay", other), ("measured", frame.measured.run_id))
    }
    words = f"{metric.label}: {metric.definition}. n: turns in the table, at most {request.TURNS}."
    told = Answer(shown, result.sql, columns, n, words, result.not_recorded)
    return replace(told, partly=f"Not comparable: {said}") if said and not told.not_recorded else told


def states(chosen: Chosen) -> list[str]:
    """What must be said first: sides that never sent it, ends that are no success, names that are shared."""
    said = [chosen.apart.get(side.run_id) or f"{_said(side)} never sent this source-turn." for side in chosen.absent]
    for side, found in chosen.sides:
        row = found.row
        if row["status"] != "ok":
            after = found.since_dispatch_ms("end_ns")
            when = "" if after is None else f", {after:,.0f} ms after its dispatch"
            why = f" ({row['error_type']})" if row["error_type"] else ""
            tokens = "no token" if not row["output_tokens"] else f"{row['output_tokens']:,} tokens"
            ended = STATUS.get(row["status"], row["status"])
            said.append(f"{_said(side)}: it {ended}{why}{when}, with {tokens} of output.")
        if found.namesakes:
            said.append(f"{_said(side)} has {found.namesakes} more source-turns of this name, from other traces.")
    return said


def _said(side: Side) -> str:
    return f"{side.role.name.capitalize()} {side.run_id}"


FACTS: tuple[tuple[str, str], ...] = (
    ("request_id", "Request"),
    ("status", "Status"),
    ("phase", "Phase of dispatch"),
    ("dispatched_ns", "Dispatched (s from profile start)"),
    ("lane", "Lane"),
    ("play_id", "Play"),
    ("parent_request_id", "Parent"),
    ("worker_id", "Worker"),
    ("dp_rank", "Rank"),
    ("input_tokens", "Input (tokens)"),
    ("requested_output_tokens", "Output asked for (tokens)"),
    ("output_tokens", "Output (tokens)"),
    ("cached_tokens", "Reused at first admission (tokens)"),
    ("recomputed_tokens", "Computed again (tokens)"),
    ("preemptions", "Preemptions"),
)
BOUNDARIES: tuple[tuple[str, str], ...] = (
    ("scheduled_ns", "scheduled by the client"),
    ("dispatched_ns", "dispatched"),
    ("received_ns", "received by the engine"),
    ("first_admit_ns", "admitted"),
    ("first_pass", "first pass begins"),
    ("first_token", "first token computed"),
    ("reserved_ns", "reserved at the decode worker"),
    ("transferred_ns", "KV transferred"),
    ("first_visible_ns", "first visible"),
    ("last_visible_ns", "last visible"),
    ("end_ns", "closed"),
    ("released_ns", "released by the engine"),
)
OF_POOLS = ("reserved_ns", "transferred_ns")
"""Boundaries that are told only where a side sent the KV of this request from one pool to another."""


def facts(store: Store, chosen: Chosen) -> Answer:
    """Status, lengths, reuse and place of the request on each side; as text, a dash where it is not known."""
    rows = [{"fact": label} | {s.role.name: _text(r.row[name], name) for s, r in chosen.sides} for name, label in FACTS]
    columns = [
        Column("fact", "Fact", pinned=True, width=260),
        *(Column(side.role.name, side.role.name) for side, _ in chosen.sides),
    ]
    return Answer(pa.Table.from_pylist(rows), _sql(store, chosen), columns, chosen.n)


def _text(value: Any, name: str) -> str:
    if value is None:
        return "–"
    if name.endswith("_ns"):
        return f"{value / 1e9:,.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def boundaries(frame: Frame, store: Store, chosen: Chosen) -> Answer:
    """Moments of the request in ms from its dispatch, on each side, with the difference of the first replay.

    Its noise is how far the same source-turn moves in the repeats of the measured run.
    """
    rows: list[dict[str, Any]] = []
    again = _repeats(frame, store, chosen)
    apart = {
        name
        for name, metric in (("first_visible_ns", "ttft"), ("last_visible_ns", "e2e"))
        if frame.replay and refused(store, frame.measured.run_id, frame.replay.run_id, metric)
    }
    moments = {side.role.name: _moments(store, side, found) for side, found in chosen.sides}
    for name, label in BOUNDARIES:
        if name in OF_POOLS and all(own[name] is None for own in moments.values()):
            continue
        row: dict[str, Any] = {"boundary": label}
        row |= {role: own[name] for role, own in moments.items()}
        measured, replay = row.get(frame.measured.role.name), row.get(frame.replay.role.name) if frame.replay else None
        row["difference"] = None if measured is None or replay is None or name in apart else replay - measured
        others = [at for one in again if name in one.row and (at := one.since_dispatch_ms(name)) is not None]
        row["noise"] = None if measured is None or not others else max(abs(other - measured) for other in others)
        row["against"] = "not comparable" if name in apart else _against(row["difference"], row["noise"])
        rows.append(row)
    numbers = [*(side.role.name for side, _ in chosen.sides), "difference", "noise"]
    kinds = [("boundary", pa.string()), *((name, pa.float64()) for name in numbers), ("against", pa.string())]
    schema = pa.schema(kinds)
    columns = [Column("boundary", "Boundary", pinned=True, width=220)]
    columns += [Column(side.role.name, f"{side.role.name} (ms)", "%.1f") for side, _ in chosen.sides]
    if frame.replay is not None and len(chosen.sides) > 1:
        columns.append(Column("difference", f"{frame.replay.role.name} - {frame.measured.role.name} (ms)", "%+.1f"))
        columns.append(Column("noise", "Noise (± ms)", "%.1f", "largest deviation of this turn in a repeat"))
        columns.append(Column("against", "Against the noise"))
    return Answer(pa.Table.from_pylist(rows, schema), _sql(store, chosen), columns, chosen.n)


def _repeats(frame: Frame, store: Store, chosen: Chosen) -> list[Request]:
    """The same source-turn in the repeats of the measured run, but for one that is the first replay itself."""
    if chosen.on(frame.measured) is None:
        return []
    shown = frame.replay.run_id if frame.replay else ""
    others = [run for run in repeats(store, frame.measured.run_id) if run != shown]
    return [one for one in request.find(store, [frame.measured.run_id, *others], chosen.turn)[1:] if one is not None]


def _against(difference: float | None, noise: float | None) -> str | None:
    if difference is None:
        return None
    return "unknown" if noise is None else "~ inside" if abs(difference) <= noise else "outside"


def _moments(store: Store, side: Side, found: Request) -> dict[str, float | None]:
    """Every boundary, in ms from dispatch; None: not recorded."""
    result, sent = (read(store, side.run_id, found) for read in (request.passes_of, request.transfers))
    own = [] if result.not_recorded else [row for row in result.rows() if row["own_tokens"] is not None]
    prompt = found.row["input_tokens"]
    whole = [row["end_ns"] for row in own if prompt and row["computed_before"] + row["own_tokens"] >= prompt]
    way = {} if sent.not_recorded else next(iter(sent.rows()), {})
    inner: dict[str, int | None] = {name: way.get(name) for name in OF_POOLS}
    inner |= {"first_pass": own[0]["start_ns"] if own else None, "first_token": min(whole, default=None)}
    after = {name: None if at is None else (at - found.origin_ns) / 1e6 for name, at in inner.items()}
    return {name: after[name] if name in after else found.since_dispatch_ms(name) for name, _ in BOUNDARIES}


def _sql(store: Store, chosen: Chosen) -> str:
    return "\n\n".join(
        f"-- {side.role.name}\n{request.facts(store, side.run_id, chosen.turn).sql}" for side, _ in chosen.sides
    )


def neighbours(frame: Frame, store: Store, chosen: Chosen) -> tuple[Answer, str]:
    """Who shared its passes on the measured side and in the first replay, and those in words that only one side has."""
    sides = [(side, chosen.on(side)) for side in frame.sides[:2]]
    asked = [(side, request.neighbours(store, side.run_id, one)) for side, one in sides if one is not None]
    results = [(side, result) for side, result in asked if not result.not_recorded]
    merged: dict[str, dict[str, Any]] = {}
    for side, result in results:
        for row in result.rows():
            place = merged.setdefault(row["turn"], {"turn": row["turn"]})
            for name in ("passes", "new_tokens", "decode_passes"):
                place[f"{_word(frame, side)}_{name}"] = row[name]
    words = [_word(frame, side) for side, _ in results]
    counted = [f"{word}_{name}" for word in words for name in ("passes", "new_tokens", "decode_passes")]
    rows = [{"turn": row["turn"]} | {name: row.get(name, 0) for name in counted} for row in merged.values()]
    if len(words) == 2:
        for row in rows:
            row["difference"] = row["replay_passes"] - row["measured_passes"]
        rows.sort(key=lambda row: (-abs(row["difference"]), -row["measured_passes"], row["turn"]))
    columns = [Column("turn", "Source-turn", pinned=True)]
    for word in words:
        columns += [
            Column(f"{word}_passes", f"Passes, {word}", "%d"),
            Column(f"{word}_new_tokens", f"New tokens, {word}", "%d"),
            Column(f"{word}_decode_passes", f"Decode passes, {word}", "%d"),
        ]
    if len(words) == 2:
        columns.append(Column("difference", "Difference (passes)", "%+d"))
    sql = "\n\n".join(f"-- {side.role.name}\n{result.sql}" for side, result in asked)
    missing = [result.not_recorded for _, result in asked if result.not_recorded]
    found = Answer(
        pa.Table.from_pylist(rows) if rows else pa.table({}),
        sql,
        columns,
        {side.run_id: None if result.not_recorded else len(result) for side, result in asked},
        "Passes that both were in; new tokens: what the other prefilled in them; decode passes: those in which it "
        "decoded. n: requests that were in a pass with it.",
        " ".join(missing) if missing and not results else None,
        empty="Nobody shared a pass with this request, or who was in the passes was not recorded.",
    )
    return found, _parted(rows, [side.role.name for side, _ in sides]) if len(words) == 2 else ""


def _word(frame: Frame, side: Side) -> str:
    return "measured" if side is frame.measured else "replay"


def _parted(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """Which neighbours only one side has."""
    both = sum(row["measured_passes"] > 0 and row["replay_passes"] > 0 for row in rows)
    said = [f"Neighbours on both sides: {both}."]
    for other, name in zip(("replay", "measured"), names, strict=True):
        alone = [row["turn"] for row in rows if row[f"{other}_passes"] == 0]
        if alone:
            more = f" and {len(alone) - NAMED} more" if len(alone) > NAMED else ""
            said.append(f"{len(alone)} on the {name} side only: {', '.join(alone[:NAMED])}{more}.")
    return " ".join(said)


def names(found: Answer) -> list[str]:
    """The source-turns of the rows of a table."""
    return [] if found.not_recorded or not found.rows.num_rows else list(found.rows.column("turn").to_pylist())


def summary(chosen: Chosen) -> str:
    """Lengths and latency of each side in a line."""
    words = []
    for side, found in chosen.sides:
        row = found.row
        cached = "unknown" if row["cached_tokens"] is None else f"{row['cached_tokens']:,}"
        words.append(
            f"{side.role.name}: {style.count(row['input_tokens'])} tokens in ({cached} reused), "
            f"{style.count(row['output_tokens'])} out, "
            f"TTFT {style.fixed(found.since_dispatch_ms('first_visible_ns'))} ms, "
            f"E2E {style.fixed(found.since_dispatch_ms('last_visible_ns'))} ms"
        )
    return "; ".join(words)
