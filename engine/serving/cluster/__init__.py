"""Several workers on one clock: routers, the cluster that is a server itself, and their records as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from engine.serving.cluster.lockstep import in_lockstep
from engine.serving.cluster.merge import WORKER_COLUMNS, merge_records, pass_ranges, within
from engine.serving.cluster.routers import make_router
from engine.serving.cluster.server import Cluster
from engine.serving.contract import Server
from engine.timing.contract import PassTimeSource

__all__ = [
    "WORKER_COLUMNS",
    "Cluster",
    "behind_router",
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
