"""Several workers on one clock: routers, the cluster that is a server itself, and their records as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from engine.serving.cluster.disaggregated import NO_TIME, Disaggregated, Link
from engine.serving.cluster.lockstep import in_lockstep
from engine.serving.cluster.merge import WORKER_COLUMNS, merge_records, pass_ranges, within
from engine.serving.cluster.routers import Router, make_router
from engine.serving.cluster.server import Cluster
from engine.serving.contract import PoolWorker, Server, ServerConfig
from engine.timing.contract import PassTimeSource

Pool = tuple[ServerConfig, Callable[[], Server]]
"""Limits of a scheduler of a pool, and what makes a worker."""

__all__ = [
    "NO_TIME",
    "WORKER_COLUMNS",
    "Cluster",
    "Disaggregated",
    "Pool",
    "behind_router",
    "disaggregated",
    "in_lockstep",
    "make_router",
    "merge_records",
    "pass_ranges",
    "within",
]


def behind_router(knobs: Mapping[str, Any], timing: PassTimeSource, make: Callable[[], Server]) -> Server:
    """The server that the knobs describe: ``replicas`` of those that ``make`` gives, or the one itself."""
    count = int(knobs["replicas"])
    if count == 1:
        return make()
    router = make_router(
        knobs["router"], count, knobs["block_size"], knobs["kv_blocks"] - 1, knobs["router_overlap_weight"]
    )
    return Cluster([make() for _ in range(count)], router, timing)


def disaggregated(
    knobs: Mapping[str, Any],
    timing: PassTimeSource,
    prefill: Pool,
    decode: Pool,
) -> Disaggregated:
    """The two pools that the knobs describe: ``prefill_replicas`` and ``replicas``.

    Args:
        knobs: complete.
        timing: how long passes take.
        prefill: the workers that compute prompts.
        decode: the workers that decode.
    """
    weight, block_size = knobs["router_overlap_weight"], knobs["block_size"]

    def router(name: str, workers: int, config: ServerConfig) -> Router:
        return make_router(name, workers, block_size, config.usable_kv_blocks, weight)

    prompts, decodes = int(knobs["prefill_replicas"]), int(knobs["replicas"])
    return Disaggregated(
        [cast(PoolWorker, prefill[1]()) for _ in range(prompts)],
        [cast(PoolWorker, decode[1]()) for _ in range(decodes)],
        (router(knobs["prefill_router"], prompts, prefill[0]), router(knobs["router"], decodes, decode[0])),
        decode[0],
        timing,
        Link(
            knobs["kv_bytes_per_token"],
            knobs["transfer_gb_s"],
            round(1000 * knobs["transfer_latency_us"]),
            knobs["transfer_bytes"] == "full",
        ),
        knobs["transfer_hold"],
    )
