"""Which worker and rank did what in a replay, and the order of its passes.

A record holds the passes of one worker and rank after those of another; a bundle holds all in order of their start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from engine.arrays import coded, numbers
from engine.replay.result import Ints
from engine.serving.cluster import pass_ranges
from engine.serving.contract import HostMemory, ServerRecord

ONLY_WORKER = "0"
"""``worker_id`` where there is one worker; its only rank is 0."""


def worker_names(knobs: Mapping[str, Any]) -> tuple[str, ...]:
    """``worker_id`` of each worker of a replay, by number."""
    engine, replicas = knobs.get("engine", "vllm"), int(knobs.get("replicas", 1))
    prompts = int(knobs.get("prefill_replicas", 0))
    if prompts:
        pools = (("prefill", prompts), ("decode", replicas))
        return tuple(f"{engine}-{pool}-{number}" for pool, count in pools for number in range(count))
    if replicas == 1:
        return (ONLY_WORKER,)
    return tuple(f"{engine}-{number}" for number in range(replicas))


def has_ranks(knobs: Mapping[str, Any]) -> bool:
    """Whether any worker of a replay has several ranks."""
    return max(knobs["attention_dp"], knobs["prefill_attention_dp"]) > 1


def usable_blocks(kv_blocks: int) -> int:
    """KV blocks that requests can hold: vLLM keeps one as its null block."""
    return kv_blocks - 1


def host_memory(values: Mapping[str, Any]) -> HostMemory | None:
    """What the knobs say of host memory: a block takes its bytes over the bandwidth (1 GB/s is a byte per ns)."""
    blocks, gb_s = values["host_kv_blocks"], values["host_link_gb_s"]
    size = values["block_size"] * values["kv_bytes_per_token"]
    return HostMemory(blocks, size / gb_s if gb_s else 0.0) if blocks else None


def pool_sizes(knobs: Mapping[str, Any]) -> Ints:
    """KV blocks that requests can hold, by number of the worker."""
    prompts = int(knobs.get("prefill_replicas", 0))
    allocated = [knobs.get("prefill_kv_blocks") or knobs["kv_blocks"]] * prompts
    allocated += [knobs["kv_blocks"]] * int(knobs.get("replicas", 1))
    return np.array([usable_blocks(blocks) for blocks in allocated], np.int64)


class Workers:
    """The workers and ranks of a record.

    ``ranges`` are the passes of each, as (first, last + 1) in the record. ``order`` holds the passes of the record in
    the order of the bundle (None: as they are), ``row`` says for each its ``pass_index`` there.
    """

    def __init__(self, record: ServerRecord, names: Sequence[str]) -> None:
        self._record = record
        self._names = names
        self.ranges = pass_ranges(record)
        self.order: Ints | None = None
        count = len(record.passes["start_ns"])
        self.row: Ints = np.arange(count)
        if len(self.ranges) > 1:
            self.order = np.argsort(record.passes["start_ns"], kind="stable")
            self.row[self.order] = np.arange(count)

    def steps(self) -> dict[str, Ints]:
        """``step`` of the passes of the record, and their ``counter`` where there are several workers.

        Ranks of one worker whose passes are taken together share a step; the steps of different workers never are
        together, so each has a number of its own. ``counter`` is the number that the worker gave it.
        """
        passes = self._record.passes
        if "worker" not in passes:
            return {"step": self.row}
        own = passes["step"]
        if len(self._names) == 1:
            return {"step": own}
        together = passes["worker"] * (int(own.max(initial=0)) + 1) + own
        _, first, group = np.unique(together[self._in_order], return_index=True, return_inverse=True)
        numbered = np.empty(len(first), np.int64)
        numbered[np.argsort(first)] = np.arange(len(first))
        return {"step": numbered[group][self.row], "counter": own}

    @property
    def _in_order(self) -> Ints | slice:
        return slice(None) if self.order is None else self.order

    def of_passes(self, passes: Ints | slice) -> dict[str, pa.Array]:
        """``worker_id`` and ``dp_rank`` of passes of the record."""
        return self._served_by(self._record.passes, passes, "start_ns")

    def of_requests(self) -> dict[str, pa.Array]:
        """``worker_id`` and ``dp_rank`` of requests, by index."""
        return self._served_by(self._record.requests, slice(None), "received_ns")

    def _served_by(self, table: Mapping[str, Ints], rows: Ints | slice, any_column: str) -> dict[str, pa.Array]:
        if "worker" in table:
            worker, rank = table["worker"][rows], table["dp_rank"][rows]
        else:
            worker = rank = np.zeros(len(table[any_column][rows]), np.int64)
        return {"worker_id": coded(worker, self._names), "dp_rank": numbers(rank)}
