"""What both cores need to write a :class:`~engine.serving.contract.ServerRecord` alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from engine.errors import GapscopeError
from engine.serving.contract import Columns, ServedRequest, ServerConfig, ServerRecord

STORE, EVICT = 0, 1
"""``kind`` of an event."""

REQUEST_COLUMNS = (
    "received_ns",
    "first_admit_ns",
    "first_admit_pass",
    "cached_tokens",
    "recomputed_tokens",
    "preemptions",
    "output_tokens",
    "first_token_pass",
    "last_token_pass",
    "aborted",
)
STRETCH_COLUMNS = ("index", "seq", "first_pass", "last_pass", "computed_after_first")
CHUNK_COLUMNS = ("pass_index", "index", "seq", "computed_before", "scheduled_tokens")
ADMISSION_COLUMNS = (
    "index",
    "seq",
    "ordinal",
    "pass_index",
    "time_ns",
    "cached_tokens",
    "hit_blocks",
    "is_readmission",
    "waiting_ahead",
)
PREEMPTION_COLUMNS = ("index", "pass_index", "num_blocks")
EVENT_COLUMNS = ("kind", "pass_index", "index", "first_key", "num_keys", "released_ns")

_PLAIN_PASS_COLUMNS = (
    "start_ns",
    "end_ns",
    "period_ns",
    "sum_prefill_tokens",
    "sum_prefill_kv_tokens",
    "num_output_tokens",
    "kv_blocks_used",
    "kv_blocks_cached",
    "num_running",
    "num_waiting",
    "num_preempted",
)
# Name of a group's count, of its sum ("" where FPM has none: prefill lengths) and of its variance.
_PASS_GROUPS = {
    "prefill": ("num_prefill_requests", "", "var_prefill_length"),
    "decode": ("num_decode_requests", "sum_decode_kv_tokens", "var_decode_kv_tokens"),
    "queued_prefill": ("queued_num_prefill_requests", "queued_sum_prefill_tokens", "queued_var_prefill_length"),
    "queued_decode": ("queued_num_decode_requests", "queued_sum_decode_kv_tokens", "queued_var_decode_kv_tokens"),
}
PASS_ROW = _PLAIN_PASS_COLUMNS + tuple(
    f"{group}.{moment}" for group in _PASS_GROUPS for moment in ("count", "sum", "squares")
)
"""What a core counts per pass: for each group of requests how many, the sum and the sum of squares."""

_BOOLEANS = ("is_readmission", "aborted")
_POSITION_BITS = 24


def check_fits(request: ServedRequest, config: ServerConfig) -> None:
    """Refuse a request that no scheduler could ever finish.

    Raises:
        GapscopeError: nothing to compute or to sample, or more blocks than the pool has.
    """
    if request.cached_tokens is not None and not 0 <= request.cached_tokens < request.prompt_tokens:
        raise GapscopeError(
            f"Request {request.index} is to reuse {request.cached_tokens} of its {request.prompt_tokens} prompt "
            "tokens: expected at least none and fewer than all, since the last one has to be computed."
        )
    if request.prompt_tokens < 1 or request.output_tokens < 1:
        raise GapscopeError(
            f"Request {request.index} has {request.prompt_tokens} prompt and {request.output_tokens} output tokens: "
            "expected at least one of each."
        )
    drafts = config.speculation.draft_tokens if config.speculation else 0
    tokens = request.prompt_tokens + request.output_tokens - 1 + drafts
    needed = -(-tokens // config.block_size)
    if needed > config.usable_kv_blocks:
        pool, knob = (" of a prefill engine", "prefill_kv_blocks") if config.prefills else ("", "kv_blocks")
        raise GapscopeError(
            f"Request {request.index} can never fit the KV pool{pool}: {request.prompt_tokens} prompt and "
            f"{request.output_tokens} output tokens need {needed} blocks of {config.block_size} tokens, the pool has "
            f"{config.usable_kv_blocks} usable blocks; raise {knob}."
        )


def count_to_last_pass(record: ServerRecord) -> None:
    """Number what happened on the way to a pass that never came with the last one.

    Blocks were taken for somebody who never came, or somebody was preempted and yet nobody had room.
    """
    last = len(record.passes["start_ns"]) - 1
    record.passes["num_preempted"][-1:] += np.count_nonzero(record.preemptions["pass_index"] > last)
    for table in (record.events, record.preemptions):
        np.minimum(table["pass_index"], last, out=table["pass_index"])


def private_key(index: int, position: int) -> int:
    """Key of the block at ``position`` of request ``index`` when its content was not given: negative, unique."""
    return -1 - ((index << _POSITION_BITS) + position)


def columns(names: Sequence[str], rows: Iterable[Sequence[int]]) -> Columns:
    """Rows of whole numbers as named int64 (and bool) arrays."""
    table = np.array(list(rows), dtype=np.int64).reshape(-1, len(names))
    return {
        name: np.ascontiguousarray(table[:, position], dtype=bool if name in _BOOLEANS else np.int64)
        for position, name in enumerate(names)
    }


def pass_columns(counted: Columns) -> Columns:
    """The ``passes`` table from what the core counted (``PASS_ROW``)."""
    table = {name: counted[name] for name in _PLAIN_PASS_COLUMNS}
    for group, (count_name, sum_name, variance_name) in _PASS_GROUPS.items():
        count, total, squares = (counted[f"{group}.{moment}"] for moment in ("count", "sum", "squares"))
        table[count_name] = count
        if sum_name:
            table[sum_name] = total
        table[variance_name] = population_variance(count, total, squares)
    return table


def population_variance(
    count: npt.NDArray[np.int64], total: npt.NDArray[np.int64], squares: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Variance of ``count`` whole numbers from their sum and their sum of squares; NaN where the count is 0.

    The numerator is exact in whole numbers, so that it does not matter in which order they were added up.
    """
    deviations = (count * squares - total * total).astype(np.float64)
    variance = np.full(len(count), np.nan)
    np.divide(deviations, (count * count).astype(np.float64), out=variance, where=count > 0)
    return variance
