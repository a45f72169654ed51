"""``gapscope export``: a run in files that other tools read."""

from __future__ import annotations

import argparse
from pathlib import Path

from engine.cli.shared import Commands, add_command, sound_run, store_options, stores_of


def add_export(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "export",
        "write a run as CSV, JSON Lines or Parquet",
        "Makes a folder with run.json and a file per table. In CSV text is quoted, so that an empty cell is NULL and\n"
        '"" is empty text; lists are JSON. Times are nanoseconds from profile start. `gapscope import FOLDER` makes\n'
        "the same run of it, under the same id; rows that were edited make another one, which says so.\n\n"
        "  gapscope export tight8\n"
        "  gapscope export tight8 --format parquet --out tight8_tables",
        parents=[store_options()],
    )
    parser.add_argument("name", metavar="RUN", help="the run")
    parser.add_argument("--format", choices=("csv", "parquet", "jsonl"), default="csv", help="default: csv")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where it goes (default: ./RUN-FORMAT)")
    parser.set_defaults(run=_export)


def _export(arguments: argparse.Namespace) -> int:
    from engine.bundle.export import export_folder, export_name

    bundle = sound_run(stores_of(arguments), arguments.name)
    print(export_folder(bundle, arguments.format, arguments.out or Path(export_name(bundle, arguments.format))))
    return 0
