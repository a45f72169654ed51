"""Reads back what the recording scheduler wrote: the passes of each rank, and what of them was lost."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import orjson

from engine.errors import GapscopeError
from engine.importers.attach.ids import match

SCHEMA = "gapscope-passes/1"
_PASSES = ("iter", "empty")
_LEAVING = ("finished_before", "finished")
_TAIL_BYTES = 4096


@dataclass
class Series:
    """The passes of one rank, from one start of its engine. Times are nanoseconds on the server's monotonic clock."""

    dp_rank: int
    meta: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    """Rows of kind ``iter``, ``empty`` and ``reset_prefix_cache`` in the order in which they were written."""
    lost: list[str] = field(default_factory=list)
    """A sentence for each thing that is missing; empty where the series is whole."""
    clock: list[tuple[int, int]] = field(default_factory=list)
    """Readings of the monotonic and the wall clock, in nanoseconds."""
    ended: bool = False
    """Whether the recorder closed the series; else it is still running, or was killed."""
    last_ns: int = 0
    """When the last row of any kind was written."""
    open: set[str] = field(default_factory=set)
    """Requests that came in the time asked for and that no row lets go, by the engine's ids."""

    @property
    def start_ns(self) -> int:
        """When the recorder began."""
        return int(self.meta["mono_ns"])

    @property
    def start_wall_ns(self) -> int:
        """The time of day when the recorder began: the monotonic clock begins anew with each boot."""
        return int(self.meta["wall_ns"])


def read_series(
    folder: Path, since_ns: int | None = None, until_ns: int | None = None, client_ids: Collection[str] = ()
) -> list[Series]:
    """The series of each rank that has most of a client's requests, with its passes in the time asked for; of several
    the newest that reaches into that time.

    Times are those of the server's monotonic clock; a pass belongs where it began.

    Raises:
        GapscopeError: the folder holds no such rows, or they cannot be read.
    """

    def order(one: Series) -> tuple[int, bool, int]:
        came = (name for row in one.rows for name, *_ in row.get("arrivals", ()))
        return (len(match(came, client_ids)) if client_ids else 0, bool(one.rows), one.start_wall_ns)

    found = [series for parts in _starts(folder) if (series := _read(parts, since_ns, until_ns)) is not None]
    return _one_of_each_rank(sorted(found, key=order), folder)


def newest_series(folder: Path) -> list[Series]:
    """The newest series of each rank without its passes: what it says of itself, and whether it was closed.

    Raises:
        GapscopeError: as :func:`read_series`.
    """
    found = []
    for parts in _starts(folder):
        meta = next((head for head in map(_head, parts) if head), None)
        if meta is not None:
            found.append(Series(meta["dp_rank"], meta, ended=_kind_of_last(parts[-1]) == "end"))
    return _one_of_each_rank(sorted(found, key=lambda one: one.start_wall_ns), folder)


def _starts(folder: Path) -> list[list[Path]]:
    """The parts that each start of an engine wrote."""
    try:
        files = sorted(folder.glob("passes-dp*-*-*.jsonl"))
    except OSError as error:
        raise GapscopeError(f"{folder} cannot be read: {error.strerror or error}.") from error
    return [list(parts) for _, parts in groupby(files, key=lambda file: file.name.rpartition("-")[0])]


def _one_of_each_rank(found: Sequence[Series], folder: Path) -> list[Series]:
    """The last of each rank."""
    if not found:
        raise GapscopeError(
            f"{folder} holds no rows of the recording scheduler (passes-dp*.jsonl): expected what the server wrote "
            "under GAPSCOPE_RECORD. Is the variable set, and --scheduler-cls vllm_scheduler.RecordingScheduler?"
        )
    last = {one.dp_rank: one for one in found}
    return [last[rank] for rank in sorted(last)]


def _read(files: Sequence[Path], since_ns: int | None, until_ns: int | None) -> Series | None:
    """One series; None where not even its first row is whole."""
    heads = [_head(file) for file in files]
    # What was written before a part began, began before it as well.
    early = [n for n, head in enumerate(heads) if head and since_ns is not None and head["mono_ns"] <= since_ns]
    first = early[-1] if early else 0
    reader = _Reader(since_ns, until_ns, whole=first == 0)
    files = files[first:]
    for file in files:
        lines = _lines(file)
        for number, line in enumerate(lines, 1):
            row = _row(line)
            if number == 1 and (row is None or row.get("schema") != SCHEMA):
                break  # a part that was begun when the disk was full
            if row is not None:
                reader.take(row)
            elif file is not files[-1] or number < len(lines):  # the very last may be in the middle of being written
                reader.miss(f"line {number} of {file.name} is cut off")
    return reader.finish()


