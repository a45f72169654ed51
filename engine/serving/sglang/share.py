"""The share of outputs still to come that SGLang's admission holds room for."""

from __future__ import annotations

FIRST_SHARE = 0.7
"""At first, times ``schedule_conservativeness``."""
LEAST_SHARE = 0.14
"""What it falls to, as a part of the first one."""
STEPS_TO_LEAST_SHARE = 600
STEPS_AFTER_RETRACTION = 20
"""After a retraction it is what was sampled by now and in so many steps, of all that was asked for."""


class HeldShare:
    """Falls with every decode step from where it was set last, which is ``steps`` ago."""

    def __init__(self, conservativeness: float) -> None:
        self._first = min(FIRST_SHARE * conservativeness, 1.0)
        self._least = self._first * LEAST_SHARE
        self._per_step = (self._first - self._least) / STEPS_TO_LEAST_SHARE
        self._set = self._first
        self.steps = 0

    @property
    def value(self) -> float:
        """The share as it is now."""
        return max(self._set - self.steps * self._per_step, self._least)

    def set_back(self) -> None:
        """The engine was idle."""
        self._set, self.steps = self._first, 0

    def learn(self, sampled: int, asked: int, requests: int) -> None:
        """Some were retracted; those that stay have sampled so much of what they asked for."""
        self._set = min(1.0, (sampled + STEPS_AFTER_RETRACTION * requests) / (asked + 1))
        self.steps = 0
