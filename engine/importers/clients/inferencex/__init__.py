"""InferenceX (InferenceMAX): aggregated results of fixed lengths and of agentic replay, one object per point."""

from engine.importers.clients.inferencex.find import INFERENCEX

__all__ = ["INFERENCEX"]
