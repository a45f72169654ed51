"""How long a replay may take, from how long earlier ones took; none where the store does not show it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dashboard import jobs
from dashboard.catalogue import RunEntry
from dashboard.store import Store
from engine.bundle import Bundle

LATEST = 12
"""Replays, and jobs, that an estimate rests on at most; the newest count."""


@dataclass(frozen=True)
class Record:
    """What an earlier replay did: its trace, its passes, and the CPU time of its simulation."""

    trace: str
    passes: int
    cpu_s: float


@dataclass(frozen=True)
class Estimate:
    """From ``low_s`` to ``high_s``; ``rests_on`` says what it was made of, ``bare`` that it is of the passes alone."""

    low_s: float
    high_s: float
    rests_on: str
    bare: bool = False

    @property
    def words(self) -> str:
        """The range in words."""
        low, high = span(self.low_s), span(self.high_s)
        alone = " for the passes alone" if self.bare else ""
        return (low if low == high else f"{low} to {high}") + alone

    def to_json(self) -> dict[str, Any]:
        """As the folder of a job holds it."""
        return asdict(self)


def from_json(value: Mapping[str, Any] | None) -> Estimate | None:
    """The estimate in the folder of a job; None where there is none that can be read."""
    try:
        return (
            Estimate(float(value["low_s"]), float(value["high_s"]), str(value["rests_on"]), bool(value.get("bare")))
            if value
            else None
        )
    except (KeyError, TypeError, ValueError):
        return None


def span(seconds: float) -> str:
    """A time as a person would say it."""
    if seconds < 9.95:
        return f"{max(seconds, 0.1):.1f} s"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def estimate(
    records: Sequence[Record],
    rests_s: Sequence[float],
    trace: str,
    passes: int | None,
    scale: float | None,
    count: int = 1,
) -> Estimate | None:
    """The time of ``count`` replays of a workload.

    Seconds of CPU per pass of earlier replays of the same trace, or else of any, times the passes of the run to start
    from, times ``scale``, the simulated time over that of the run; and per replay what earlier jobs took besides.

    Args:
        records: earlier replays, the newest first.
        rests_s: what earlier jobs took beyond their simulations (trace, tables, writing), the newest first.
        trace: digest of the trace.
        passes: passes of the run to start from; None unknown.
        scale: None where the simulated time is not known before it is over.
        count: replays that are played.
    """
    if not passes or scale is None:
        return None
    same = [one for one in records if one.trace == trace]
    used = [one.cpu_s / one.passes for one in (same or records)[:LATEST]]
    if not used:
        return None
    whose = "of this trace" if same else "of other traces"
    rates = sorted(1 / one for one in used)
    words = (
        f"{passes * scale:,.0f} passes, as many as the run to start from has in that time, at {_range(rates)} passes "
        f"per CPU second ({len(used)} earlier replay{'s' if len(used) > 1 else ''} {whose})"
    )
    rests = list(rests_s[:LATEST])
    if rests:
        words += f"; reading and writing as in {len(rests)} earlier job{'s' if len(rests) > 1 else ''}"
    else:
        words += "; reading and writing come on top, no job of this store has shown them yet"
    low, high = ((pick(used) * passes * scale + pick(rests or [0.0])) * count for pick in (min, max))
    return Estimate(low, high, words + (f"; {count} points" if count > 1 else ""), bare=not rests)


def _range(values: Sequence[float]) -> str:
    low, high = f"{values[0]:,.0f}", f"{values[-1]:,.0f}"
    return low if low == high else f"{low} to {high}"


def of_run(
    store: Store,
    folder: Path,
    entries: Sequence[RunEntry],
    base: Bundle,
    values: Mapping[str, Any],
    now: Mapping[str, Any],
    count: int = 1,
) -> Estimate | None:
    """The estimate of ``count`` replays of a run with these knobs; ``now`` are those that it has."""
    manifests = [store.catalog.manifest(entry.run_id) for entry in _replays(entries)]
    return estimate(
        list(records(manifests)),
        besides(folder),
        str(base.identity.value("trace", "digest") or ""),
        base.rows("passes"),
        scale(values, now),
        count,
    )


def _replays(entries: Iterable[RunEntry]) -> list[RunEntry]:
    """The newest replays of the store."""
    found = [entry for entry in entries if entry.kind == "replay" and entry.state == "ok"]
    return sorted(found, key=lambda entry: -(entry.created_unix_ns or 0))[: 4 * LATEST]


def records(bundles: Iterable[Bundle]) -> Iterable[Record]:
    """What the replays among these say of their own run time."""
    for bundle in bundles:
        cpu_s, passes = bundle.manifest.get("host", {}).get("cpu_s"), bundle.rows("passes")
        if isinstance(cpu_s, float) and cpu_s > 0 and passes:
            yield Record(str(bundle.identity.value("trace", "digest") or ""), passes, cpu_s)


def besides(folder: Path) -> list[float]:
    """What jobs of a store took beyond their simulations, per replay, the newest first."""
    found = []
    for job in jobs.jobs_about(folder, do="replay"):
        cpu_s = job.result.get("cpu_s")
        if job.state == "done" and isinstance(cpu_s, float) and "took_s" in job.result:
            found.append(max(float(job.result["took_s"]) - cpu_s, 0.0))
    return found


def scale(values: Mapping[str, Any], now: Mapping[str, Any]) -> float | None:
    """Simulated time over that of the run to start from; None where one of them ends when the trace does."""
    spans = [one["duration_s"] and one["warmup_s"] + one["duration_s"] + one["grace_s"] for one in (values, now)]
    if spans[0] == spans[1]:
        return 1.0
    return float(spans[0] / spans[1]) if all(spans) else None


def why_none(base: Bundle, values: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Why there is no estimate, as the end of a sentence."""
    if not base.rows("passes"):
        return "as the run to start from recorded no passes"
    if scale(values, now) is None:
        return "as the replay, or the run to start from, ends when its trace does"
    return "as no replay of the store says how long it took"
