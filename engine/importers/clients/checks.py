"""What is asked of every imported run, whoever wrote it: from the request rows alone, piece by piece."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from engine.bundle import Check, Phase, Spool
from engine.importers.clients.flags import TIMES_WRONG
from engine.importers.clients.plausible import FASTEST_TOKEN_S
from engine.intake import BadRows

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

LONGEST_S = 86_400.0
"""A request that takes longer than a day has its times in another unit than was read."""
FEW_TOKENS = 16
"""Answers shorter than this may come whole in one chunk: their speed says nothing of units."""

_MOMENTS = ("scheduled", "dispatched", "first_visible", "first_output", "last_visible", "end")
_ORDER: tuple[tuple[str, str], ...] = (
    ("scheduled", "dispatched"),
    ("dispatched", "first_visible"),
    ("first_visible", "first_output"),
    ("first_visible", "last_visible"),
    ("first_output", "last_visible"),
    ("last_visible", "end"),
    ("dispatched", "end"),
)
"""Moments of a request, each pair in the order in which they must be."""
_WORDS = {name: name.replace("_", " ") for name in _MOMENTS}
_NUMBERS = (
    *(f"{name}_ns" for name in _MOMENTS),
    *(f"{name}_after_ns" for name in _MOMENTS[2:]),
    "output_tokens",
)
_TEXTS = ("status", "phase", "flags")


def standard_checks(requests: Spool | None, phases: Sequence[Phase], origin_ns: int, bad: BadRows) -> list[Check]:
    """The checks that need no more than the request rows.

    Args:
        requests: the rows, None where the run has none.
        phases: in nanoseconds from profile start.
        origin_ns: profile start on the clock of the rows.
        bad: rows that could not be used.
    """
    used = Check("rows_used", "fail" if bad.count else "pass", bad.words)
    if requests is None:
        return [used]
    tally = _Tally(phases, origin_ns)
    for piece in requests.pieces((*_NUMBERS, *_TEXTS)):
        tally.take(piece)
    return [used, *tally.checks()]


class _Tally:
    """Counts over pieces of the request rows: no row is held."""

    def __init__(self, phases: Sequence[Phase], origin_ns: int) -> None:
        self._phases = {phase.name: phase for phase in phases}
        self._last_ns = max((phase.end_ns for phase in phases), default=None)
        self._origin_ns = origin_ns
        self._statuses: Counter[str] = Counter()
        self._told = self._placed = self._judged = self._counted = 0
        self._apart: Counter[tuple[str, str]] = Counter()
        self._found: Counter[str] = Counter()

    def take(self, piece: pa.RecordBatch) -> None:
        """Count the rows of a piece."""
        ok = self._status(piece)
        moments = _moments(piece, self._origin_ns)
        self._in_order(moments)
        self._in_phases(piece)
        self._latencies(moments, _numbers(piece, "output_tokens"), ok)
        self._outputs(piece, ok)

    def _status(self, piece: pa.RecordBatch) -> Flags:
        statuses = piece.column("status").to_pylist() if "status" in piece.schema.names else []
        self._statuses.update(str(status) for status in statuses)
        return np.array([status == "ok" for status in statuses], np.bool_)

    def _in_order(self, moments: Mapping[str, Floats]) -> None:
        told = np.zeros(len(moments["end"]), np.bool_)
        for earlier, later in _ORDER:
            gap = moments[later] - moments[earlier]
            told |= ~np.isnan(gap)
            self._apart[earlier, later] += int((gap < 0).sum())
        self._told += int(told.sum())

    def _in_phases(self, piece: pa.RecordBatch) -> None:
        sent = _moment(piece, "dispatched_ns", self._origin_ns)
        names = piece.column("phase").to_pylist() if "phase" in piece.schema.names else [None] * len(sent)
        for name in set(names) & set(self._phases):
            own = np.array([one == name for one in names], np.bool_) & ~np.isnan(sent)
            phase = self._phases[name]
            self._placed += int(own.sum())
            self._found["sent outside"] += int(((sent[own] < phase.start_ns) | (sent[own] > phase.end_ns)).sum())
        if self._last_ns is not None:
            self._found["ended after"] += int((_moment(piece, "end_ns", self._origin_ns) > self._last_ns).sum())

    def _latencies(self, moments: Mapping[str, Floats], tokens: Floats, ok: Flags) -> None:
        ttft = moments["first_visible"] - moments["dispatched"]
        e2e = moments["last_visible"] - moments["dispatched"]
        whole = np.fmax(moments["end"] - moments["dispatched"], e2e)
        self._judged += int((ok & ~(np.isnan(ttft) & np.isnan(whole))).sum())
        self._found["zero"] += int((ok & (ttft == 0)).sum())
        self._found["long"] += int((ok & (whole > LONGEST_S * 1e9)).sum())
        fast = (tokens >= FEW_TOKENS) & (e2e < FASTEST_TOKEN_S * 1e9 * tokens)
        self._found["fast"] += int((ok & fast).sum())

    def _outputs(self, piece: pa.RecordBatch, ok: Flags) -> None:
        tokens = _numbers(piece, "output_tokens")
        self._counted += int((ok & ~np.isnan(tokens)).sum())
        flags = piece.column("flags").to_pylist() if "flags" in piece.schema.names else [None] * len(ok)
        self._found["left out"] += sum(TIMES_WRONG in flag for flag in flags if flag)
        silent = np.array([not flag for flag in flags], np.bool_)
        self._found["empty"] += int((ok & (tokens == 0)).sum())
        self._found["unexplained"] += int((ok & silent & ((tokens == 0) | np.isnan(tokens))).sum())

    def checks(self) -> list[Check]:
        """What the counts come to."""
        return [self._succeeded(), self._ordered(), self._plausible(), self._explained(), self._inside()]

    def _succeeded(self) -> Check:
        total, ok = self._statuses.total(), self._statuses["ok"]
        if not total:
            return Check("requests_succeeded", "fail", "the files hold no request at all")
        others = [
            f"{count:,} {status.replace('_', ' ')} ({100 * count / total:.1f} %)"
            for status, count in sorted(self._statuses.items())
            if status != "ok"
        ]
        words = f"{ok:,} of {total:,} requests succeeded" + (f"; {', '.join(others)}" if others else "")
        return Check("requests_succeeded", "pass" if ok else "fail", words)

    def _ordered(self) -> Check:
        left = self._found["left out"]
        if not self._told and not left:
            return Check("times_in_order", "unknown", "no request has two times that could be compared")
        wrong = [
            f"{count:,} of {_WORDS[later]} before {_WORDS[earlier]}"
            for (earlier, later), count in self._apart.items()
            if count
        ]
        wrong += [f"of {left:,} a time was left out that lay before what it must follow"] * bool(left)
        words = f"{self._told:,} requests with times: {'; '.join(wrong) or 'each moment follows the one before it'}"
        return Check("times_in_order", "fail" if wrong else "pass", words)

    def _plausible(self) -> Check:
        if not self._judged:
            return Check("latencies_plausible", "unknown", "no successful request has a latency")
        said = (
            ("zero", "with a TTFT of exactly 0"),
            ("long", "longer than a day, so that a unit is likely another than was read"),
            ("fast", f"with tokens faster than {FASTEST_TOKEN_S * 1e6:g} us each, too fast to be true"),
        )
        wrong = [f"{self._found[name]:,} {words}" for name, words in said if self._found[name]]
        words = f"{self._judged:,} successes with a latency: {'; '.join(wrong) or 'none is zero, too long or too fast'}"
        return Check("latencies_plausible", "fail" if wrong else "pass", words)

    def _explained(self) -> Check:
        if not self._counted:
            return Check("outputs_explained", "unknown", "no successful request has a number of output tokens")
        ok, bare = self._statuses["ok"], self._found["unexplained"]
        words = f"{ok:,} successes, {self._found['empty']:,} of them without output"
        words += f"; {bare:,} have no output tokens, and nothing says why" if bare else "; each has tokens or a reason"
        return Check("outputs_explained", "fail" if bare else "pass", words)

    def _inside(self) -> Check:
        if not self._placed:
            return Check("inside_phases", "unknown", "no request has a time of dispatch in a phase that is known")
        said = (
            ("sent outside", "were sent outside the phase that they are of"),
            ("ended after", "ended after the last phase"),
        )
        wrong = [f"{self._found[name]:,} {words}" for name, words in said if self._found[name]]
        words = f"{self._placed:,} requests with a time of dispatch: {'; '.join(wrong) or 'all lie inside'}"
        return Check("inside_phases", "fail" if wrong else "pass", words)


def _moments(piece: pa.RecordBatch, origin_ns: int) -> dict[str, Floats]:
    """Moments of each request: from profile start or, of tools that keep durations alone, from its dispatch."""
    found = {name: _moment(piece, f"{name}_ns", origin_ns) for name in _MOMENTS}
    after = {name: _numbers(piece, f"{name}_after_ns") for name in _MOMENTS[2:]}
    durations = np.isnan(found["dispatched"])
    for name, values in after.items():
        durations_only = durations & ~np.isnan(values)
        found[name] = np.where(durations_only, values, found[name])
    known = durations & np.any([~np.isnan(values) for values in after.values()], axis=0)
    found["dispatched"] = np.where(known, 0.0, found["dispatched"])
    return found


def _moment(piece: pa.RecordBatch, column: str, origin_ns: int) -> Floats:
    """Times since profile start; subtracted as whole numbers, as a float cannot hold nanoseconds since 1970."""
    if column not in piece.schema.names:
        return np.full(piece.num_rows, np.nan)
    values: pa.Array = piece.column(column)
    shifted = np.asarray(values.fill_null(origin_ns).to_numpy(zero_copy_only=False), np.int64) - origin_ns
    return np.where(np.asarray(values.is_valid()), shifted.astype(np.float64), np.nan)


def _numbers(piece: pa.RecordBatch, column: str) -> Floats:
    """A column as floats, NaN where it is NULL or absent."""
    if column not in piece.schema.names:
        return np.full(piece.num_rows, np.nan)
    found: Any = piece.column(column).to_numpy(zero_copy_only=False)
    return np.asarray(found, np.float64)
