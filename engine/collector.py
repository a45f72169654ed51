"""Keeping the garbage collector out of work that makes none."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache


@contextmanager
def collector_paused() -> Iterator[None]:
    """No cyclic garbage collection meanwhile, in any thread.

    For work that builds much and drops next to nothing, like reading or replaying a trace: each full collection
    would walk all of it, for nothing. So would the first one afterwards, had what was built not been made old.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.freeze()  # to the generation that is never walked, and from there to the oldest
            gc.unfreeze()
            gc.enable()


@cache
def libraries_frozen() -> None:
    """Take what is loaded out of the collector's sight, once in a process: for servers that collect often."""
    gc.collect()
    gc.freeze()
