"""What a worker may take of the machine: a job that needs more ends with a sentence instead of taking all down."""

from __future__ import annotations

import os
import resource

SHARE = 0.75
"""Of the machine's memory; one job runs at a time, and the pages live in the rest."""


def bound_memory(share: float = SHARE) -> float:
    """Bound the data of this process, which then meets a MemoryError; returns the bound in GB (1e9 bytes)."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    most = int(whole * share) if hard == resource.RLIM_INFINITY else min(int(whole * share), hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    return most / 1e9
