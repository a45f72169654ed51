"""Imports asked for on the page: what an input holds, and the job that makes runs of it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dashboard import jobs
from dashboard.jobs.uploads import Uploads, place, uploaded
from engine.bundle import find_bundle
from engine.errors import GapscopeError
from engine.importers import Options, Part, intake_for, plan_import
from engine.importers.attaching import attach
from engine.importers.joined import is_engine_part
from engine.importers.parts import import_parts
from engine.intake import open_intake

PAGE_WORDS = {
    "imported with --trace FILE": "imported together with it",
    "--skip-bad-rows": "'Skip bad rows' ticked",
    "name its file with --trace FILE": "import a recording with that trace beside it",
    "name another with --trace FILE": "import a recording with that trace beside it",
    "with --trace FILE": "in the archive, beside the recording",
}
"""Advice for the command line, as the page gives it."""
SAY_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run that an import would make; ``files`` are name, whether it is used, and what for or why not."""

    name: str
    tool: str
    version: str | None
    kind: str
    files: tuple[tuple[str, bool, str], ...]
    notes: tuple[str, ...]
    attachable: bool
    """Whether it holds what an engine published and no requests, so that it can be laid under a client's run."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What importing an input would do; ``ignored`` are files of no run, each with the reason."""

    runs: tuple[PlannedRun, ...]
    ignored: tuple[tuple[str, str], ...]


def look(uploads: Uploads = (), path: str = "") -> Planned:
    """What uploaded files, or those at a path on this machine, would become; nothing is kept of them.

    Raises:
        GapscopeError: as :func:`engine.importers.plan_import`, in the words of the page.
    """
    with tempfile.TemporaryDirectory(prefix="gapscope-look-") as held:
        source = place(uploads, Path(held) / "upload") if uploads else on_this_machine(path)
        with _in_page_words(source if uploads else None), open_intake(source, Path(held)) as intake:
            plan = plan_import(intake)
            return Planned(tuple(_planned(part) for part in plan.parts), plan.ignored)


def _planned(part: Part) -> PlannedRun:
    used = [(use.file.name, True, use.what) for use in part.uses]
    left = [(name, False, why) for name, why in part.ignores]
    return PlannedRun(part.name, part.tool, part.version, part.kind, (*used, *left), part.notes, is_engine_part(part))


def spec(
    words: str,
    stores: Sequence[Path],
    *,
    path: str = "",
    title: str = "",
    skip: bool = False,
    to: str = "",
    clock: str = "",
) -> dict[str, Any]:
    """The job that imports uploaded files, or those at ``path``; with ``to`` it attaches them to that run.

    ``words`` say on the page what is imported, ``title`` is that of the runs, ``clock`` as
    :func:`engine.importers.attaching.attach` has it.
    """
    asked = {
        "do": "attach" if to else "import",
        "title": f"{words}, attached to {to}" if to else f"import of {words}",
        "stores": [str(store.resolve()) for store in stores],
        "path": path,
        "run_title": title,
        "skip_bad_rows": skip,
    }
    return asked | ({"run": to, "clock": clock or "auto"} if to else {})


def run(folder: Path, asked: Mapping[str, Any], store: Path) -> dict[str, Any]:
    """Import; returns the runs, for each part its run or why it has none, and the files that were not used.

    Raises:
        GapscopeError: no run could be made.
    """
    source = _source(folder, asked)
    with _in_page_words(None if asked.get("path") else source), intake_for(source, store) as intake:
        plan = plan_import(intake)
        left = [*plan.ignored]
        done = []
        for one in import_parts(plan, store, _options(folder, asked)):
            done.append({"name": one.part.name, "run_id": one.run_id, "problem": in_page_words(one.problem)})
            left += one.part.ignores if one.run_id else ()
            jobs.write_json(folder / "made.json", {"run_ids": [each["run_id"] for each in done if each["run_id"]]})
    found = [one["run_id"] for one in done if one["run_id"]]
    failed = [one for one in done if not one["run_id"]]
    if not found:
        raise GapscopeError(" ".join(str(one["problem"]) for one in failed))
    why = " ".join(f"{one['name']}: {one['problem']}" for one in failed)
    message = f"{len(found)} of {len(done)} runs. {why}" if failed else ""
    again = bool(failed or asked.get("path"))
    return {"run_ids": found, "parts": done, "left": left, "again": again, "message": message}


def run_attach(folder: Path, asked: Mapping[str, Any], store: Path) -> dict[str, Any]:
    """Attach; returns the new run.

    Raises:
        GapscopeError: as :func:`engine.importers.attaching.attach` says.
    """
    source = _source(folder, asked)
    bundle = find_bundle([Path(text) for text in asked["stores"]], asked["run"])
    with _in_page_words(None if asked.get("path") else source):
        run_id = attach(bundle, [source], store, _options(folder, asked), asked["clock"])
    return {"run_ids": [run_id], "again": bool(asked.get("path"))}


def _source(folder: Path, asked: Mapping[str, Any]) -> Path:
    return on_this_machine(asked["path"]) if asked.get("path") else uploaded(folder / "upload")


def _options(folder: Path, asked: Mapping[str, Any]) -> Options:
    """What the job asks for, with its progress told now and then."""
    said_s = 0.0

    def progress(share: float | None, words: str) -> None:
        nonlocal said_s
        if time.monotonic() - said_s >= SAY_EVERY_S:
            said_s = time.monotonic()
            jobs.write_json(folder / "progress.json", {"words": words, "share": share})

    return Options(asked.get("run_title") or None, None, bool(asked.get("skip_bad_rows")), progress)


def on_this_machine(text: str) -> Path:
    """The path that somebody typed.

    Raises:
        GapscopeError: it is not absolute.
    """
    path = Path(text.strip().strip("'\"")).expanduser()
    if not path.is_absolute():
        raise GapscopeError(f"{text.strip() or 'An empty path'}: give the whole path, from the root of this machine.")
    return path


def in_page_words(text: str) -> str:
    """A refusal of the engine for who has the page before them and no command line."""
    for options, words in PAGE_WORDS.items():
        text = text.replace(options, words)
    return text


@contextmanager
def _in_page_words(upload: Path | None) -> Iterator[None]:
    """Refusals advise in the words of the page; what was uploaded has its own name, a path that was given stays."""
    try:
        yield
    except GapscopeError as error:
        said = in_page_words(str(error))
        raise GapscopeError(said.replace(str(upload), upload.name) if upload else said) from None
