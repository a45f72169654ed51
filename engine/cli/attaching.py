"""``gapscope attach``: an engine's passes and KV events laid under the run of a client."""

from __future__ import annotations

import argparse
from pathlib import Path

from engine.cli.shared import Commands, add_command, say_checks, sound_run, store_options, stores_of
from engine.cli.terminal import ProgressBar


def add_attach(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "attach",
        "lay an engine's passes and KV events under a client's run",
        "Makes a new run; the one that is named stays as it is. The engine's times are moved onto the client's clock:\n"
        "  wall       both recorded times of day\n"
        "  ids        the passes name requests that the client knows: each was sent before its first pass began, and\n"
        "             its tokens were seen after their pass had ended\n"
        "  OFFSET_S   the first pass or event lies that many seconds after profile start\n"
        "  auto       wall where both recorded it, else ids\n"
        "The check clocks_aligned says what the requests make of it, whatever was used.\n\n"
        "  gapscope attach my_run fpm.jsonl.gz kv_events.msgpack\n"
        "  gapscope attach my_run server/ --clock ids",
        parents=[store_options()],
    )
    parser.add_argument("name", metavar="RUN", help="a measured run without passes")
    parser.add_argument("path", nargs="+", type=Path, help="files, folders or archives of the engine")
    parser.add_argument("--clock", default="auto", metavar="auto|wall|ids|OFFSET_S", help="default: auto")
    parser.add_argument("--dry-run", action="store_true", help="say what would be attached, and write nothing")
    parser.add_argument("--title", help="what people read (default: the run's)")
    parser.add_argument("--skip-bad-rows", action="store_true", help="leave out rows that cannot be used")
    parser.set_defaults(run=_attach)


def _attach(arguments: argparse.Namespace) -> int:
    from engine.bundle import open_bundle
    from engine.importers.attaching import attach
    from engine.importers.contract import Options

    stores = stores_of(arguments)
    run = sound_run(stores, arguments.name)
    if arguments.dry_run:
        print("\n".join([f"{run.run_id}: {run.title}", *_plan(arguments.path)]))
        return 0
    bar = ProgressBar(run.run_id)
    options = Options(arguments.title, None, arguments.skip_bad_rows, bar.show)
    try:
        run_id = attach(run, arguments.path, stores[-1], options, arguments.clock)
    finally:
        bar.clear()
    print(run_id)
    say_checks(open_bundle(stores[-1] / run_id), ["clocks_aligned"])
    return 0


def _plan(paths: list[Path]) -> list[str]:
    """What would be attached, file by file."""
    from engine.importers import plan_import
    from engine.importers.attaching import plan_attach
    from engine.intake import open_intake

    lines = []
    for path in paths:
        with open_intake(path) as intake:
            for part in plan_attach(path, plan_import(intake, join=False)):
                lines += [f"   attaches {use.file.name}: {use.what}" for use in part.uses]
                lines += [f"   ignores  {name}: {why}" for name, why in part.ignores]
    return lines
