"""One setting of a replay: how its text is read, and what it may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.errors import GapscopeError


@dataclass(frozen=True)
class Knob:
    """One setting: its type decides how text is read; ``low``/``high`` are inclusive."""

    name: str
    type: type
    default: Any
    group: str
    help: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()

    def parse(self, value: Any) -> Any:
        """The value in this knob's type, checked against its range.

        Raises:
            GapscopeError: not of the type, or outside the range or the choices.
        """
        expected = self.expectation()
        try:
            if self.type is bool:
                parsed: Any = _boolean(value)
            elif self.type is int:
                if isinstance(value, bool) or float(value) != int(float(value)):
                    raise ValueError
                parsed = int(float(value))
            elif self.type is float:
                if isinstance(value, bool):
                    raise ValueError
                parsed = float(value)
            else:
                parsed = str(value)
        except (TypeError, ValueError, OverflowError):
            raise GapscopeError(f"Knob {self.name}={value!r}: expected {expected}.") from None
        if self.choices and parsed not in self.choices:
            raise GapscopeError(f"Knob {self.name}={value!r}: expected {expected}.")
        if self.type in (int, float):
            outside = (self.low is not None and parsed < self.low) or (self.high is not None and parsed > self.high)
            if outside or parsed != parsed:
                raise GapscopeError(f"Knob {self.name}={value!r} is out of range: expected {expected}.")
        return parsed

    def expectation(self) -> str:
        """What a value must look like, in words: type, range, unit."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        name = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[self.type]
        if self.low is not None and self.high is not None:
            name += f" from {self.low:g} to {self.high:g}"
        elif self.low is not None:
            name += f" of at least {self.low:g}"
        return f"{name} ({self.unit})" if self.unit else name


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in ("true", "1", "yes", "on"):
        return True
    if text in ("false", "0", "no", "off"):
        return False
    raise ValueError(value)
