"""A gap found rung by rung: reproduce, arithmetic, memory, passes by role, end to end. Neighbours only."""

from dashboard.compare.align.alignment import RUNGS, TOLERANCE, Alignment, align
from dashboard.compare.align.memory import Presets
from dashboard.compare.align.values import WORDS, Check, Rung

__all__ = ["RUNGS", "TOLERANCE", "WORDS", "Alignment", "Check", "Presets", "Rung", "align"]
