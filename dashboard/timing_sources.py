"""Several ways of knowing how long a pass takes, asked about the same measured passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dashboard.jobs.models import named_table
from dashboard.jobs.what_if import base_values
from dashboard.pricing import rebuilt
from dashboard.queries import passes
from dashboard.store import Store
from engine import knobs
from engine.bundle import Bundle
from engine.bundle.schema import RESOLUTIONS
from engine.deployment import model_names, part_names, preset_folders
from engine.errors import GapscopeError
from engine.identity import Identity
from engine.timing import PassQueries, PassTimeSource, build_timing
from engine.timing.anchors import names as anchor_names
from engine.timing.anchors.canonical import model_key
from engine.timing.anchors.regime import AXES, compare, of_identity
from engine.timing.anchors.selection import anchor_model
from engine.timing.tables import table_names

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
FAR_OFF = 0.2
"""Median error in decode passes above which nothing small is told with a source: not known to better than levels."""
OUTSIDE = tuple(RESOLUTIONS.index(name) for name in ("refused", "extrapolated", "clamped"))
"""Answers that rest neither on a measured point nor on a formula for the very geometry."""


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredPasses:
    """Passes of a run that did work; arrays of equal length."""

    classes: npt.NDArray[np.str_]
    phases: npt.NDArray[np.str_]
    geometry: Mapping[str, Floats]
    duration_ns: Floats
    sql: str

    def __len__(self) -> int:
        return len(self.duration_ns)


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """What one source says of the measured passes, and which of them it covers; or why it cannot be asked."""

    name: str
    timing: PassTimeSource | None
    model_ns: Floats | None = None
    covered: Flags | None = None
    why: str = ""
    key: tuple[object, ...] = ()  # what it is kept under


def measured_passes(store: Store, run_id: str) -> MeasuredPasses | None:
    """The passes of a run, evenly thinned where there are many; None where it recorded none."""
    if "passes" not in store.tables(run_id):
        return None

    def read() -> MeasuredPasses:
        found = passes.samples(store, run_id)
        geometry = {name: np.nan_to_num(found.array(name).astype(np.float64)) for name in passes.AXES}
        return MeasuredPasses(
            found.array("class").astype(str),
            found.array("phase").astype(str),
            geometry,
            found.array("duration_ns").astype(np.float64),
            found.sql,
        )

    kept: MeasuredPasses = store.remember(("measured passes", run_id), read)
    return kept


def offered(store: Store) -> list[str]:
    """Sources that can be asked besides the replays' own: ``analytic:PART``, ``anchor:NAME``, ``table:NAME``."""
    found = [f"analytic:{name}" for name in part_names(preset_folders(store.roots))]
    found += [f"anchor:{name}" for name in anchor_names(store.roots)]
    return found + [f"table:{name}" for name in table_names(store.roots)]


def preset_of(store: Store, run: Bundle) -> str:
    """The preset of the model that a run names, where exactly one has that name; else empty."""
    key = model_key(run.identity.value("model", "name"))
    found = [name for name in model_names(preset_folders(store.roots)) if model_key(name) == key]
    return found[0] if len(found) == 1 else ""


def own(store: Store, replay: Bundle, run_id: str) -> Asked:
    """The timing of a replay on the passes of a run."""
    timing, why = rebuilt(store, replay.run_id)
    name = f"own timing of {replay.run_id}"
    return _asked(store, run_id, name, timing, (replay.run_id,)) if timing else Asked(name, None, why=why)


def other(store: Store, run: Bundle, named: str, model: str = "", tp: int = 1) -> Asked:
    """A source of :func:`offered` for the deployment of a run; ``model`` and ``tp`` are those of analytic ones."""
    kind, _, name = named.partition(":")
    try:
        base = base_values(run)
        if kind == "analytic":
            if not model:
                raise GapscopeError("An analytic source needs a model: choose its preset above.")
            words, asked = f"{name} x {tp}, {model}", {"part": name, "model_preset": model, "tp": tp}
        else:
            words, asked = named, {kind: name}
        values = knobs.resolve({"timing": kind, "on_refused": "clamp", **asked}, base)
        record = None
        if kind == "anchor":
            record = anchor_model(values, run, store.roots)
        elif kind == "table":
            record = named_table(name, run, store.roots)
        timing = build_timing(values, record, preset_folders(store.roots))
    except GapscopeError as error:
        return Asked(named, None, why=str(error))
    return _asked(store, run.run_id, words, timing, (named, model, tp, record and record["digest"]))


