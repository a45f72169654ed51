"""inference-perf: a list of requests, and summaries by stage and over all."""

from engine.importers.clients.inference_perf.find import InferencePerf

__all__ = ["InferencePerf"]
