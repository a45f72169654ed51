"""Several workers on one clock: routers, the cluster that is a server itself, and their records as one."""

from __future__ import annotations

from engine.serving.cluster.merge import WORKER_COLUMNS, merge_records, pass_ranges, within

__all__ = ["WORKER_COLUMNS", "merge_records", "pass_ranges", "within"]
