"""Where runs lie, under the names that the dashboard uses."""

from engine.stores import PROJECT, VARIABLE
from engine.stores import default_stores as default_roots

__all__ = ["PROJECT", "VARIABLE", "default_roots"]
