"""A ladder as values: what each step does to each number, and which step holds most of a gap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dashboard.compare.noise import Noise, Place, place
from dashboard.compare.numbers import Key, Number
from dashboard.metrics import Estimator, Population
from engine.ladder.rungs import RUNGS

TOP = RUNGS[-1].number
"""The measured run's place on the ladder."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that the prediction has otherwise than the recording; ``rung`` takes what follows from it.

    ``recorded`` is None where the recording names none.
    """

    rung: int
    label: str
    predicted: object
    recorded: object


@dataclass(frozen=True, slots=True)
class Change:
    """One number over one step.

    ``difference`` is in the number's unit, ``relative`` is that over the measured value. ``where`` is the place of a
    replay that is off by this step alone against the noise of the measured side.
    ``since`` is the rung of ``left``: that below the step or, where the number has no value there, one further down.
    """

    since: int
    left: Number
    right: Number
    difference: float | None
    relative: float | None
    where: Place
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """From one rung that exists to the next one. ``taken`` are the rungs whose layers the upper one takes besides."""

    left: int
    right: int
    runs: tuple[str, str]
    taken: tuple[int, ...]
    changes: Mapping[Key, Change]

    @property
    def layers(self) -> tuple[str, ...]:
        """What it isolates: one layer, or several that it cannot tell apart."""
        return tuple(rung.isolates for rung in RUNGS if rung.number in self.taken)

    @property
    def rungs(self) -> str:
        """Its ends."""
        return f"rung {self.left} → {self.right}"

    @property
    def missing(self) -> tuple[int, ...]:
        """The rungs without which its layers cannot be told apart."""
        return tuple(number for number in self.taken if number != self.right)

    @property
    def layer(self) -> str:
        """What it isolates, or what it cannot tell apart."""
        if not self.missing:
            return self.layers[0]
        return f"{_joined(self.layers, 'or')}, which cannot be told apart without {_rungs(self.missing)}"


@dataclass(frozen=True, slots=True)
class Gap:
    """The whole gap of a number, from prediction to measurement, and the step that holds most of it.

    ``step``, ``difference`` and ``share`` (of the gap) are None where there is no gap. ``canceling`` are the largest
    steps of either sign where both exceed the noise, else empty; ``net`` is what they and the steps between them come
    to, and ``beside`` the largest step outside of them that exceeds the noise. ``why`` says why there is no gap to
    share.
    ``exact_scheduler`` says that by arrival pass the scheduler formed every recorded batch, and that the prediction has
    its settings.
    """

    key: Key
    prediction: Number
    measured: Number
    gap: float | None
    noise: Noise | None
    step: Step | None = None
    difference: float | None = None
    share: float | None = None
    canceling: tuple[Step, ...] = ()
    net: float | None = None
    beside: Step | None = None
    why: str = ""
    exact_scheduler: bool = False

    @property
    def weak(self) -> bool:
        """Whether it is a percentile of too few values on a side."""
        return any(side.n > 0 and not side.supported for side in (self.prediction, self.measured))

    @property
    def where(self) -> Place:
        """The place of the prediction against the noise of the measured side."""
        return "unknown" if self.prediction.value is None else place(self.noise, self.prediction.value)

    @property
    def explained(self) -> bool:
        """Whether the noise may be all of it, so that no layer is shown to hold it."""
        return self.where in ("inside", "open")


@dataclass(frozen=True, slots=True)
class Climb:
    """Every step of a ladder with every number. ``runs`` maps the rungs that exist to their runs.

    ``settings`` are those in which the prediction is known to differ, or that it alone names. ``foreign`` is the share
    of the pass time of rung 4 for which the recording holds no pass of that shape; None where that is not recorded.
    """

    measured: str
    base: str
    population: Population
    estimator: Estimator
    runs: Mapping[int, str]
    steps: tuple[Step, ...]
    gaps: Mapping[Key, Gap]
    settings: tuple[Setting, ...] = ()
    foreign: float | None = None

    @property
    def missing(self) -> tuple[int, ...]:
        """Rungs between prediction and measurement that do not exist."""
        return tuple(rung.number for rung in RUNGS if rung.number not in self.runs)


def _joined(words: Sequence[str], last: str) -> str:
    return f" {last} ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def _rungs(numbers: Sequence[int]) -> str:
    return f"rung{'s' if len(numbers) > 1 else ''} {_joined([str(number) for number in numbers], 'and')}"
