"""A capture of forward passes becomes a run of kind sweep: passes only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from engine.bundle import BundleWriter, Check, Phase, slugify
from engine.collector import collector_paused
from engine.errors import GapscopeError
from engine.identity import Identity
from engine.importers.clients.values import count
from engine.importers.contract import Options
from engine.importers.fpm import capture_identity
from engine.importers.fpm.captures import FORMS, form_of, read_capture
from engine.importers.fpm.collect import Passes
from engine.importers.fpm.records import Told, read_records
from engine.importers.fpm.streams import cold, cold_check, counters, lockstep, ranks
from engine.importers.fpm.values import to_passes
from engine.importers.messages import noun
from engine.intake import BadRows, InputFile, Intake, json_document

SCOPE_RECORDER = "schedule() entered to the update of the outputs (Dynamo's instrumented scheduler)"
NATIVE_SCOPE = "model_step_cuda"
Blocks = Iterator[tuple[Sequence[int], pa.RecordBatch]]


def import_records(intake: Intake, name: str, files: Sequence[InputFile], store: Path, options: Options) -> str:
    """Streams of records (:mod:`engine.importers.fpm.records`) of one capture: one, or one per rank.

    Times are those of receipt, where there are any.
    """
    bad, told, passes = BadRows(options.skip_bad_rows), Told(), Passes(intake.scratch)
    for file in files:
        read(read_records(file, bad, told), f"{file.name} {noun(file)}", bad, passes, options)
    identity = Identity()
    source = ", ".join(file.name for file in files)
    for field, value, where in _telemetry(told, bool(passes.odd.timed)):
        identity.set("telemetry", field, value, f"{source}: {where}")
    versions = {v for v in told.versions if v is not None}
    word = ", ".join(map(str, sorted(versions))) or "none is said (the variant before version 1)"
    checks = [Check("version_known", "pass" if versions else "unknown", f"version {word}")]
    if told.wrapped:
        off = passes.odd.rewired
        detail = f"{off:,} of {told.wrapped:,} records came under another number than their own"
        checks.append(Check("wire_counters_agree", "fail" if off else "pass", detail))
    return seal(name, files, identity, passes, checks, bad, "fpm", store, options)


def _telemetry(told: Told, timed: bool) -> Iterator[tuple[str, Any, str]]:
    """Fields of the identity, and what each was told by: producers of one record differ in what its values mean."""
    version: Any = next(iter(told.versions)) if len(told.versions) == 1 else None
    if told.scopes:
        native = set(told.scopes) == {NATIVE_SCOPE}
        yield "fpm_producer", "vLLM itself" if native else "forward pass metrics that name their scope", "timing_scope"
        if native:
            version = f"{version}, variance of prefills over KV read + new tokens / 2"
        yield "fpm_scope", ", ".join(sorted(told.scopes)), "timing_scope"
    elif told.wrapped:
        yield "fpm_producer", "Dynamo's instrumented scheduler, by a recorder", "form of the records"
        yield "fpm_scope", SCOPE_RECORDER, "form of the records"
    else:
        yield "fpm_producer", "forward pass metrics as published", "form of the records"
        yield "fpm_scope", None, "no timing_scope in the records"
    yield "fpm_version", version, "version"
    yield "missing_values", "null is not recorded; a pass of all zeros is a heartbeat", "form of the records"
    if timed:
        yield "clock", "wall clock of the recorder: a pass ends when its record was received", "received_at_ns"


def import_capture(
    intake: Intake, name: str, file: InputFile, settings: Sequence[InputFile], store: Path, options: Options
) -> str:
    """A reduced capture in CSV with the configuration files beside it; it keeps durations and no times."""
    bad, passes = BadRows(options.skip_bad_rows), Passes(intake.scratch)
    read(read_capture(file, bad), f"{file.name} line", bad, passes, options)
    identity = Identity()
    for other in settings:
        for group, field, value in capture_identity.facts(json_document(other)):
            if value is not None:
                identity.set(group, field, value, other.base)
    place = form_of(file)
    assert place is not None
    identity.set("telemetry", "fpm_producer", "a capture reduced to a table", file.base)
    identity.set("telemetry", "fpm_version", f"reduced: {FORMS[place][0]}", f"{file.base}: columns")
    identity.set("telemetry", "fpm_scope", None, f"{file.base} does not say what latency_ms spans")
    identity.set("telemetry", "clock", "durations only", f"{file.base}: columns")
    return seal(name, [file, *settings], identity, passes, [], bad, "fpm capture", store, options)


def read(blocks: Blocks, where: str, bad: BadRows, passes: Passes, options: Options) -> None:
    """Collect the passes of blocks of records; ``where`` is named before the number of a bad one."""
    with collector_paused():
        for numbers, batch in blocks:
            if batch.num_rows:
                passes.take(to_passes(numbers, batch, where, bad, passes.odd))
            options.step(None, f"{passes.rows:,} passes")


def seal(
    name: str,
    files: Sequence[InputFile],
    identity: Identity,
    passes: Passes,
    checks: list[Check],
    bad: BadRows,
    form: str,
    store: Path,
    options: Options,
) -> str:
    """Decide about the passes and write them as a run of kind sweep; returns its id.

    Raises:
        GapscopeError: there are none, or the store cannot be written.
    """
    if not passes.rows:
        raise GapscopeError(f"{files[0].name} holds no pass that can be used: expected at least one record.")
    checks = [Check("rows_used", "fail" if bad.count else "pass", bad.words), *checks]
    of, rule, told = _decide(passes, count(identity.value("topology", "attention_dp")))
    origin, last = _span(passes)
    title = options.title or f"{name}: {passes.rows:,} passes of {of}, passes only"
    options.step(None, "writing the passes")
    with BundleWriter(store, "sweep", slugify(name), title, identity) as writer:
        writer.write_table("passes", passes.batches(origin or 0))
        return writer.seal(
            phases=[Phase("profile", 0, last - origin)] if origin is not None and last is not None else [],
            lineage={
                "format": form,
                "source_files": {file.name: file.sha256 for file in files},
                "rows_left_out": bad.count,
                "heartbeats": passes.odd.heartbeats,
                "segments": _segments(passes),
                "lockstep": rule,
                "not_recorded": _not_recorded(passes),
            },
            qualification=[*checks, *told],
            profile_start_unix_ns=origin,
        )


def _decide(passes: Passes, deployed: int | None) -> tuple[str, str, list[Check]]:
    """Phase and step of every pass; the streams and the lockstep rule in words, and what was asked of them."""
    streams = passes.streams()
    found = cold(streams)
    passes.phase = np.where(found, "primer", "profile").astype(object)
    passes.step, rule = lockstep(streams)
    checks = [counters(streams), ranks(streams, deployed), _values(passes), cold_check(streams, found)]
    of = "1 rank" if len(streams.names) == 1 else f"{len(streams.names)} ranks"
    return of, rule, checks


def _span(passes: Passes) -> tuple[int | None, int | None]:
    """The first start and the last end in epoch nanoseconds, None where no pass has a time."""
    if not passes.odd.timed:
        return None, None
    return pc.min(passes.spool.column("start_ns")).as_py(), pc.max(passes.spool.column("end_ns")).as_py()


def _not_recorded(passes: Passes) -> list[str]:
    words = ["Requests: passes only."]
    if not passes.odd.timed:
        words.append("When a pass ran: durations only.")
    return words


def _segments(passes: Passes) -> dict[str, int]:
    """Passes of each part of the capture, as its producer calls them."""
    found = passes.spool.column("segment").value_counts().to_pylist()
    return {entry["values"]: entry["counts"] for entry in found if entry["values"] is not None}


def _values(passes: Passes) -> Check:
    odd = passes.odd
    beat = f"{odd.heartbeats:,} heartbeats"
    if not odd.counts:
        return Check("values_possible", "pass", f"the values of {passes.rows:,} passes can be; {beat}")
    words = "; ".join(f"{count:,} {what} (first: {odd.first[what]})" for what, count in odd.counts.items())
    return Check("values_possible", "fail", f"{words}; such values are unknown; {beat}")
