"""Moves a finished replay on its clock: when its profile starts may be known only once it did."""

from __future__ import annotations

from engine.serving.cluster import NO_TIME
from engine.serving.contract import ServerRecord
from engine.serving.record import EVICT

DURATIONS = frozenset({"period_ns"})


def move_back(record: ServerRecord, by_ns: int) -> None:
    """Make every time of the record so much earlier, in place; what stands for *none* stays.

    A column named ``*_ns`` is a time, unless it is one of ``DURATIONS``.
    """
    some = {
        "first_admit_ns": record.requests["first_admit_pass"] >= 0,
        "released_ns": record.events["kind"] == EVICT,
    }
    for columns in (record.passes, record.requests, record.admissions, record.events):
        for name in columns:
            if name.endswith("_ns") and name not in DURATIONS:
                columns[name] = columns[name] - by_ns * some.get(name, 1)
    for name, column in (record.transfers or {}).items():
        if name.endswith("_ns"):
            column -= by_ns * (column != NO_TIME)
