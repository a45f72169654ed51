"""Passes priced from what is deployed: a roofline per layer, with the attention that is actually run."""

from __future__ import annotations

from engine.timing.analytic.step import PARTS, StepModel

__all__ = ["PARTS", "StepModel"]
