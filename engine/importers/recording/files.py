"""The files of a recording, read and checked row by row."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine import jsonl
from engine.errors import GapscopeError
from engine.importers.recording.mending import was_killed, with_end
from engine.jsonl import (
    COUNT,
    DURATION,
    INTEGER,
    MOMENT,
    NUMBER,
    OBJECT,
    TEXT,
    SkippedRow,
    Spec,
    Type,
    list_of,
    one_of,
    optional,
    tuple_of,
)

RUN_SCHEMA = "measured-run-identity/1"
SWEEP_SCHEMA = "measured-fpm-sweep-identity/1"

_BLOCK_SIZE = Type("a whole number of at least 1", lambda v: type(v) is int and v >= 1)
_HASH = Type("16 hex digits", lambda v: type(v) is str and len(v) == 16 and not set(v) - set("0123456789abcdef"))

REQUEST: Spec = {
    "request_id": TEXT,
    "session_id": TEXT,
    "root_session_id": TEXT,
    "turn": COUNT,
    "lane": COUNT,
    "phase": one_of("primer", "warmup", "profile"),
    "status": one_of("ok", "error", "canceled"),
    "error": optional(TEXT),
    "scheduled_s": MOMENT,
    "dispatch_s": MOMENT,
    "first_visible_s": optional(MOMENT),
    "last_visible_s": optional(MOMENT),
    "end_s": MOMENT,
    "input_tokens": optional(COUNT),
    "output_tokens_requested": COUNT,
    "output_tokens": optional(COUNT),
    "cached_tokens": optional(COUNT),
    "prompt_sha256_16": TEXT,
    "chunks": list_of(tuple_of(INTEGER, optional(COUNT), INTEGER)),
    "output_ids": list_of(COUNT),
}
PASS: Spec = {
    "iter": COUNT,
    "engine_iter": COUNT,
    "t_start_s": MOMENT,
    "t_sched_end_s": MOMENT,
    "t_end_s": MOMENT,
    "wall_time_s": DURATION,
    "period_s": optional(MOMENT),
    "worker_runq_wait_s": optional(MOMENT),
    "num_prefill": COUNT,
    "prefill_tokens": COUNT,
    "prefill_ctx_tokens": COUNT,
    "var_prefill_length": NUMBER,
    "num_decode": COUNT,
    "decode_kv_tokens": COUNT,
    "var_decode_kv_tokens": NUMBER,
    "running": COUNT,
    "waiting": COUNT,
    "queued_prefill": optional(COUNT),
    "queued_prefill_tokens": optional(COUNT),
    "queued_preempted": optional(COUNT),
    "queued_preempted_tokens": optional(COUNT),
    "preempted": list_of(TEXT),
    "kv_blocks_used": COUNT,
    "kv_blocks_total": COUNT,
    "kv_blocks_cached": COUNT,
    "kv_stored": optional(COUNT),
    "kv_removed": optional(COUNT),
    "reqs": list_of(tuple_of(TEXT, COUNT, COUNT, one_of("n", "c", "d", "r"))),
}
_LEAVING = list_of(tuple_of(TEXT, TEXT, COUNT, COUNT, COUNT, MOMENT))
SERVED_PASS: Spec = {
    **PASS,
    "arrivals": list_of(tuple_of(TEXT, MOMENT, COUNT, COUNT)),
    "finished": _LEAVING,
    "finished_before": _LEAVING,
}
_EVENT: Spec = {"t_s": MOMENT, "seq": COUNT, "n": COUNT, "iter": optional(COUNT)}
EVENTS: Mapping[str, Spec] = {
    "AllBlocksCleared": _EVENT,
    "BlockRemoved": {**_EVENT, "hashes": list_of(_HASH)},
    "BlockStored": {
        **_EVENT,
        "hashes": list_of(_HASH),
        "request_id": optional(TEXT),
        "parent": optional(_HASH),
        "block_size": COUNT,
        "token_ids": list_of(COUNT),
    },
}
_KIND: Spec = {"kind": one_of("meta", "iter", "empty", "reset_prefix_cache")}
_TYPE: Spec = {"type": one_of(*EVENTS)}


@dataclass
class Recording:
    """What a recording folder holds. Times in rows are seconds from the recording's own start."""

    path: Path
    identity: dict[str, Any]
    requests: list[dict[str, Any]]
    passes: list[dict[str, Any]]
    """Scheduler calls in time order: ``iter`` rows, and ``empty`` ones that scheduled nothing; empty where none were
    recorded."""
    fpm_schema: str | None
    events: list[dict[str, Any]] | None
    """KV events in the engine's order; None where none were recorded."""
    summary: dict[str, Any] | None
    digests: dict[str, str]
    skipped: list[SkippedRow] = field(default_factory=list)

    @property
    def profile_start_s(self) -> float:
        """Profile start on the recording's own clock."""
        return float(need(self.identity, "phases.warmup_s", DURATION, self.path))

    @property
    def served(self) -> bool:
        """Whether the engine's passes were recorded."""
        return "fpm.jsonl.gz" in self.digests

    @property
    def block_size(self) -> int | None:
        """Tokens per KV block; None where only the client was recorded, and the server does not say."""
        size = need(self.identity, "scheduler.block_size", optional(COUNT), self.path)
        return None if size is None else int(size)

    def ended_s(self, moment: str) -> float | None:
        """When the client stopped (``stop``), canceled what was left (``cancel``) and was done (``end``)."""
        return need(self.identity, f"end.t_{moment}_s", optional(MOMENT), self.path)

    def ns(self, seconds: float) -> int:
        """A time of the recording in nanoseconds from profile start."""
        return round(seconds * 1e9) - round(self.profile_start_s * 1e9)

    def maybe_ns(self, seconds: float | None) -> int | None:
        """As :meth:`ns`, NULL for NULL."""
        return None if seconds is None else self.ns(seconds)