def _asked(store: Store, run_id: str, name: str, timing: PassTimeSource, key: Sequence[object]) -> Asked:
    def ask() -> Asked:
        found = measured_passes(store, run_id)
        if found is None:
            return Asked(name, timing, why=f"Run {run_id} recorded no passes.")
        ms, covered = answers(timing, found.geometry)
        return Asked(name, timing, ms, covered, key=tuple(key))

    kept: Asked = store.remember(("asked", run_id, *key), ask)
    return kept


def answers(timing: PassTimeSource, geometry: Mapping[str, Floats]) -> tuple[Floats, Flags]:
    """Nanoseconds of passes whose axes are given as arrays, and which of them the source covers."""
    told = timing.explain(PassQueries(*(np.rint(geometry[name]).astype(np.int64) for name in passes.AXES)))
    return told.total_ns.astype(np.float64), ~np.isin(told.resolution, OUTSIDE)


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """Errors of a source in the passes of a class that every source covers, and what it left out itself."""

    source: str
    pass_class: str
    passes: int
    mean: float | None
    median: float | None
    weighted: float | None
    total: float | None
    left_out: int
    left_out_share: float


def error_rows(measured: MeasuredPasses, chosen: Flags, sources: Sequence[Asked], shared: Flags) -> list[ErrorRow]:
    """One row per source and class: mean and median absolute error relative to the pass, sum of absolute errors over
    the time measured, and the error of the total time; ``chosen`` are the passes looked at."""
    rows = []
    for source in sources:
        assert source.model_ns is not None
        assert source.covered is not None
        for name in passes.CLASS_AXES:
            of_class = chosen & (measured.classes == name)
            if not of_class.any():
                continue
            here = of_class & shared
            left = of_class & ~source.covered
            own_ns, told = measured.duration_ns[here], source.model_ns[here]
            known = bool(here.any())
            off = np.abs(told - own_ns)
            rows.append(
                ErrorRow(
                    source.name,
                    name,
                    int(here.sum()),
                    float((off / own_ns).mean()) if known else None,
                    float(np.median(off / own_ns)) if known else None,
                    float(off.sum() / own_ns.sum()) if known else None,
                    float(told.sum() / own_ns.sum() - 1) if known else None,
                    int(left.sum()),
                    float(measured.duration_ns[left].sum() / measured.duration_ns[of_class].sum()),
                )
            )
    return rows


def doubtful(source: Asked, measured: MeasuredPasses, chosen: Flags, run: Bundle) -> str:
    """Why small effects in the decodes of a run cannot be told with a source, as a sentence; empty where they can.

    A source of another regime, or one that is far off, leaves more unexplained than what is asked for.
    """
    assert source.timing is not None
    assert source.model_ns is not None
    described = source.timing.describe()
    own, target = _regime(described), of_identity(run.identity)
    differing = [row.label for row in compare(own, target) if row.state == "differs"] if own else []
    if differing:
        return f"Not told: {source.name} is of another regime than the run ({', '.join(differing)} differ)."
    mine = chosen & (measured.classes == "decode_only")
    off = np.abs(source.model_ns[mine] / measured.duration_ns[mine] - 1)
    if mine.any() and np.median(off) > FAR_OFF:
        return (
            f"Not told: {source.name} is off by {np.median(off):.0%} in the median decode pass (at most {FAR_OFF:.0%})."
        )
    return ""


def _regime(described: Mapping[str, Any]) -> Mapping[str, str | None]:
    """The regime that a source says its answers are of; empty where it says none."""
    if isinstance(described.get("data_regime"), Mapping):
        return dict.fromkeys(AXES) | dict(described["data_regime"])
    if not isinstance(described.get("regime"), Mapping):
        return {}
    identity = Identity()
    for group, fields in described["regime"].items():
        for name, value in fields.items():
            identity.set(group, name, value, "named deployment")
    return of_identity(identity)


def nearest_on_decodes(measured: MeasuredPasses, chosen: Flags, sources: Sequence[Asked]) -> int | None:
    """The place of the source with the smallest sum of absolute errors on decode-only passes; None without any."""
    mine = chosen & (measured.classes == "decode_only")
    off = [
        float(np.abs(source.model_ns[mine] - measured.duration_ns[mine]).sum())
        for source in sources
        if source.model_ns is not None
    ]
    return int(np.argmin(off)) if off and mine.any() else None
