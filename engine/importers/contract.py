"""What an importer is: it recognises files by their content, says what it would do, and does it part by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from engine.errors import GapscopeError
from engine.intake import InputFile, Intake

Progress = Callable[[float | None, str], None]
"""``progress(share, words)``: share of the work from 0 to 1, None where it is not known."""


NO_ROWS = "Figures without rows: shown as stated, and not compared."
"""Note of a part that is a summary alone."""
NO_SUMMARY = "No summary is among the files: nothing says whether the tool counted the same."
"""Note of a part whose rows stand alone."""


class Canceled(GapscopeError):
    """Whoever asked for the import wants it no more; nothing was written."""


@dataclass(frozen=True)
class Options:
    """How an import goes about its work; the same for every format."""

    title: str | None = None
    trace: Path | None = None
    skip_bad_rows: bool = False
    progress: Progress | None = None
    cancel: Callable[[], bool] | None = None

    def step(self, share: float | None, words: str) -> None:
        """Say how far the work is.

        Raises:
            Canceled: it is wanted no more. Call this every few thousand rows.
        """
        if self.cancel is not None and self.cancel():
            raise Canceled("The import was canceled; nothing was written.")
        if self.progress is not None:
            self.progress(share, words)


@dataclass(frozen=True)
class Use:
    """A file that an import reads, and what for."""

    file: InputFile
    what: str


@dataclass(frozen=True)
class Part:
    """One run that an input holds. ``run(store, options)`` imports it and returns its id."""

    format: str
    """Name of the importer."""
    tool: str
    """Who wrote it, as people call it: ``AIPerf``, ``vLLM bench serve``."""
    version: str | None
    """The tool's version or the format's, None where the files do not say."""
    name: str
    """What the run would be called."""
    kind: str
    """Kind of the run: measured, replay, sweep or imported_summary."""
    uses: tuple[Use, ...]
    run: Callable[[Path, Options], str]
    ignores: tuple[tuple[str, str], ...] = ()
    """Files (or parts of one) that are of this run and not used, each with the reason."""
    notes: tuple[str, ...] = ()
    """What the user should know before importing, a sentence each."""
    side: Literal["client", "engine", "both"] = "client"
    """Whose files they are: what a client saw, what its engine published (to be attached), or a whole run."""

    @property
    def left(self) -> list[str]:
        """A line for each of its files that is not used."""
        return [f"   ignores  {name}: {why}" for name, why in self.ignores]


class Importer(Protocol):
    """A family of formats. ``find`` looks at heads of files only and reads nothing whole that may be large."""

    name: str
    describes: str

    def find(self, intake: Intake) -> Sequence[Part]:
        """The runs of this format in an input, in a stable order; empty where there are none."""


@dataclass(frozen=True)
class Plan:
    """What importing an input would do."""

    intake: Intake
    parts: tuple[Part, ...]
    ignored: tuple[tuple[str, str], ...] = field(default=())
    """Files that no importer uses, each with the reason."""

    @property
    def left(self) -> list[str]:
        """A line for each file that is of no run."""
        return [f"not used: {name}: {why}" for name, why in self.ignored]
