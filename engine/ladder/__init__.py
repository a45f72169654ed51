"""The ladder: replays that take one layer after the other from a measured run, to find the layer that is wrong."""

from engine.ladder.build import BuiltRung, Ladder, build_ladder, plan_ladder
from engine.ladder.rungs import BUILT, MEASURED, PREDICTION, RUNGS, Rung

__all__ = [
    "BUILT",
    "MEASURED",
    "PREDICTION",
    "RUNGS",
    "BuiltRung",
    "Ladder",
    "Rung",
    "build_ladder",
    "plan_ladder",
]
