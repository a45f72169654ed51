"""LLMServingSim: the CSV of a simulation, and the rows of the vLLM run that it is held against."""

from engine.importers.clients.llmservingsim.find import LlmServingSim

__all__ = ["LlmServingSim"]
