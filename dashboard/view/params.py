"""One parameter of a view: its type, its choices, and how a value is read from a link and written into one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SHARED = "shared"


@dataclass(frozen=True)
class Param:
    """One parameter of a view. ``owner`` is :data:`SHARED` or the page that alone uses it."""

    name: str
    type: type
    default: Any
    owner: str
    label: str
    choices: tuple[str, ...] = ()
    help: str = ""
    words: Mapping[str, str] = field(default_factory=dict)  # how a choice reads on screen
    low: float | None = None
    high: float | None = None  # of a list: how many it may hold
    pattern: re.Pattern[str] | None = None
    also: tuple[str, ...] = ()  # further pages that use it
    by_data: bool = False  # its default depends on the runs, so a link says it wherever it is on screen

    def say(self, choice: str) -> str:
        """The words of a choice."""
        return self.words.get(choice, choice)

    def parse(self, texts: Sequence[str]) -> Any:
        """The value of the texts of a link.

        Raises:
            ValueError: not of the type, outside the range, or not one of the choices.
        """
        if self.type is list:
            found = [self._one(text) for text in texts if text]
            return found[: int(self.high)] if self.high else found
        return self._one(texts[-1])

    def beyond(self, texts: Sequence[str]) -> list[str]:
        """The texts of a link that have no place in a list of so many."""
        return [text for text in texts if text][int(self.high) :] if self.type is list and self.high else []

    @property
    def too_many(self) -> str:
        """What is said of a text that has no place."""
        return f"more than the {self.high:g} of {self.label!r}"

    def _one(self, text: str) -> Any:
        value: Any = text
        if self.type is bool:
            if text.lower() not in ("true", "false"):
                raise ValueError(text)
            return text.lower() == "true"
        if self.type in (int, float):
            value = _whole(text) if self.type is int else float(text)
            if (self.low is not None and value < self.low) or (self.high is not None and value > self.high):
                raise ValueError(text)
            return value
        if self.choices:
            text = value = next((choice for choice in self.choices if text in (choice, self.say(choice))), "")
            if not text:
                raise ValueError(text)
        if self.pattern and text and not self.pattern.fullmatch(text):
            raise ValueError(text)
        return value

    def texts(self, value: Any) -> list[str]:
        """How a value stands in a link: a choice by its words, which is what the address bar shows as well."""
        if self.type is list:
            return [self.say(str(one)) for one in value] or [""]  # empty on purpose, not absent
        if self.type is bool:
            return ["true" if value else "false"]
        if self.type is float:
            return [f"{value:g}" if float(f"{value:g}") == value else repr(float(value))]
        return [self.say(str(value))]


def _whole(text: str) -> int:
    """A whole number, also in the spellings that a control takes, as ``1e3`` or ``8.0``."""
    if text.strip().lstrip("+-").isdecimal():
        return int(text)
    if not float(text).is_integer():
        raise ValueError(text)
    return int(float(text))
