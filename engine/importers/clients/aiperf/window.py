"""When the phases of a run began and ended, from the best source there is, and how it is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from engine.bundle import Phase
from engine.importers.clients.aiperf.log import Log
from engine.importers.clients.aiperf.setup import Setup
from engine.importers.clients.aiperf.summary import Summary
from engine.importers.clients.aiperf.values import count, dig, mapping, text

_QUARTER_NS = 15 * 60 * 10**9
"""Time zones are whole quarters of an hour from UTC."""
_SLACK_NS = 10**9
"""What lies this close behind duration and grace is their end."""


@dataclass(frozen=True)
class Window:
    """Start and end in nanoseconds since the epoch, and which file says so."""

    start_ns: int
    end_ns: int
    source: str


@dataclass(frozen=True)
class Windows:
    """The windows of a run; None where nothing says it."""

    profile: Window | None
    warmup: Window | None
    sent_end_ns: int | None = None


def windows_of(
    manifest: Any, server: Any, log: Log | None, summary: Summary | None, first_ns: int | None, last_ns: int | None
) -> Windows:
    """The phase windows: of the manifest, the server metrics, the log, or the summary's local times, in this order.

    ``first_ns`` and ``last_ns`` are the earliest credit (or start) and the latest end among the profile's rows.
    """
    profile: list[Window] = []
    warmup: list[Window] = []
    for kind, window in _stated(manifest, server, log):
        (warmup if kind == "warmup" else profile).append(window)
    if summary is not None and (local := _local(summary, first_ns, last_ns)) is not None:
        profile.append(local)
    if not profile and first_ns is not None and last_ns is not None:
        profile.append(Window(first_ns, last_ns, "the rows: earliest credit to latest end"))
    sent = log.phases["profiling"].sent_end_ns if log and "profiling" in log.phases else None
    return Windows(profile[0] if profile else None, warmup[0] if warmup else None, sent)


def _stated(manifest: Any, server: Any, log: Log | None) -> Iterator[tuple[str, Window]]:
    phases = dig(manifest, "phases")
    if isinstance(phases, list):
        yield from _joined(
            [(str(dig(p, "phase_kind")), dig(p, "start_ns"), dig(p, "end_ns")) for p in phases], "the phase manifest"
        )
    ranges = mapping(dig(server, "summary", "phase_time_ranges"))
    yield from _joined(
        [(kind, dig(span, "start_ns"), dig(span, "end_ns")) for kind, span in ranges.items()], "the server metrics"
    )
    if log is not None:
        yield from _joined([(kind, p.start_ns, p.end_ns) for kind, p in log.phases.items()], "the log")


def _joined(spans: list[tuple[str, Any, Any]], source: str) -> Iterator[tuple[str, Window]]:
    """One window per kind, from the first start to the last end of its phases."""
    found: dict[str, list[tuple[int, int]]] = {}
    for kind, start, end in spans:
        first, last = count(start), count(end)
        if first is not None and last is not None and last >= first:
            found.setdefault("warmup" if "warmup" in kind else "profiling", []).append((first, last))
    for kind, pairs in found.items():
        yield kind, Window(min(s for s, _ in pairs), max(e for _, e in pairs), source)


def _local(summary: Summary, first_ns: int | None, last_ns: int | None) -> Window | None:
    """The summary's date-times, which are local without a zone: the zone is the one in which the rows lie inside."""
    start, end = (_naive_ns(summary.document.get(name)) for name in ("start_time", "end_time"))
    if start is None or end is None or end < start or first_ns is None or last_ns is None:
        return None
    shift = round((first_ns - start) / _QUARTER_NS) * _QUARTER_NS
    if first_ns < start + shift - _SLACK_NS or first_ns > end + shift or abs(shift) > 15 * 3600 * 10**9:
        return None
    hours = -shift / 3600e9
    lead = (first_ns - start - shift) / 1e9
    words = (
        f"the summary's local start and end, read as UTC{hours:+g} h, which puts the first request {lead:.3f} s after "
        "the start"
    )
    return Window(start + shift, end + shift, words)


def _naive_ns(value: Any) -> int | None:
    words = text(value)
    try:
        moment = datetime.fromisoformat(words) if words else None
    except ValueError:
        return None
    if moment is None:
        return None
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    whole = int(moment.replace(microsecond=0).timestamp())
    return whole * 10**9 + moment.microsecond * 1000


def phases_of(windows: Windows, setup: Setup, rows: Mapping[str, int | None]) -> list[Phase]:
    """Phases in nanoseconds from profile start.

    The profile ends when nothing new starts (the configured duration, or the end of the window); then comes the grace,
    and after the window the drain. ``rows`` has the earliest start of the warm-up (``warmup``) and the latest end of
    all rows (``last``).
    """
    profile = windows.profile
    if profile is None:
        return []
    origin, end = profile.start_ns, profile.end_ns
    closed = end
    if setup.duration_s is not None:
        closed = min(end, windows.sent_end_ns or origin + round(setup.duration_s * 1e9))
        if end - closed < 1000:  # the summary has microseconds
            closed = end
    found = []
    first = windows.warmup.start_ns if windows.warmup else rows.get("warmup")
    if first is not None and first < origin:
        until = min(windows.warmup.end_ns, origin) if windows.warmup else origin
        found.append(Phase("warmup", first - origin, max(until, first) - origin))
    found.append(Phase("profile", 0, closed - origin))
    if end > closed:
        found.append(Phase("grace", closed - origin, end - origin))
    last = rows.get("last")
    if last is not None and last > end:
        found.append(Phase("drain", end - origin, last - origin + 1))
    return found
