"""``gapscope import``: say what an input holds, and turn it into runs."""

from __future__ import annotations

import argparse
import sys
import textwrap
from pathlib import Path

from engine.cli.shared import Commands, add_command, say_checks, store_options, stores_of
from engine.cli.terminal import BAD_INPUT, OK, WIDTH, ProgressBar
from engine.errors import GapscopeError


def add_import(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "import",
        "turn recordings and files of other tools into run bundles",
        "A folder, a file or an archive (tar, zip; gzip, zstd, bzip2, xz), nested ones too. What it is, is told by\n"
        "the content, never by a name: --dry-run says what would be made of it, --formats what is known. Rows that\n"
        "cannot be used are an error, unless they are to be skipped; then they are counted and named in the run.\n"
        "What fails its checks is imported too, and said. Several inputs: one that fails does not stop the others.\n\n"
        "  gapscope import results/ --dry-run\n"
        "  gapscope import results/ benchmark.json.gz --store my_runs\n"
        "  gapscope import recordings/ample8 --trace trace.jsonl\n\n"
        "Exit code 2: something could not be imported.",
        parents=[store_options()],
    )
    parser.add_argument("path", nargs="*", type=Path, help="a folder, a file or an archive; one or more")
    parser.add_argument("--dry-run", action="store_true", help="say what would be imported, and write nothing")
    parser.add_argument("--formats", action="store_true", help="list the formats, and what each is told by")
    parser.add_argument("--trace", type=Path, help="the workload that was played, where it is not beside the recording")
    parser.add_argument("--title", help="what people read")
    parser.add_argument("--skip-bad-rows", action="store_true", help="leave out rows that cannot be used")
    parser.set_defaults(run=_import)


def _import(arguments: argparse.Namespace) -> int:
    if arguments.formats:
        print(_formats())
        return OK
    if not arguments.path:
        raise GapscopeError("Nothing to import: give the folder, file or archive, or --formats for what is known.")
    problems: list[str] = []
    for path in arguments.path:
        try:
            if arguments.dry_run:
                _show(path)
            else:
                problems += _import_one(path, arguments)
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


def _show(path: Path) -> None:
    """Print what importing ``path`` would do."""
    from engine.importers import plan_import
    from engine.intake import open_intake

    with open_intake(path) as intake:
        print("\n".join([f"{path}:", *plan_import(intake).lines]), flush=True)


def _import_one(path: Path, arguments: argparse.Namespace) -> list[str]:
    """Import what lies at ``path``; returns a sentence for every run that could not be made."""
    from engine.bundle import open_bundle
    from engine.importers import Options, intake_for, plan_import
    from engine.importers.parts import import_parts

    store = stores_of(arguments)[-1]
    bar = ProgressBar(path.name or str(path))
    options = Options(arguments.title, arguments.trace, arguments.skip_bad_rows, bar.show)
    problems = []
    try:
        bar.show(None, "looking at its files")
        with intake_for(path, store) as intake:
            for done in import_parts(plan_import(intake), store, options):
                bar.clear()
                if done.run_id is None:
                    problems.append(done.problem)
                    continue
                print(done.run_id, flush=True)
                say_checks(open_bundle(store / done.run_id), ["rows_used"] if arguments.skip_bad_rows else [])
    finally:
        bar.clear()
    return problems
