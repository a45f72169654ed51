"""What the time of each request went to: one row per success of a run, kept as arrays, and which rows are one turn.

Every population, split and pair is a choice of rows, so a control costs a sum and no query. Times are nanoseconds, NaN
where a stage is not recorded or not known of a request; ``_stages.sql`` says what each holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dashboard.metrics import Population
from dashboard.store import Store
from engine.bundle.schema import PHASES

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
MOSTLY = 0.5
"""Share of requests that must know a stage for it to count as recorded: the few that know what the others do not
(requests of one token have no last token of their own) are another kind of request."""
NEARLY_ALL = 0.95
"""The same where requests that do not know it are left out, as it is seldom by chance who they are."""


@dataclass(frozen=True, slots=True, eq=False)
class StageRows:
    """Columns of the successes of a run with visible output, in order of ``member``, their number in the run."""

    columns: dict[str, Floats]
    members: Ints
    phases: npt.NDArray[np.int8]  # places in PHASES
    lanes: Ints  # -1: none recorded
    sql: str

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, name: str) -> Floats:
        return self.columns[name]

    def of(self, population: Population) -> Flags:
        """Which rows are of the phases and the role of a population; what it shares is told by :func:`pairs`."""
        chosen = np.isin(self.phases, [PHASES.index(phase) for phase in population.phases])
        depth = self.columns["agent_depth"]
        if population.role == "root":
            chosen &= depth == 0
        elif population.role == "child":
            chosen &= (depth != 0) & ~np.isnan(depth)
        return np.asarray(chosen, dtype=np.bool_)


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Rows of two runs that are one source-turn each; ``sql`` is what found them."""

    measured: Ints
    replay: Ints
    sql: str


def mostly(known: Flags, share: float = MOSTLY) -> bool:
    """Whether enough of them are known; none of nothing."""
    return bool(known.size and known.mean() >= share)


def stage_rows(store: Store, run_id: str) -> StageRows:
    """The rows of a run."""
    store.bundle(run_id)  # notices files that changed before old rows are given
    found: StageRows = store.remember(("stage_rows", run_id), lambda: _read(store, run_id), runs=(run_id,))
    return found


def _read(store: Store, run_id: str) -> StageRows:
    result = store.query("stage_rows", runs={"run": run_id}, row_cap=None, keep=False)
    own = ("member", "phase", "lane")
    columns = {
        name: result.array(name).astype(np.float64, copy=False) for name in result.table.column_names if name not in own
    }
    members = result.array("member").astype(np.int64)
    phases = pc.index_in(result.table.column("phase"), pa.array(PHASES)).fill_null(-1).to_numpy().astype(np.int8)
    lanes = np.asarray(result.table.column("lane").fill_null(-1).to_numpy(), dtype=np.int64)
    return StageRows(columns, members, phases, lanes, result.sql)


def pairs(store: Store, measured: str, replay: str, population: Population) -> Pairs:
    """Rows of the source-turns that both runs finished in the phases of ``population``, by its rule of matching."""
    result = store.query(
        "stage_pairs", runs={"measured": measured, "replay": replay}, population=population, row_cap=None
    )
    left, right = stage_rows(store, measured), stage_rows(store, replay)
    found = [result.array(name).astype(np.int64) for name in ("measured", "replay")]
    known = np.isin(found[0], left.members) & np.isin(found[1], right.members)
    at = [np.searchsorted(rows.members, own[known]) for rows, own in zip((left, right), found, strict=True)]
    inside = left.of(population)[at[0]] & right.of(population)[at[1]]
    return Pairs(at[0][inside], at[1][inside], result.sql)