def need(identity: Mapping[str, Any], field_path: str, kind: Type, path: Path) -> Any:
    """A value of ``identity.json`` by its dotted path.

    Raises:
        GapscopeError: absent, or not of the type.
    """
    value: Any = identity
    for part in field_path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if not kind.accepts(value):
        raise GapscopeError(f"{path / 'identity.json'}: {field_path} is {value!r}, expected {kind.name}.")
    return value


def identity_schema(path: Path) -> str | None:
    """What kind of recording a folder says it holds; None where it has no ``identity.json`` or that does not say.

    Raises:
        GapscopeError: ``identity.json`` cannot be read.
    """
    if not (path / "identity.json").is_file():
        return None
    schema = jsonl.read_object(path / "identity.json").get("schema")
    return schema if isinstance(schema, str) else None


def read_recording(path: Path, skip_bad_rows: bool = False) -> Recording:
    """Read a recording folder.

    Raises:
        GapscopeError: a file is missing, cut off or has a row of the wrong shape (unless such rows are to be
            skipped), a request id or pass number occurs twice, or the identity lacks what the import needs.
    """
    identity = jsonl.read_object(path / "identity.json")
    skipped: list[SkippedRow] | None = [] if skip_bad_rows else None
    listed = identity.get("files")
    listed = listed if isinstance(listed, dict) else {}
    killed = was_killed(identity)
    requests = jsonl.read_rows(path / "requests.jsonl", lambda row: REQUEST, skipped, may_be_cut=killed)
    requests = _unique(requests, "request_id", path / "requests.jsonl", skipped)
    if killed:
        if not requests:
            raise GapscopeError(f"{path} is of a program that was killed before any request was over: nothing to keep.")
        requests.sort(key=lambda row: row["dispatch_s"])  # they lie in the order in which they ended
        identity = with_end(identity, max(row["end_s"] for row in requests))
    names = ["identity.json", "requests.jsonl"]
    passes: list[dict[str, Any]] = []
    fpm_schema = None
    served = identity.get("recorded") != "client" or (path / "fpm.jsonl.gz").exists()
    if served:
        names.append("fpm.jsonl.gz")
        passes, fpm_schema = read_passes(path, SERVED_PASS, skipped)
    events = None
    if "kv_events.jsonl.gz" in listed or (path / "kv_events.jsonl.gz").exists():
        names.append("kv_events.jsonl.gz")
        events = jsonl.read_rows(
            path / "kv_events.jsonl.gz",
            lambda row: _TYPE if jsonl.problem_of(row, _TYPE) else EVENTS[row["type"]],
            skipped,
        )
        events.sort(key=lambda e: (e["seq"], e["n"]))
    summary = None
    if (path / "summary.json").exists():
        names.append("summary.json")
        summary = jsonl.read_object(path / "summary.json")
    recording = Recording(
        path=path,
        identity=identity,
        requests=requests,
        passes=passes,
        fpm_schema=fpm_schema,
        events=events,
        summary=summary,
        digests={name: hashlib.sha256(jsonl.read_bytes(path / name)).hexdigest() for name in names},
        skipped=skipped or [],
    )
    for field_path, kind in (
        ("phases.warmup_s", DURATION),
        ("phases.duration_s", DURATION),
        ("phases.grace_s", DURATION),
        ("scheduler.block_size", _BLOCK_SIZE if served else optional(_BLOCK_SIZE)),
        ("workload.trace_sha256", TEXT),
        ("end", optional(OBJECT)),
        ("end.t_stop_s", optional(MOMENT)),
        ("end.t_cancel_s", optional(MOMENT)),
        ("end.t_end_s", optional(MOMENT)),
    ):
        need(identity, field_path, kind, path)
    return recording


def read_passes(path: Path, spec: Spec, skipped: list[SkippedRow] | None) -> tuple[list[dict[str, Any]], str | None]:
    """Scheduler calls of ``fpm.jsonl.gz`` in time order, and the schema that the file names.

    Raises:
        GapscopeError: as :func:`read_recording`.
    """
    specs: Mapping[str, Spec] = {
        "meta": {},
        "iter": spec,
        "empty": spec,
        "reset_prefix_cache": {},  # before the run; the KV events tell of it as well
    }
    file = path / "fpm.jsonl.gz"
    rows = jsonl.read_rows(file, lambda row: _KIND if jsonl.problem_of(row, _KIND) else specs[row["kind"]], skipped)
    passes = _unique([r for r in rows if r["kind"] in ("iter", "empty")], "iter", file, skipped)
    passes.sort(key=lambda r: (r["t_start_s"], r["iter"]))
    schemas = [str(r["schema"]) for r in rows if r["kind"] == "meta" and "schema" in r]
    return passes, schemas[0] if schemas else None


def _unique(rows: list[dict[str, Any]], key: str, file: Path, skipped: list[SkippedRow] | None) -> list[dict[str, Any]]:
    seen: dict[Any, dict[str, Any]] = {}
    for number, row in enumerate(rows, 1):
        if row[key] in seen:
            problem = f"{key} {row[key]!r} occurs a second time"
            if skipped is None:
                raise GapscopeError(
                    f"{file}, row {number}: {problem}, expected each once. Repair the file, or import with "
                    "--skip-bad-rows, which keeps the first and counts the others."
                )
            skipped.append(SkippedRow(file.name, number, problem))
            continue
        seen[row[key]] = row
    return list(seen.values())
