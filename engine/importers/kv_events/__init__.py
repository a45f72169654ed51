"""KV-cache events as engines publish them: blocks stored, removed and cleared."""

from engine.importers.kv_events.find import KvEventImporter

__all__ = ["KvEventImporter"]
