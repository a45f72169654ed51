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
    parser.add_argument(
        "--prepare",
        action="store_true",
        help="instead of the list: work out what pages make of large runs at their first use, and keep it in the store",
    )
    parser.set_defaults(run=run_runs)


def run_runs(arguments: argparse.Namespace) -> int:
    """``gapscope runs``."""
    if arguments.prepare:
        return _prepare(arguments)
    from dashboard.catalogue import Catalogue
    from dashboard.render.runs import runs_text

    entries = Catalogue(engine_cli.stores_of(arguments)).entries(verify=not arguments.quick)
    print(runs_text([e for e in entries if arguments.kind in (None, e.kind)], arguments.format))
    return 0


def _prepare(arguments: argparse.Namespace) -> int:
    """Prepare every large run, with a line for each, and sweep what is kept of others; 1 where one could not be."""
    from dashboard.kept.sweep import sweep
    from dashboard.prepare import prepare
    from dashboard.store import Store
    from engine.errors import GapscopeError

    store, failed = Store(engine_cli.stores_of(arguments), preparing=True), 0
    for entry in store.catalogue():
        if entry.state != "ok" or arguments.kind not in (None, entry.kind):
            continue
        try:
            if prepare(store, entry.run_id):
                print(f"prepared {entry.run_id}", flush=True)
        except GapscopeError as error:
            failed += 1
            print(f"not prepared {entry.run_id}: {error}", flush=True)
    if removed := sweep(store.catalog):
        print(f"removed {len(removed)} files of runs that are gone", flush=True)
    return int(bool(failed))
