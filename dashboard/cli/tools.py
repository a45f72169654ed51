"""``gapscope tools``: runs of several tools at one server, side by side."""

from __future__ import annotations

import argparse
from typing import Any

from engine.cli import main as engine_cli

EPILOG = """\
examples:
  gapscope tools aiperf_run vllm_run sglang_run
  gapscope tools aiperf_run vllm_run --format markdown > review.md
  gapscope tools aiperf_run vllm_run --window observed_span
"""


def add_tools(commands: Any) -> None:
    """Add the command."""
    from dashboard.metrics import MAX_TOOLS, Estimator, Window

    parser = commands.add_parser(
        "tools",
        help="what several tools saw of one server, and why they disagree",
        description="Lay runs side by side: outcome classes, definitions, numbers by one rule, rates by window, the "
        "tools' own figures. The others are held against the first run; what is another quantity says so.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[engine_cli.store_options()],
    )
    parser.add_argument("refs", nargs="+", metavar="RUN", help=f"run id, name or beginning of an id; up to {MAX_TOOLS}")
    parser.add_argument("--format", choices=("table", "markdown", "json"), default="table")
    parser.add_argument("--population", default="profile", metavar="PHASE[.SUBSET]", help="as for compare")
    parser.add_argument("--estimator", choices=[e.value for e in Estimator], default="linear", help="of percentiles")
    parser.add_argument(
        "--window", choices=[w.value for w in Window], default="fixed", help="of our rates beside the tools' own"
    )
    parser.set_defaults(run=run_tools)


def run_tools(arguments: argparse.Namespace) -> int:
    """``gapscope tools``."""
    from dashboard.compare.tools import side_by_side
    from dashboard.metrics import Estimator, Population, Window
    from dashboard.render.tools import tools_text
    from dashboard.store import Store

    store = Store(engine_cli.stores_of(arguments))
    found = side_by_side(
        store,
        [store.find(ref).run_id for ref in arguments.refs],
        Population.parse(arguments.population),
        Estimator(arguments.estimator),
        Window(arguments.window),
    )
    print(tools_text(found, arguments.format))
    return 0
