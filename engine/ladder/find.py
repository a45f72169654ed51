"""Finds the rungs that were built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def find_ladder(lineages: Iterable[tuple[str, Mapping[str, Any]]], measured: str, base: str) -> dict[int, str]:
    """The rungs between a prediction and a measured run, as ``{number: run id}``.

    ``lineages`` are (run id, lineage) of the runs in the stores, oldest first: of several of a number the last counts.
    """
    found = {}
    for run_id, lineage in lineages:
        ladder = lineage.get("ladder")
        if isinstance(ladder, Mapping) and (ladder.get("measured"), ladder.get("base")) == (measured, base):
            found[int(lineage["rung"])] = run_id
    return dict(sorted(found.items()))
