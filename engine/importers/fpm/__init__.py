"""Forward pass metrics (FPM): what an engine says about each of its passes, in the forms in which people keep it."""

from engine.importers.fpm.find import FpmImporter
from engine.importers.fpm.self_benchmark import SelfBenchmarks

__all__ = ["FpmImporter", "SelfBenchmarks"]
