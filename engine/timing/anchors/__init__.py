"""Anchors: measured curves of an engine, used inside the regime they were measured in and nowhere else."""

from __future__ import annotations

from engine.timing.anchors.acceptance import Acceptance, judge
from engine.timing.anchors.artefact import Anchor, NoArtefact, read_anchor, read_file
from engine.timing.anchors.finding import Finding
from engine.timing.anchors.regime import AXES, AXES_VERSION, AxisRow, compare, distance
from engine.timing.anchors.store import Ranked, index, keep, load, names, nearest, ranked
from engine.timing.anchors.target import Target, of_run, with_knobs

__all__ = [
    "AXES",
    "AXES_VERSION",
    "Acceptance",
    "Anchor",
    "AxisRow",
    "Finding",
    "NoArtefact",
    "Ranked",
    "Target",
    "compare",
    "distance",
    "index",
    "judge",
    "keep",
    "load",
    "names",
    "nearest",
    "of_run",
    "ranked",
    "read_anchor",
    "read_file",
    "with_knobs",
]