class _Reader:
    """Goes through the rows of one series. What is missing counts where it lies in the time asked for."""

    def __init__(self, since_ns: int | None, until_ns: int | None, whole: bool) -> None:
        """``whole``: no part before the first one was left out, so what is missing before it is lost."""
        self._since, self._until, self._whole = since_ns, until_ns, whole
        self._series: Series | None = None
        self._next = 0
        self._last_ns: int | None = None
        self._held: list[str] = []
        self._told = 0

    def take(self, row: dict[str, Any]) -> None:
        kind = row["kind"]
        if kind == "meta":
            if self._series is None:
                self._begin(row)
        elif self._series is not None:
            written = row.get("t_end_ns" if kind in _PASSES else "mono_ns")  # a row of what was lost has no time
            self._series.last_ns = max(self._series.last_ns, written or 0)
            if kind in _PASSES:
                self._pass(self._series, row)
            elif kind == "reset_prefix_cache" and self._inside(row["mono_ns"]):
                self._series.rows.append(row)
            elif kind == "clock":
                self._series.clock.append((row["mono_ns"], row["wall_ns"]))
            elif kind == "lost":
                self.miss(_lost_words(row))
                self._told = max(self._told, (row["last_iter"] or 0) + 1)
            elif kind == "end":
                self._series.ended = True

    def _begin(self, meta: dict[str, Any]) -> None:
        self._series = Series(meta["dp_rank"], meta, clock=[(meta["mono_ns"], meta["wall_ns"])])
        self._series.last_ns = meta["mono_ns"]
        self._next = meta["first_iter"]
        if self._next and self._whole:
            self.miss(f"the first {self._next:,} passes were deleted: GAPSCOPE_RECORD_MAX_MB was reached")

    def _pass(self, series: Series, row: dict[str, Any]) -> None:
        number, start = row["iter"], row["t_start_ns"]
        if number > max(self._next, self._told):
            first = max(self._next, self._told)
            self.miss(f"passes {first:,} to {number - 1:,} are missing, and no row says why")
        self._settle(series, start)
        self._next, self._last_ns = number + 1, start
        series.open |= {name for name, at, *_ in row.get("arrivals", ()) if self._inside(at)}
        series.open -= {name for field in _LEAVING for name, *_ in row.get(field, ())}
        if self._inside(start):
            series.rows.append(row)

    def _settle(self, series: Series, now_ns: int | None) -> None:
        """Count what went missing between the last pass and this one, if that touches the time asked for."""
        before = self._until is not None and self._last_ns is not None and self._last_ns >= self._until
        after = self._since is not None and now_ns is not None and now_ns < self._since
        if not before and not after:
            series.lost += [f"rank {series.dp_rank}: {sentence}" for sentence in self._held]
        self._held = []

    def miss(self, sentence: str) -> None:
        self._held.append(sentence)

    def finish(self) -> Series | None:
        series = self._series
        if series is not None:
            self._settle(series, None)
            if series.meta["exact_batches"] and not series.rows:
                series.lost.append(f"rank {series.dp_rank}: no pass began in the time asked for")
        return series

    def _inside(self, time_ns: int) -> bool:
        return (self._since is None or time_ns >= self._since) and (self._until is None or time_ns < self._until)


def _lost_words(row: dict[str, Any]) -> str:
    if row["rows"] is None:
        return f"recording ended at pass {row['first_iter']:,}: {row['why']}"
    which = f"{row['first_iter']:,} to {row['last_iter']:,}"
    return f"{row['rows']:,} passes were not written (numbers {which}): {row['why']}"


def _head(file: Path) -> dict[str, Any] | None:
    """The first row of a part, where it is one of ours."""
    try:
        with file.open("rb") as opened:
            row = orjson.loads(opened.readline())
    except (OSError, orjson.JSONDecodeError):
        return None
    mine = isinstance(row, dict) and row.get("schema") == SCHEMA
    return row if mine else None


def _kind_of_last(file: Path) -> str | None:
    """The kind of the last row of a part, where that is short: those that say something are."""
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, file.stat().st_size - _TAIL_BYTES))
            row = _row(opened.read().rstrip(b"\n").rpartition(b"\n")[2])
    except OSError:
        return None
    return None if row is None else row.get("kind")


def _lines(file: Path) -> list[bytes]:
    try:
        return file.read_bytes().splitlines()
    except FileNotFoundError:  # rotated away meanwhile
        return []
    except OSError as error:
        raise GapscopeError(f"{file} cannot be read: {error.strerror or error}.") from error


def _row(line: bytes) -> dict[str, Any] | None:
    """The row of a line; None where that is no JSON object."""
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return row if isinstance(row, dict) else None
