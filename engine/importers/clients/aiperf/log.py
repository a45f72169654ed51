"""Counts and windows per phase in AIPerf's log: the only place that knows of requests without a record."""

from __future__ import annotations

import re
from dataclasses import dataclass

from engine.intake import InputFile
from engine.intake.rows import lines

_PHASE = re.compile(
    rb"Phase (?P<name>\S+) (?:\((?P<kind>\w+)\) )?(?P<what>sending complete|complete|timed out)\b(?P<rest>.*)"
)
_COUNT = re.compile(rb"(\w+)=(\d[\d,]*)")
_STATS = re.compile(rb"PhaseRecordsStats\((.*)\)")
_FIELD = re.compile(rb"(\w+)=([\w.]+)")
_STALL = re.compile(rb"Event loop for (\S+) is taking too long.*?([\d,]+(?:\.\d+)?) ?ms")
_COUNTS = ("sent", "completed", "cancelled", "errors", "in_flight")


@dataclass
class PhaseLog:
    """What the log says of one kind of phase, all phases of this kind taken together."""

    sent: int | None = None
    completed: int | None = None
    canceled: int | None = None
    in_flight: int | None = None
    """When sending was complete."""
    start_ns: int | None = None
    sent_end_ns: int | None = None
    end_ns: int | None = None


@dataclass
class Log:
    """What a log says; ``phases`` by kind: warmup, profiling."""

    phases: dict[str, PhaseLog]
    stalls: int = 0
    longest_stall_ms: float = 0.0


def read_log(file: InputFile) -> Log:
    """Everything of interest in a log, line by line."""
    log = Log({})
    for _, line, broken in lines(file):
        if broken:
            break
        if match := _PHASE.search(line):
            _counts(log, match)
        elif match := _STATS.search(line):
            _window(log, dict(_FIELD.findall(match[1].replace(b"CreditPhase.", b""))))
        elif match := _STALL.search(line):
            log.stalls += 1
            log.longest_stall_ms = max(log.longest_stall_ms, float(match[2].replace(b",", b"")))
    return log


def _phase(log: Log, kind: bytes) -> PhaseLog:
    word = kind.decode("ascii", "replace").lower()
    return log.phases.setdefault("warmup" if "warmup" in word else "profiling", PhaseLog())


def _counts(log: Log, match: re.Match[bytes]) -> None:
    phase = _phase(log, match["kind"] or match["name"])
    told = match["rest"].split(b"| sessions")[0]
    counts = {name.decode(): int(value.replace(b",", b"")) for name, value in _COUNT.findall(told)}
    if match["what"] == b"sending complete":
        phase.sent = (phase.sent or 0) + counts.get("sent", 0) if "sent" in counts else phase.sent
        phase.in_flight = counts.get("in_flight", phase.in_flight)
    elif match["what"] == b"complete":
        if "completed" in counts:
            phase.completed = (phase.completed or 0) + counts["completed"]
        if "cancelled" in counts:
            phase.canceled = (phase.canceled or 0) + counts["cancelled"]


def _window(log: Log, fields: dict[bytes, bytes]) -> None:
    phase = _phase(log, fields.get(b"phase_kind", fields.get(b"phase", b"")))
    start, sent, end = (_number(fields.get(name)) for name in (b"start_ns", b"sent_end_ns", b"requests_end_ns"))
    if start is not None:
        phase.start_ns = start if phase.start_ns is None else min(start, phase.start_ns)
    if sent is not None:
        phase.sent_end_ns = max(sent, phase.sent_end_ns or 0)
    if end is not None:
        phase.end_ns = max(end, phase.end_ns or 0)


def _number(text: bytes | None) -> int | None:
    return int(text) if text is not None and text.isdigit() and len(text) < 20 else None
