"""Importing what a plan holds, run by run: one that fails does not hide the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from engine.errors import GapscopeError
from engine.importers.contract import Canceled, Options, Part, Plan


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of a part: the id of its run, or the sentence that says why there is none."""

    part: Part
    run_id: str | None
    problem: str = ""

    def outline(self, number: int) -> list[str]:
        """What the part is and what became of each of its files, line by line."""
        part, version = self.part, f" {self.part.version}" if self.part.version else ", version not said"
        becomes, read = (f"becomes a run of kind {part.kind}", "uses   ") if self.run_id else ("is refused", "refuses")
        return [
            f"{number}. {part.name}: {part.tool}{version}, {becomes}",
            *(f"   {read}  {use.file.name}: {use.what}" for use in part.uses),
            *part.left,
            *(f"   note     {note}" for note in part.notes),
        ]


def import_parts(plan: Plan, store: Path, options: Options) -> Iterator[Imported]:
    """Import the parts of a plan one after the other; a refused one is told, and the next is tried.

    Shares of the progress are those of the whole plan. A title is that of every run, with the part's name behind it
    where there are several.

    Raises:
        Canceled: the import is wanted no more; runs that were complete by then stay.
    """
    for place, part in enumerate(plan.parts):
        try:
            yield Imported(part, part.run(store, _options_of(part, place, len(plan.parts), options)))
        except Canceled:
            raise
        except GapscopeError as error:
            yield Imported(part, None, str(error))


def _options_of(part: Part, place: int, count: int, options: Options) -> Options:
    if count == 1:
        return options
    asked, title = options.progress, options.title

    def progress(share: float | None, words: str) -> None:
        if asked is not None:
            whole = (place + min(max(share or 0.0, 0.0), 1.0)) / count
            asked(whole, f"{part.name} ({place + 1} of {count}): {words}")

    return replace(options, progress=progress, title=title and f"{title}: {part.name}")
