"""AISimulate: a report (``prediction.json``) and the rows of its requests (``requests.jsonl``), as replays."""

from engine.importers.aisimulate.find import AISIMULATE

__all__ = ["AISIMULATE"]
