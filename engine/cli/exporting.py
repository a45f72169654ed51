"""``gapscope export``: a run in files that other tools read."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from engine.cli.shared import Commands, add_command, sound_run, store_options, stores_of
from engine.errors import GapscopeError

if TYPE_CHECKING:
    from engine.bundle import Bundle


def add_export(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "export",
        "write a run as CSV, JSON Lines or Parquet, or a window of it as a Chrome trace",
        "Makes a folder with run.json and a file per table. In CSV text is quoted, so that an empty cell is NULL and\n"
        '"" is empty text; lists are JSON. Times are nanoseconds from profile start. `gapscope import FOLDER` makes\n'
        "the same run of it, under the same id; rows that were edited make another one, which says so.\n\n"
        "  gapscope export tight8\n"
        "  gapscope export tight8 --format parquet --out tight8_tables\n\n"
        "A Chrome trace opens in Perfetto (ui.perfetto.dev) and chrome://tracing: passes, requests by lane with their\n"
        "stages, counters of requests and KV blocks, evictions and preemptions.\n\n"
        "  gapscope export tight8 --chrome-trace tight8.json --from 20 --span 10\n"
        "  gapscope export tight8 --chrome-trace turn.json --request s0003/2",
        parents=[store_options()],
    )
    parser.add_argument("name", metavar="RUN", help="the run")
    parser.add_argument("--format", choices=("csv", "parquet", "jsonl"), help="default: csv")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where it goes (default: ./RUN-FORMAT)")
    parser.add_argument("--chrome-trace", type=Path, metavar="FILE", help="write this trace, and no tables")
    parser.add_argument(
        "--from", dest="begin", type=float, metavar="S", help="of the trace: seconds from profile start (default: 0)"
    )
    parser.add_argument("--span", type=float, metavar="S", help="of the trace: its length in seconds (default: 10)")
    parser.add_argument(
        "--request", default="", metavar="T", help="of the trace: around this request or conversation/turn"
    )
    parser.set_defaults(run=_export)


def _export(arguments: argparse.Namespace) -> int:
    from engine.bundle.export import export_folder, export_name

    window = arguments.begin is not None or arguments.span is not None or arguments.request
    if arguments.chrome_trace and (arguments.format or arguments.out):
        raise GapscopeError("A Chrome trace is one file: leave out --format and --out.")
    if window and not arguments.chrome_trace:
        raise GapscopeError(
            "--from, --span and --request say what a Chrome trace shows: name its file, --chrome-trace."
        )
    bundle = sound_run(stores_of(arguments), arguments.name)
    if arguments.chrome_trace:
        return _trace(bundle, arguments)
    form = arguments.format or "csv"
    print(export_folder(bundle, form, arguments.out or Path(export_name(bundle, form))))
    return 0


def _trace(bundle: Bundle, arguments: argparse.Namespace) -> int:
    from engine.bundle.chrome import chrome_trace, write_chrome_trace

    trace = chrome_trace(bundle, arguments.begin, arguments.span, arguments.request)
    print(write_chrome_trace(trace, arguments.chrome_trace))
    print(
        f"{trace.passes:,} passes, {trace.requests:,} requests and {trace.events:,} cache events from "
        f"{trace.from_ns / 1e9:.3f} to {trace.to_ns / 1e9:.3f} s",
        file=sys.stderr,
    )
    if trace.cut:
        print(trace.cut, file=sys.stderr)
    return 0
