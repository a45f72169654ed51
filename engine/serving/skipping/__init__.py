"""The event-skipping core: the same record as the plain one, much sooner."""

from engine.serving.skipping.server import SkippingServer

__all__ = ["SkippingServer"]
