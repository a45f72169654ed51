"""A recording folder becomes a measured run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from engine.bundle import BundleWriter, Phase, slugify
from engine.importers.recording.content import find_trace, never_issued, rebuild
from engine.importers.recording.files import RUN_SCHEMA, Recording, read_recording
from engine.importers.recording.history import History, histories
from engine.importers.recording.identity import run_identity
from engine.importers.recording.kv_events import cache_events
from engine.importers.recording.qualify import qualify
from engine.importers.recording.recorder import set_recorder_cost
from engine.importers.recording.tables import admission_rows, chunk_rows, pass_rows, request_rows, table_of
from engine.traces.compact import compact_name, write_compact

_EVENT_CLOCK = {"kv_events.time_ns": "engine wall clock; hits, readmissions and preemptions: the passes' clock"}


def import_recording(
    path: Path, store: Path, trace: Path | None = None, title: str | None = None, skip_bad_rows: bool = False
) -> str:
    """Turn the recording in the folder ``path`` into a run in ``store``; returns its id.

    ``trace`` is the file that was played; it is looked for beside and above the recording when not given. Its
    compact form is put into the store as well, so that the run can be replayed from there.

    Raises:
        GapscopeError: a file is missing or malformed, the trace is missing or another one, or the store cannot
            be written. With ``skip_bad_rows`` unusable rows are left out, counted and named in the run.
    """
    recording = read_recording(path, skip_bad_rows)
    contents = rebuild(recording, find_trace(recording.path, recording.identity, trace))
    seen, sampled = histories(recording)
    phases = phases_of(recording, seen)
    events = cache_events(recording, seen, contents)
    tables = {"requests": table_of("requests", request_rows(recording, seen, contents))}
    if recording.served:
        passes = pass_rows(recording, sampled, lambda start: phase_at(phases, start))
        tables["passes"] = table_of("passes", passes)
        tables["admissions"] = table_of("admissions", admission_rows(recording, seen))
    tables["chunks"] = table_of("chunks", chunk_rows(recording))
    if recording.events is not None:
        tables["kv_events"] = table_of("kv_events", events.rows)
    checks = qualify(recording, seen, contents, events, phases, tables)
    name = slugify(str(recording.identity.get("run") or path.name))
    identity = run_identity(recording.identity, recording.fpm_schema, contents.trace)
    set_recorder_cost(identity, recording.passes, "fpm.jsonl.gz")
    with BundleWriter(store, "measured", name, title or _title(recording), identity) as writer:
        for table, rows in tables.items():
            writer.write_table(table, rows)
        run_id = writer.seal(
            phases=phases,
            never_issued=never_issued(recording, contents.trace),
            lineage={"format": RUN_SCHEMA, "source_files": recording.digests, "trace_digest": contents.trace.digest},
            qualification=checks,
            clocks=_EVENT_CLOCK if recording.events is not None else None,
            profile_start_unix_ns=_profile_start_unix_ns(recording),
        )
    compact = store / "traces" / compact_name(contents.trace)
    if not compact.exists():
        write_compact(contents.trace, compact)
    return run_id


def phases_of(recording: Recording, seen: dict[str, History]) -> list[Phase]:
    """Primers to drain, from what the identity says; the drain lasts to the last thing recorded."""
    asked = recording.identity["phases"]
    deadline = round(asked["duration_s"] * 1e9)
    cancel_s = recording.ended_s("cancel")
    cancel = deadline + round(asked["grace_s"] * 1e9) if cancel_s is None else recording.ns(cancel_s)
    times = [recording.ended_s("end"), *(r["t_end_s"] for r in recording.passes[-1:])]
    times += [r["end_s"] for r in recording.requests] + [h.released_s for h in seen.values()]
    last = max((recording.ns(t) for t in times if t is not None), default=cancel)
    start = -round(asked["warmup_s"] * 1e9)
    primed = start + round((asked.get("primer_s") or 0) * 1e9)
    bounds = [
        ("primer", start, primed),
        ("warmup", primed, 0),
        ("profile", 0, deadline),
        ("grace", deadline, max(deadline, cancel)),
        ("drain", max(deadline, cancel), max(deadline, cancel, last)),
    ]
    return [Phase(*b) for b in bounds if b[2] > b[1] or b[0] == "profile"]


def phase_at(phases: Sequence[Phase], time_ns: int) -> str:
    """The phase that holds a time; what lies outside all of them belongs to the first or the last."""
    for phase in phases:
        if time_ns < phase.end_ns:
            return phase.name
    return phases[-1].name


def _profile_start_unix_ns(recording: Recording) -> int | None:
    start = recording.identity.get("clock", {}).get("t0_unix_ns")
    return start + round(recording.profile_start_s * 1e9) if type(start) is int else None


def _title(recording: Recording) -> str:
    identity = recording.identity
    lanes, blocks = identity["workload"].get("lanes"), identity.get("scheduler", {}).get("num_usable_kv_blocks")
    parts = [f"{lanes} lanes" if lanes else "", f"{blocks:,} KV blocks" if isinstance(blocks, int) else ""]
    name = str(identity.get("run") or recording.path.name)
    return f"{name}: {', '.join(p for p in parts if p)}" if any(parts) else name
