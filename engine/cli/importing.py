"""``gapscope import``: say what an input holds, and turn it into runs."""

from __future__ import annotations

import argparse
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from engine.cli.shared import Commands, add_command, say_checks, store_options, stores_of
from engine.cli.terminal import BAD_INPUT, OK, WIDTH, ProgressBar
from engine.errors import GapscopeError

if TYPE_CHECKING:
    from engine.importers.parts import Imported


def add_import(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "import",
        "turn recordings and files of other tools into run bundles",
        "A folder, a file or an archive (tar, zip; gzip, zstd, bzip2, xz), nested ones too. What it is, is told by\n"
        "the content, never by a name (--formats). --dry-run does all the work, says what became of each file, and\n"
        "keeps nothing. Rows that cannot be used are an error, unless they are to be skipped; then they are counted\n"
        "and named in the run. What fails its checks is imported too, and said, as is each file that is not used.\n"
        "Several inputs: one that fails does not stop the others.\n\n"
        "  gapscope import results/ --dry-run\n"
        "  gapscope import results/ benchmark.json.gz --store my_runs\n"
        "  gapscope import recordings/ample8 --trace trace.jsonl\n\n"
        "Exit code 2: something could not be imported.",
        parents=[store_options()],
    )
    parser.add_argument("path", nargs="*", type=Path, help="a folder, a file or an archive; one or more")
    parser.add_argument("--dry-run", action="store_true", help="say what would become of each file, and keep nothing")
    parser.add_argument("--formats", action="store_true", help="list the formats, and what each is told by")
    parser.add_argument("--trace", type=Path, help="the workload that was played, where it is not beside the recording")
    parser.add_argument("--title", help="what people read")
    parser.add_argument("--skip-bad-rows", action="store_true", help="leave out rows that cannot be used")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.formats:
        print(_formats())
        return OK
    if not arguments.path:
        raise GapscopeError("Nothing to import: give the folder, file or archive, or --formats for what is known.")
    problems: list[str] = []
    for path in arguments.path:
        try:
            problems += _rehearse(path, arguments) if arguments.dry_run else _keep(path, arguments)
        except GapscopeError as error:
            problems.append(str(error))
    for problem in problems:
        print(f"gapscope: {problem}", file=sys.stderr)
    return BAD_INPUT if problems else OK


def _formats() -> str:
    from engine.importers import IMPORTERS

    lines = []
    for importer in IMPORTERS:
        lines.append(importer.name)
        lines += textwrap.wrap(importer.describes, WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 4)
    return "\n".join(lines)


def _rehearse(path: Path, arguments: argparse.Namespace) -> list[str]:
    """Import into a folder that vanishes and print what became of each file, so that nothing is promised."""
    said = [f"{path}:"]
    with tempfile.TemporaryDirectory(prefix="gapscope-dry-run-") as held:
        problems, left = _import(path, Path(held), arguments, lambda number, done: said.extend(done.outline(number)))
    print("\n".join([*said, *left]), flush=True)
    return problems


def _keep(path: Path, arguments: argparse.Namespace) -> list[str]:
    """Import into the store: ids on stdout; checks, and files that are not used, on stderr."""
    from engine.bundle import open_bundle

    store = stores_of(arguments)[-1]

    def say(_number: int, done: Imported) -> None:
        if done.run_id:
            print(done.run_id, flush=True)
            say_checks(open_bundle(store / done.run_id), ["rows_used"] if arguments.skip_bad_rows else [])
            print("".join(f"{line}\n" for line in done.part.left), end="", file=sys.stderr)

    problems, left = _import(path, store, arguments, say)
    print("".join(f"{line}\n" for line in left), end="", file=sys.stderr)
    return problems


def _import(
    path: Path, store: Path, arguments: argparse.Namespace, say: Callable[[int, Imported], None]
) -> tuple[list[str], list[str]]:
    """Import what lies at ``path``; returns a sentence for every refused part, and a line for every file of no run."""
    from engine.importers import Options, intake_for, plan_import
    from engine.importers.parts import import_parts

    bar = ProgressBar(path.name or str(path))
    options = Options(arguments.title, arguments.trace, arguments.skip_bad_rows, bar.show)
    problems = []
    try:
        bar.show(None, "looking at its files")
        with intake_for(path, store) as intake:
            plan = plan_import(intake)
            for number, done in enumerate(import_parts(plan, store, options), 1):
                bar.clear()
                say(number, done)
                problems += [] if done.run_id else [done.problem]
    finally:
        bar.clear()
    return problems, plan.left
