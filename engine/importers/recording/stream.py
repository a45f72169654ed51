"""The passes of a recording without its client: what the scheduler wrote, alone or beside another client's files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from engine.bundle import BundleWriter, Check, Phase, slugify
from engine.errors import GapscopeError
from engine.identity import Identity
from engine.importers.contract import Options, Part, Use
from engine.importers.recording.files import SERVED_PASS, Recording
from engine.importers.recording.history import History, histories
from engine.importers.recording.identity import scheduler_identity
from engine.importers.recording.qualify_engine import passes_unbroken
from engine.importers.recording.recorder import set_recorder_cost
from engine.importers.recording.tables import admission_rows, pass_rows, table_of
from engine.intake import BadRows, InputFile, Intake, json_rows
from engine.jsonl import COUNT, NUMBER, TEXT, list_of, problem_of, tuple_of

OWN_SCHEMA = "gapscope-passes/"
"""Files of the recording scheduler: times are nanoseconds of its monotonic clock, the first row has both clocks."""
_EPOCH = ("t_start_epoch_s", "t_sched_end_epoch_s", "t_end_epoch_s")
_CLOCK = dict.fromkeys(_EPOCH, NUMBER)
_SCHEMAS = ("vllm-cpu-fpm/", OWN_SCHEMA)
_ENDS = {"FINISHED_STOPPED": "ok", "FINISHED_LENGTH_CAPPED": "ok", "FINISHED_ABORTED": "canceled"}


class PassStreams:
    """A file whose first row describes a scheduler and whose other rows are its calls, with who was in each."""

    name = "scheduler passes"
    describes = "a stream of scheduler calls with the members of each, as the recording scheduler writes them"

    def find(self, intake: Intake) -> Sequence[Part]:
        """One part per file."""
        return [self._part(intake, file) for file in intake.files if _meta(file) is not None]

    def _part(self, intake: Intake, file: InputFile) -> Part:
        return Part(
            format=self.name,
            tool="subclass of the engine's scheduler",
            version=str((_meta(file) or {})["schema"]).rpartition("/")[2],
            name=file.base.partition(".")[0],
            kind="sweep",
            side="engine",
            uses=(Use(file, "forward passes with their batches"),),
            run=lambda store, options: _import(file, store, options),
            notes=("passes without requests of a client; attach them to the run of the client",),
        )


def _meta(file: InputFile) -> dict[str, Any] | None:
    line = file.head.partition(b"\n")[0]
    if b'"meta"' not in line:
        return None
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    mine = isinstance(row, dict) and row.get("kind") == "meta" and str(row.get("schema")).startswith(_SCHEMAS)
    return row if mine else None


def _import(file: InputFile, store: Path, options: Options) -> str:
    """Passes, admissions, and the requests as the engine knew them; time 0 is the start of the first pass."""
    bad = BadRows(options.skip_bad_rows)
    meta = _meta(file) or {}
    own = str(meta.get("schema")).startswith(OWN_SCHEMA)
    rows, origin_ns, epoch = _rows(file, bad, options, _epoch_of(meta, file.name) if own else None)
    identity = {"phases": {"warmup_s": 0}, "scheduler": {"block_size": _block_size(meta) or 1}}
    recording = Recording(Path(file.name), identity, [], rows, str(meta.get("schema")), None, None, {})
    seen, sampled = histories(recording)
    admissions = admission_rows(recording, seen)
    if _block_size(meta) is None:
        admissions = [row | {"hit_blocks": None} for row in admissions]
    last = max((recording.ns(row["t_end_s"]) for row in rows), default=0)
    options.step(None, "writing the passes")
    name = slugify(file.base.partition(".")[0])
    told = _identity(meta)
    set_recorder_cost(told, rows, file.name)
    with BundleWriter(store, "sweep", name, options.title or file.base, told) as writer:
        writer.write_table("requests", table_of("requests", _request_rows(recording, seen)))
        writer.write_table("passes", table_of("passes", pass_rows(recording, sampled, lambda start: "profile")))
        writer.write_table("admissions", table_of("admissions", admissions))
        return writer.seal(
            phases=[Phase("profile", 0, last)],
            lineage={
                "format": PassStreams.name,
                "tool": "subclass of the engine's scheduler",
                "source_files": {file.name: file.sha256},
                "rows_left_out": bad.count,
                "not_recorded": ["what a client saw: times of dispatch and of visible tokens"],
            },
            qualification=[
                Check("rows_used", "fail" if bad.count else "pass", bad.words),
                *([passes_unbroken(rows)] if own else []),
            ],
            profile_start_unix_ns=origin_ns if epoch else None,
        )


def _block_size(meta: Mapping[str, Any]) -> int | None:
    size = meta.get("block_size")
    return size if type(size) is int and size > 0 else None


def _identity(meta: Mapping[str, Any]) -> Identity:
    identity = scheduler_identity({"scheduler": dict(meta)}, "first row of the stream")
    identity.set("telemetry", "fpm_producer", "subclass of the engine's scheduler", "first row of the stream")
    identity.set("telemetry", "fpm_version", str(meta.get("schema")), "first row of the stream")
    return identity


def _epoch_of(meta: Mapping[str, Any], name: str) -> int:
    """What to add to the recorder's monotonic clock for epoch time, in nanoseconds.

    Raises:
        GapscopeError: its first row does not have both clocks.
    """
    if problem := problem_of(meta, {"mono_ns": COUNT, "wall_ns": COUNT}):
        raise GapscopeError(f"{name} line 1: {problem}. The first row of the recording scheduler has both clocks.")
    return int(meta["wall_ns"] - meta["mono_ns"])


def _in_seconds(row: dict[str, Any], epoch_ns: int) -> str | None:
    """Give a row of the recording scheduler its times in epoch seconds; what is wrong with it, or None."""
    times = {name.replace("_epoch_s", "_ns"): name for name in _EPOCH}
    leaving = list_of(tuple_of(TEXT, TEXT, COUNT, COUNT, COUNT, COUNT))
    arriving = list_of(tuple_of(TEXT, COUNT, COUNT, COUNT))
    lists = {"arrivals": arriving, "finished": leaving, "finished_before": leaving}
    problem = problem_of(row, {**dict.fromkeys(times, COUNT), **lists})
    if problem is None:
        row |= {name: (row[given] + epoch_ns) / 1e9 for given, name in times.items()}
        row["arrivals"] = [[name, (at + epoch_ns) / 1e9, *rest] for name, at, *rest in row["arrivals"]]
        for name in ("finished", "finished_before"):
            row[name] = [[*rest, (at + epoch_ns) / 1e9] for *rest, at in row[name]]
        row["engine_iter"] = row.get("iter")
    return problem


def _rows(
    file: InputFile, bad: BadRows, options: Options, epoch_ns: int | None
) -> tuple[list[dict[str, Any]], int, bool]:
    """Scheduler calls in time order, seconds from the first start; the first start in ns; whether it is epoch time.

    ``epoch_ns`` is what makes epoch time of nanoseconds; None where the rows have seconds.
    """
    rows: list[dict[str, Any]] = []
    known: set[int] = set()
    epoch = False
    for line, row in json_rows(file, bad):
        if row.get("kind") not in ("iter", "empty"):
            continue
        problem = None if epoch_ns is None else _in_seconds(row, epoch_ns)
        if epoch_row := "t_start_epoch_s" in row:
            problem = problem or problem_of(row, _CLOCK)
            row |= {} if problem else {name.replace("_epoch", ""): row[name] for name in _EPOCH}
        problem = problem or problem_of(row, SERVED_PASS)
        if not problem and row["iter"] in known:
            problem = f"iter {row['iter']} occurs a second time"
        if not problem and rows and epoch_row != epoch:
            problem = "times of another clock than the rows before"
        if problem:
            bad.add(f"{file.name} line {line}", problem)
            continue
        epoch = epoch_row
        known.add(row["iter"])
        rows.append(row)
        if len(rows) % 5000 == 0:
            options.step(None, f"{len(rows):,} passes")
    rows.sort(key=lambda r: (r["t_start_s"], r["iter"]))
    origin_us = round(rows[0]["t_start_s"] * 1e6) if rows else 0
    return [_moved(row, origin_us) for row in rows], origin_us * 1000, epoch


def _moved(row: dict[str, Any], origin_us: int) -> dict[str, Any]:
    """The row with seconds from ``origin_us``: the stream's times are whole microseconds."""

    def s(seconds: float) -> float:
        return (round(seconds * 1e6) - origin_us) / 1e6

    return {
        **row,
        "t_start_s": s(row["t_start_s"]),
        "t_sched_end_s": s(row["t_sched_end_s"]),
        "t_end_s": s(row["t_end_s"]),
        "arrivals": [[name, s(at), *rest] for name, at, *rest in row["arrivals"]],
        "finished": [[*rest, s(at)] for *rest, at in row["finished"]],
        "finished_before": [[*rest, s(at)] for *rest, at in row["finished_before"]],
    }


def _request_rows(recording: Recording, seen: Mapping[str, History]) -> list[dict[str, Any]]:
    """Requests as the engine knew them: nobody recorded when a client sent them."""
    ends = {
        name: status for row in recording.passes for name, status, *_ in (*row["finished_before"], *row["finished"])
    }
    rows = []
    for name, history in seen.items():
        first = history.admissions[0] if history.admissions else None
        end = ends.get(name)
        rows.append(
            {
                "request_id": name,
                "phase": "profile",
                "status": "in_flight" if end is None else _ENDS.get(end, "error"),
                "tool_status": end,
                "dispatched_ns": None,
                "received_ns": recording.maybe_ns(history.received_s),
                "first_admit_ns": None if first is None else recording.ns(first.time_s),
                "released_ns": recording.maybe_ns(history.released_s),
                "input_tokens": history.prompt_tokens,
                "requested_output_tokens": history.max_tokens,
                "output_tokens": history.engine_output_tokens,
                "cached_tokens": None if first is None else first.cached_tokens,
                "recomputed_tokens": history.recomputed_tokens,
                "preemptions": len(history.preemptions),
            }
        )
    return sorted(rows, key=lambda row: row["request_id"])


PASS_STREAMS = PassStreams()
