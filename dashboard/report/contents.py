"""What a report is made of: sections of sentences, charts and tables, each made by a function of the pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dashboard.charts.answer import Answer
from dashboard.charts.figures import Figure
from dashboard.compare import Comparison
from dashboard.frame import Frame, Side, header
from engine.errors import GapscopeError

Made = tuple[Any, ...]
"""What a function of ``dashboard.charts`` gives: an answer, and with it a figure and a sentence where it has them."""


@dataclass(frozen=True)
class Part:
    """A chart (in both themes) with its rows, or rows alone. ``whole`` rows are never cut."""

    key: str
    title: str
    answer: Answer
    figures: tuple[Figure, Figure] | None = None
    note: str = ""
    sides: tuple[Side, ...] | None = None
    whole: bool = False


@dataclass
class Section:
    """Sentences, and parts below them. ``page`` is the page that shows more of it."""

    name: str
    title: str
    words: list[str] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    page: str = ""


@dataclass(frozen=True)
class Report:
    """Everything that a report says. ``command`` makes it again; ``link`` has neither scheme nor host."""

    frame: Frame
    comparisons: tuple[tuple[Side, Comparison], ...]
    sections: tuple[Section, ...]
    command: str
    link: str

    @property
    def title(self) -> str:
        """Who is compared with whom."""
        others = ", ".join(side.run_id for side, _ in self.comparisons)
        return f"{self.frame.measured.run_id} and {others}"


class Maker:
    """Adds parts to a section, each made in both themes; one that cannot be made leaves a sentence."""

    def __init__(self, frame: Frame, section: Section) -> None:
        self.frame = frame
        self.dark = replace(frame, dark=True)
        self.section = section

    def add(
        self,
        key: str,
        title: str,
        make: Callable[..., Answer | Made],
        *given: Any,
        sides: tuple[Side, ...] | None = None,
        whole: bool = False,
    ) -> None:
        """Add what ``make`` gives for a frame and what else it is given."""
        try:
            light = make(self.frame, *given)
            made = light if isinstance(light, tuple) else (light,)
            answer, figure, note = (*made, None, None)[:3]
            figures = None
            if figure is not None and figure["data"] and answer.rows.num_rows and not answer.not_recorded:
                figures = (figure, make(self.dark, *given)[1])  # type: ignore[index]  # a tuple, as the light one is
        except GapscopeError as error:
            self.section.words.append(f"{title}: not in this report. {error}")
            return
        columns = [replace(one, label=header(self.frame, one.label)) for one in answer.columns]
        key = f"{self.section.name}-{key}"
        answer = replace(answer, columns=columns)
        self.section.parts.append(Part(key, title, answer, figures, note or "", sides, whole))


def silent(report: Sequence[Section]) -> Iterator[str]:
    """Sentences on what the charts of a report could not show."""
    for section in report:
        for part in section.parts:
            answer = part.answer
            if answer.not_recorded:
                yield f"{part.title}: {answer.not_recorded}"
            elif not answer.rows.num_rows:
                yield f"{part.title}: {answer.empty}"
            if answer.partly:
                yield f"{part.title}: {answer.partly}"
            if answer.truncated:
                yield f"{part.title}: the answer was cut at {answer.rows.num_rows:,} rows."
