"""GuideLLM reports of every generation: each benchmark of a report becomes a run."""

from engine.importers.clients.guidellm.find import GuideLlm

__all__ = ["GuideLlm"]
