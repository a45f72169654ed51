"""``gapscope report``: what the pages show of a pair, in one file."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from dashboard.cli.scope import add_scope
from engine.cli.main import store_options, stores_of
from engine.errors import GapscopeError

EPILOG = """\
The file opens from disk without a network, in light and dark, and prints. Its ending says what it is: .html or .md.
The same runs and options give the same bytes. Exit 1 when a gate does not hold; the file is written all the same.

examples:
  gapscope report ample8 ample8-predicted --out review.html
  gapscope report tight8 tight8-predicted tight8_repeat --gate 'ttft.mean<=10%' --out review.md
"""


def add_report(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "report",
        help="a self-contained report on a pair, as HTML or Markdown",
        description="Verdict, contract, identity, cohort, numbers, percentiles, passes, coverage, cache, boundaries "
        "and limits of up to four runs beside a measured one, by the functions of the pages.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[store_options()],
    )
    parser.add_argument("measured", help="run id, name or beginning of an id: the side that gaps are relative to")
    parser.add_argument("replay", nargs="+", help="the runs beside it, up to four")
    add_scope(parser)
    parser.add_argument("--tolerance", type=int, default=16, metavar="TOKENS", help="of matched_near; default 16")
    parser.add_argument(
        "--compare-anyway", action="store_true", help="show gaps of runs that are not like for like, too"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="FILE.html or FILE.md")
    parser.set_defaults(run=run_report)


def run_report(arguments: argparse.Namespace) -> int:
    """Write the report; 1 where a gate does not hold."""
    from dashboard.compare.gates import Gate
    from dashboard.metrics import Estimator, Population, Window
    from dashboard.report import as_html, as_markdown, gather
    from dashboard.sides import frame_of
    from dashboard.store import Store
    from dashboard.view import MAX_REPLAYS

    write = {".html": as_html, ".md": as_markdown}.get(arguments.out.suffix.lower())
    if write is None:
        raise GapscopeError(f"Report {arguments.out.name}: expected a file that ends in .html or .md.")
    if not arguments.out.parent.is_dir():
        raise GapscopeError(f"{arguments.out} cannot be written: there is no folder {arguments.out.parent}.")
    if len(arguments.replay) > MAX_REPLAYS:
        raise GapscopeError(f"{len(arguments.replay)} runs beside the measured one: expected at most {MAX_REPLAYS}.")
    gates = [Gate.parse(text) for text in arguments.gate]
    population = replace(Population.parse(arguments.population), tolerance_tokens=arguments.tolerance)
    store = Store(stores_of(arguments))
    ids = [store.find(name).run_id for name in (arguments.measured, *arguments.replay)]
    scope = (population, Estimator(arguments.estimator), Window(arguments.window))
    report = gather(store, frame_of(store, ids[0], ids[1:], *scope, arguments.compare_anyway), gates)
    try:
        arguments.out.write_text(write(report), encoding="utf-8")
    except OSError as error:
        raise GapscopeError(
            f"{arguments.out} cannot be written: {error.strerror or error}. Give another file with --out."
        ) from None
    print(arguments.out)
    return 0 if all(found.passed for _, found in report.comparisons) else 1
