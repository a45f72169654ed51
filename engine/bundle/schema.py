"""Tables and columns of a run bundle, and which of them a kind of run must have.

Times are int64 nanoseconds relative to profile start (warm-up is negative); durations end in ``_ns``, tokens
in ``_tokens``, blocks in ``_blocks``. NULL is unknown or undefined, never zero in its place. An absent table
means *not recorded*.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

SCHEMA_VERSION = 1

KINDS = ("measured", "replay", "sweep", "imported_summary")
PHASES = ("primer", "warmup", "profile", "grace", "drain", "cooldown")
STATUSES = ("ok", "error", "rejected", "canceled", "in_flight", "never_issued")
EVENT_KINDS = ("hit", "store", "evict", "clear", "preempt", "readmit", "restore")
REPORTED_SCOPES = ("run", "warmup", "slice", "server", "gpu", "repeats")
TELEMETRY_KINDS = ("server", "gpu", "network")
PARITY_CHECKS = ("dispatch", "loop")
DIVERGENCE_CAUSES = (
    "arrival_early",
    "arrival_late",
    "arrival_order",
    "cancel_time",
    "unknown_request",
    "unknown_content",
    "scheduler",
    "carried_over",
    "parted",
)
RESOLUTIONS = ("refused", "extrapolated", "clamped", "analytic", "interpolated", "exact")
"""Worst first: the resolution of a pass is the worst of its parts."""

_text = pa.dictionary(pa.int32(), pa.string())  # strings that repeat
_i64 = pa.int64()
_members = pa.list_(pa.struct([("request_id", pa.string()), ("computed_before", _i64), ("scheduled_tokens", _i64)]))
_hashes = pa.list_(pa.uint64())  # unsigned: half of all block hashes exceed 2**63


@dataclass(frozen=True)
class Table:
    """One table of a bundle: its Arrow schema, the columns it is sorted by, and the enums of its columns."""

    schema: pa.Schema
    sorted_by: tuple[str, ...]
    enums: dict[str, tuple[str, ...]]
    required: frozenset[str]  # columns that may not be absent; every other column may be missing (all NULL)

    @property
    def columns(self) -> tuple[str, ...]:
        """Column names in storage order."""
        return tuple(self.schema.names)


def _table(
    columns: list[tuple[str, pa.DataType]],
    sorted_by: tuple[str, ...],
    required: tuple[str, ...],
    enums: dict[str, tuple[str, ...]] | None = None,
) -> Table:
    return Table(pa.schema(columns), sorted_by, enums or {}, frozenset(required))


TABLES: dict[str, Table] = {
    "requests": _table(
        [
            ("request_id", pa.string()),
            ("source_trace_id", _text),
            ("source_kind", _text),
            ("source_outer_index", _i64),
            ("source_inner_index", _i64),
            ("conversation_id", _text),
            ("turn_index", _i64),
            ("play_id", _text),
            ("lane", _i64),
            ("parent_request_id", pa.string()),
            ("agent_depth", _i64),
            ("phase", _text),
            ("status", _text),
            # The outcome in the tool's own word, and what an importer noticed about the row.
            ("tool_status", _text),
            ("flags", _text),
            ("error_type", _text),
            ("error_message", _text),
            ("worker_id", _text),
            ("dp_rank", _i64),
            ("scheduled_ns", _i64),
            ("dispatched_ns", _i64),
            ("received_ns", _i64),
            ("first_admit_ns", _i64),
            ("first_visible_ns", _i64),
            ("last_visible_ns", _i64),
            ("end_ns", _i64),
            ("released_ns", _i64),  # the engine let it go: finished or aborted, its blocks free again
            # The first content that is no reasoning, where the tool tells them apart.
            ("first_output_ns", _i64),
            # Time since dispatch, of tools that keep durations and no times; the times above are NULL then.
            ("first_visible_after_ns", _i64),
            ("first_output_after_ns", _i64),
            ("last_visible_after_ns", _i64),
            ("end_after_ns", _i64),
            ("input_tokens", _i64),
            ("requested_output_tokens", _i64),
            ("output_tokens", _i64),
            ("reasoning_tokens", _i64),  # among the output tokens
            ("cached_tokens", _i64),
            ("recomputed_tokens", _i64),
            ("preemptions", _i64),
            # Chained content hashes of the full blocks: of the prompt, and of the blocks that outputs completed.
            ("prompt_block_hashes", _hashes),
            ("output_block_hashes", _hashes),
        ],
        ("dispatched_ns", "request_id"),
        ("request_id", "phase", "status", "dispatched_ns", "input_tokens", "output_tokens"),
        {"phase": ("primer", "warmup", "profile"), "status": STATUSES},
    ),
    "passes": _table(
        [
            ("pass_index", _i64),
            ("step", _i64),
            ("counter", _i64),  # the producer's own number of the pass, by worker and rank
            ("worker_id", _text),
            ("dp_rank", _i64),
            ("phase", _text),
            ("segment", _text),  # part of a capture, in the producer's words: sweep or real
            ("start_ns", _i64),
            ("end_ns", _i64),
            ("duration_ns", _i64),
            ("num_prefill_requests", _i64),
            ("sum_prefill_tokens", _i64),
            ("var_prefill_length", pa.float64()),
            ("sum_prefill_kv_tokens", _i64),
            ("num_decode_requests", _i64),
            ("sum_decode_kv_tokens", _i64),
            ("var_decode_kv_tokens", pa.float64()),
            ("queued_num_prefill_requests", _i64),
            ("queued_sum_prefill_tokens", _i64),
            ("queued_var_prefill_length", pa.float64()),
            ("queued_num_decode_requests", _i64),
            ("queued_sum_decode_kv_tokens", _i64),
            ("queued_var_decode_kv_tokens", pa.float64()),
            ("num_output_tokens", _i64),
            ("kv_blocks_used", _i64),
            ("kv_blocks_cached", _i64),
            ("kv_blocks_total", _i64),
            ("num_running", _i64),
            ("num_waiting", _i64),
            ("num_preempted", _i64),
            ("schedule_ns", _i64),
            ("period_ns", _i64),
            ("contention_ns", _i64),
            ("resolution", _text),
            ("prefill_ns", _i64),
            ("decode_ns", _i64),
            ("overhead_ns", _i64),
            ("transfer_ns", _i64),
            ("wait_ns", _i64),
            # Exact batch composition in scheduling order.
            ("members", _members),
        ],
        ("start_ns", "pass_index"),
        (
            "pass_index",
            "phase",
            "start_ns",
            "end_ns",
            "duration_ns",
            "num_prefill_requests",
            "num_decode_requests",
        ),
        {"phase": PHASES, "resolution": RESOLUTIONS},
    ),
    "kv_events": _table(
        [
            ("event_index", _i64),
            ("time_ns", _i64),
            ("pass_index", _i64),
            ("worker_id", _text),
            ("dp_rank", _i64),
            ("kind", _text),
            ("tier", _text),
            ("request_id", _text),
            ("num_blocks", _i64),
            # The producer's own hashes, joined only within the run; NULL where it names none.
            ("block_hashes", _hashes),
            # The same blocks as requests.*_block_hashes name them, where the producer's hashes are others.
            ("content_hashes", _hashes),
            ("parent_hash", pa.uint64()),
            ("reason", _text),
            ("age_ns", _i64),
        ],
        ("time_ns", "event_index"),
        ("event_index", "time_ns", "kind", "num_blocks"),
        {"kind": EVENT_KINDS, "reason": ("capacity", "preemption", "clear")},
    ),
    "admissions": _table(
        [
            ("request_id", _text),
            ("ordinal", _i64),
            ("time_ns", _i64),
            ("pass_index", _i64),
            ("worker_id", _text),
            ("dp_rank", _i64),
            ("cached_tokens", _i64),
            ("hit_blocks", _i64),
            ("restored_blocks", _i64),
            ("is_readmission", pa.bool_()),
            ("waiting_ahead", _i64),
        ],
        ("time_ns", "request_id"),
        ("request_id", "ordinal", "time_ns", "cached_tokens", "is_readmission"),
    ),
    "chunks": _table(
        [
            ("request_id", _text),
            ("ordinal", _i64),
            ("time_ns", _i64),
            ("after_ns", _i64),  # time since dispatch, of tools that keep no times
            ("tokens", _i64),
            ("visible", pa.bool_()),
        ],
        ("time_ns", "request_id", "ordinal"),
        ("request_id", "ordinal", "time_ns", "tokens", "visible"),
    ),
    "coverage": _table(
        [
            ("class", _text),
            ("prefill_requests", _i64),
            ("new_tokens", _i64),
            ("prefill_kv_tokens", _i64),
            ("decode_requests", _i64),
            ("decode_kv_tokens", _i64),
            ("verify_width", _i64),
            ("resolution", _text),
            ("source", _text),
            ("count", _i64),
            ("modelled_ns", _i64),
            ("sites", _text),
        ],
        (
            "class",
            "prefill_requests",
            "new_tokens",
            "prefill_kv_tokens",
            "decode_requests",
            "decode_kv_tokens",
        ),
        ("class", "resolution", "count", "modelled_ns"),
        {
            "class": ("prefill_only", "decode_only", "mixed"),
            "resolution": RESOLUTIONS,
        },
    ),
    "divergences": _table(
        [
            ("check", _text),
            ("pass_index", _i64),
            ("cause", _text),
            ("explanation", pa.string()),
            ("measured_members", _members),
            ("replay_members", _members),
            ("measured_waiting", pa.list_(pa.string())),
            ("replay_waiting", pa.list_(pa.string())),
            ("measured_free_blocks", _i64),
            ("replay_free_blocks", _i64),
        ],
        ("check", "pass_index"),
        ("check", "pass_index", "cause", "explanation"),
        {"check": PARITY_CHECKS, "cause": DIVERGENCE_CAUSES},
    ),
    # What the tool itself said of the run: its summary, time slices, figures of the server and of the GPUs.
    "reported": _table(
        [
            ("scope", _text),
            ("slice_start_ns", _i64),
            ("slice_end_ns", _i64),
            ("name", _text),
            ("labels", _text),
            ("unit", _text),
            ("statistic", _text),
            ("value", pa.float64()),
            ("n", _i64),
            ("metric", _text),  # the metric of ours (docs/metrics.md) that it is beside, NULL where there is none
            ("definition", _text),  # how the tool defines it
            ("source", _text),  # the file it was read from
        ],
        ("scope", "slice_start_ns", "name", "labels", "statistic"),
        ("scope", "name", "statistic", "value"),
        {"scope": REPORTED_SCOPES},
    ),
    # Samples over time of the server's and the GPUs' own figures.
    "telemetry": _table(
        [
            ("time_ns", _i64),
            ("kind", _text),
            ("endpoint", _text),
            ("name", _text),
            ("labels", _text),
            ("unit", _text),
            ("value", pa.float64()),
        ],
        ("time_ns", "kind", "name", "labels"),
        ("time_ns", "kind", "name", "value"),
        {"kind": TELEMETRY_KINDS},
    ),
    "transfers": _table(
        [
            ("request_id", _text),
            ("prefill_worker_id", _text),
            ("decode_worker_id", _text),
            ("prefill_dp_rank", _i64),
            ("decode_dp_rank", _i64),
            ("held_ns", _i64),
            ("reserved_ns", _i64),
            ("start_ns", _i64),
            ("end_ns", _i64),
            ("admitted_ns", _i64),
            ("released_ns", _i64),
            ("tokens", _i64),
        ],
        ("request_id",),
        ("request_id",),
    ),
    "idle_shifts": _table(
        [("time_ns", _i64), ("play_id", _text), ("shift_ns", _i64), ("timers", _i64)],
        ("time_ns",),
        ("time_ns", "shift_ns"),
    ),
}

REQUIRED_TABLES: dict[str, tuple[str, ...]] = {
    "measured": ("requests",),
    "replay": ("requests",),
    "sweep": ("passes",),
    "imported_summary": (),
}

CLOCKS: dict[str, dict[str, str]] = {
    "requests": {
        "scheduled_ns": "client",
        "dispatched_ns": "client",
        "received_ns": "engine",
        "first_admit_ns": "engine",
        "first_visible_ns": "client",
        "last_visible_ns": "client",
        "end_ns": "client",
        "released_ns": "engine",
        "first_output_ns": "client",
        "first_visible_after_ns": "client",
        "first_output_after_ns": "client",
        "last_visible_after_ns": "client",
        "end_after_ns": "client",
    },
    "passes": {"start_ns": "engine", "end_ns": "engine"},
    "kv_events": {"time_ns": "engine"},
    "admissions": {"time_ns": "engine"},
    "chunks": {"time_ns": "client", "after_ns": "client"},
    "telemetry": {"time_ns": "client"},
    "transfers": dict.fromkeys(
        ("held_ns", "reserved_ns", "start_ns", "end_ns", "admitted_ns", "released_ns"), "engine"
    ),
    "idle_shifts": {"time_ns": "client"},
}
"""The clock of each time column, unless a run says otherwise: client, engine or gpu."""
