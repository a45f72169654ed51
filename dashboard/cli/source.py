"""``gapscope source``: where a run comes from, what is asked of it, and what its tool said itself."""

from __future__ import annotations

import argparse
from typing import Any

from engine.cli import main as engine_cli

EPILOG = """\
examples:
  gapscope source aiperf_run
  gapscope source vllm_run --window observed_span --format json
"""


def add_source(commands: Any) -> None:
    """Add the command."""
    from dashboard.metrics import Estimator, Window

    parser = commands.add_parser(
        "source",
        help="where a run comes from, its checks, and its tool's own figures beside ours",
        description="Files and checks of a run, what its format does not record, how its numbers are defined, and the "
        "figures of its tool beside ours with what explains a difference.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[engine_cli.store_options()],
    )
    parser.add_argument("ref", metavar="RUN", help="run id, name or beginning of an id; of any kind")
    parser.add_argument("--format", choices=("table", "markdown", "json"), default="table")
    parser.add_argument("--population", default="profile", metavar="PHASE[.SUBSET]", help="as for compare")
    parser.add_argument("--estimator", choices=[e.value for e in Estimator], default="linear", help="of percentiles")
    parser.add_argument("--window", choices=[w.value for w in Window], default="fixed", help="of our rates")
    parser.set_defaults(run=run_source)


def run_source(arguments: argparse.Namespace) -> int:
    """``gapscope source``."""
    from dashboard.compare.source import source
    from dashboard.metrics import Estimator, Population, Window
    from dashboard.render.source import source_text
    from dashboard.store import Store

    store = Store(engine_cli.stores_of(arguments))
    told = source(
        store,
        store.find(arguments.ref).run_id,
        Population.parse(arguments.population),
        Estimator(arguments.estimator),
        Window(arguments.window),
    )
    print(source_text(told, arguments.format))
    return 0
