"""A replay played again from its own record, and held against what was written then: table by table, by content."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from engine import knobs as knob_table
from engine.bundle import Bundle, open_bundle
from engine.deployment import preset_folders
from engine.errors import GapscopeError
from engine.replay.identity import deployment_digest, knobs_from_run, package_version
from engine.replay.loop import Progress, replay
from engine.replay.played import played_trace

SHOWN_DIGEST = 12
RESTS_ON: Mapping[str, Callable[[Mapping[str, Any]], str | None]] = {
    "the deployment that is priced": deployment_digest,
    "the correction": lambda timing: (timing.get("correction") or {}).get("digest"),
    "the timing model": lambda timing: timing.get("model_digest"),
}
"""What the lineage of a timing names by content."""


@dataclass(frozen=True, slots=True)
class TableAgain:
    """One table both times: digests of its content, None where there is no such table, and the first difference."""

    name: str
    recorded: str | None
    again: str | None
    difference: str = ""

    @property
    def equal(self) -> bool:
        """Whether every value is the same."""
        return self.recorded == self.again


@dataclass(frozen=True, slots=True)
class Again:
    """What came of playing a replay again. ``recorded_by`` is the program that wrote it, ``made_by`` this one.

    ``causes`` are sentences on what the two rest on and does not have the same content.
    """

    run_id: str
    recorded_by: str
    made_by: str
    tables: tuple[TableAgain, ...]
    causes: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether all tables are the same."""
        return all(table.equal for table in self.tables)

    @property
    def first(self) -> TableAgain | None:
        """The first table that differs, in the order in which they are written."""
        return next((table for table in self.tables if not table.equal), None)


def why_not(bundle: Bundle) -> str:
    """Why a run cannot be played again from its record, as a sentence; empty where it can, as far as that says."""
    if bundle.kind != "replay":
        return f"Run {bundle.run_id} is no replay: only a prediction can be made again."
    lineage = bundle.lineage
    if lineage.get("ladder"):
        return (
            f"Run {bundle.run_id} is a rung of a ladder: what it takes from the recording is no knob. Align the "
            "prediction that the ladder leads from."
        )
    if not isinstance(lineage.get("config"), Mapping) or not lineage["config"]:
        return f"Run {bundle.run_id} does not record the knobs it was made with."
    if not bundle.identity.value("trace", "digest"):
        return f"Run {bundle.run_id} does not record which trace it played."
    return ""


def replay_again(
    bundle: Bundle,
    stores: Sequence[Path],
    progress: Progress | None = None,
    cancel: Callable[[], bool] | None = None,
) -> Again:
    """Play a replay from its recorded knobs, trace and timing model; nothing is kept of it but the comparison.

    Raises:
        GapscopeError: the record does not say how it was made, or what it names is not in the stores.
        Canceled: ``cancel`` said so.
    """
    if said := why_not(bundle):
        raise GapscopeError(said)
    values = knob_table.resolve({}, knobs_from_run(bundle))
    trace = played_trace(bundle, stores)
    model = _model(bundle, stores, values)
    with tempfile.TemporaryDirectory(prefix="gapscope-again-") as folder:
        run_id = replay(
            trace,
            values,
            model,
            store=Path(folder),
            presets=preset_folders(stores, bundle.lineage.get("timing")),
            slug="again",
            progress=progress,
            cancel=cancel,
        )
        return compared(bundle, open_bundle(Path(folder) / run_id))


def compared(recorded: Bundle, again: Bundle) -> Again:
    """Two replays of one config, table by table."""
    names = [name for name in recorded.tables if name in again.tables]
    names += [name for name in (*recorded.tables, *again.tables) if name not in names]
    return Again(
        recorded.run_id,
        str(recorded.identity.value("source", "distribution") or "unknown"),
        f"gapscope {package_version()}",
        tuple(_table(name, recorded, again) for name in dict.fromkeys(names)),
        tuple(_causes(recorded.lineage.get("timing") or {}, again.lineage.get("timing") or {})),
    )


def _causes(recorded: Mapping[str, Any], again: Mapping[str, Any]) -> Iterator[str]:
    """What a timing rests on besides its knobs, where its digest is another."""
    for what, digest in RESTS_ON.items():
        was, now = digest(recorded), digest(again)
        if was != now:
            yield f"{what} has another digest ({_short(was)} in the record, {_short(now)} this time)"


def _short(digest: str | None) -> str:
    return digest[:SHOWN_DIGEST] if digest else "none"


def _model(bundle: Bundle, stores: Sequence[Path], values: Mapping[str, Any]) -> Mapping[str, Any] | None:
    from engine.timing import model_for

    if values["timing"] == "measured":
        return model_for(bundle, stores)
    found: Mapping[str, Any] | None = (bundle.lineage.get("timing") or {}).get("model")
    return found


def _table(name: str, recorded: Bundle, again: Bundle) -> TableAgain:
    before, now = (_digest(bundle, name) for bundle in (recorded, again))
    left, right = recorded.table(name), again.table(name)
    if left is None or right is None:
        difference = f"there is no such table {'in the record' if left is None else 'this time'}"
    else:
        difference = "" if before == now else first_difference(left, right)
    return TableAgain(name, before, now, difference)


def _digest(bundle: Bundle, name: str) -> str | None:
    entry = bundle.manifest["files"].get(f"{name}.parquet")
    return None if entry is None else str(entry["content"])


def first_difference(left: pa.Table, right: pa.Table) -> str:
    """The first row in which two tables of one schema differ, and the first column of it, with both values."""
    rows = min(left.num_rows, right.num_rows)
    found: list[tuple[int, str]] = []
    for name in left.column_names:
        one, other = (table.column(name).combine_chunks().slice(0, rows) for table in (left, right))
        if pa.types.is_dictionary(left.schema.field(name).type):  # equal values may be coded in another order
            one, other = (column.cast(column.type.value_type) for column in (one, other))
        if one.equals(other):
            continue
        low, high = 0, rows  # the first ``low`` values are equal, the first ``high`` are not
        while low + 1 < high:
            middle = (low + high) // 2
            if one.slice(low, middle - low).equals(other.slice(low, middle - low)):
                low = middle
            else:
                high = middle
        found.append((low, name))
    if not found:
        return f"{left.num_rows:,} rows in the record, {right.num_rows:,} this time; those that both have are equal"
    row, name = min(found, key=lambda one: one[0])
    was, now = (str(table.column(name)[row].as_py())[:60] for table in (left, right))
    return f"row {row:,}, column {name}: {was} in the record, {now} this time"
