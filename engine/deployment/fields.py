"""Fields of a config that is spelt in many ways, and notes on what had to be assumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import GapscopeError

LARGEST = 10**9
"""No count in a config is larger."""


class Fields:
    """A ``config.json`` under its many spellings; ``notes`` collects what it did not state, by field of the shape."""

    def __init__(self, config: Mapping[str, Any], where: str):
        self._config = config
        self.where = where
        self.notes: dict[str, str] = {}

    def raw(self, *names: str) -> Any:
        """The first of these that is there and not null."""
        for name in names:
            if (value := self._config.get(name)) is not None:
                return value
        return None

    def count(self, *names: str, least: int = 1) -> int:
        """The first of these that is there: a whole number of at least ``least``.

        Raises:
            GapscopeError: none is there, or it is something else.
        """
        value = self.maybe(*names, least=least)
        if value is None:
            raise GapscopeError(f"{self.where} has no {names[0]}: expected a whole number.")
        return value

    def maybe(self, *names: str, least: int = 0) -> int | None:
        """The first of these that is there and not null, or None.

        Raises:
            GapscopeError: it is no whole number from ``least``.
        """
        for name in names:
            value = self._config.get(name)
            if value is None:
                continue
            whole = type(value) is int or (type(value) is float and value.is_integer())
            if not whole or not least <= value <= LARGEST:
                raise self.refuse(f"{name} is {repr(value)[:40]}, expected a whole number from {least} to {LARGEST:,}")
            return int(value)
        return None

    def per_layer(self, name: str, layers: int) -> list[Any] | None:
        """A list with an entry for each layer, or None where the config has no such list; surplus entries are cut off.

        Raises:
            GapscopeError: it is shorter than the model is deep.
        """
        value = self._config.get(name)
        if not isinstance(value, list):
            return None
        if len(value) < layers:
            raise GapscopeError(f"{self.where}: {name} has {len(value)} entries for {layers} layers.")
        return value[:layers]

    def note(self, field: str, text: str) -> None:
        """Remember where a field of the shape is from, when the config does not simply state it."""
        self.notes[field] = text

    def refuse(self, text: str) -> GapscopeError:
        """An error of this config, to be raised."""
        return GapscopeError(f"{self.where}: {text}.")
