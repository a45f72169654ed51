"""``gapscope doctor``: whether everything that gapscope needs is there and sound."""

from __future__ import annotations

import argparse
from typing import Any

from engine.cli import main as engine_cli


def add_doctor(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "doctor",
        help="check versions, stores, the runs' digests, the traces and the browser",
        description="Look at everything gapscope needs. Exit 1 when something is wrong.",
        parents=[engine_cli.store_options()],
    )
    parser.set_defaults(run=run_doctor)


def run_doctor(arguments: argparse.Namespace) -> int:
    """``gapscope doctor``."""
    from dashboard.doctor import examine

    wrong = 0
    for finding in examine(engine_cli.stores_of(arguments)):
        mark = {True: "ok", False: "WRONG", None: "note"}[finding.ok]
        wrong += finding.ok is False
        print(f"{mark:5}  {finding.what}: {finding.detail}")
    return 1 if wrong else 0
