"""AIPerf, 0.1 to 0.13 and the SemiAnalysis fork for agentic replay."""

from engine.importers.clients.aiperf.find import AIPERF

__all__ = ["AIPERF"]
