"""``gapscope runs``: the runs of the stores and what is wrong with them."""

from __future__ import annotations

import argparse
from typing import Any

from engine.cli import main as engine_cli


def add_runs(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "runs",
        help="the runs of the stores",
        description="List every run, failed, altered and malformed ones included, with what is wrong with them. The "
        "digest of every file is looked at; --quick looks at sizes alone.",
        parents=[engine_cli.store_options()],
    )
    parser.add_argument("--format", choices=("table", "markdown", "json"), default="table")
    parser.add_argument("--kind", choices=("measured", "replay", "sweep", "imported_summary"), help="only this kind")
    parser.add_argument("--quick", action="store_true", help="do not look at the digests of the files")
    parser.set_defaults(run=run_runs)


def run_runs(arguments: argparse.Namespace) -> int:
    """``gapscope runs``."""
    from dashboard.catalogue import Catalogue
    from dashboard.render.runs import runs_text

    entries = Catalogue(engine_cli.stores_of(arguments)).entries(verify=not arguments.quick)
    print(runs_text([e for e in entries if arguments.kind in (None, e.kind)], arguments.format))
    return 0
