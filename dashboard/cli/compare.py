"""``gapscope compare``: replays beside a measured run."""

from __future__ import annotations

import argparse
from typing import Any

from dashboard.cli.scope import add_scope
from engine.cli import main as engine_cli
from engine.errors import GapscopeError

EPILOG = """\
examples:
  gapscope compare ample8 ample8-blind
  gapscope compare ample8 ample8-blind --format markdown > review.md
  gapscope compare ample8 ample8-blind ample8-shaken
  gapscope compare ample8 ample8-blind --population profile.root --window observed_span
  gapscope compare tight8 tight8-blind --gate 'ttft.mean<=10%' --gate 'hit_ratio.tokens<=2pp' \\
      --gate 'preemptions.capture=2..8'

gates (none are built in; exit 1 when one does not hold):
  ttft.mean<=10%             size of the gap, relative to the measured value
  ttft.p99<=5ms              size of the difference in the number's unit
  hit_ratio.tokens<=1pp      size of the difference of a share, in percentage points
  preemptions.capture=2..8   range of the replay's own value
  tpot.p90@warmup<=15%       another population for this gate
"""


def add_compare(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "compare",
        help="replays beside a measured run: numbers, gaps, noise, gates",
        description="Compare two runs, or several with the first. The same queries as the pages; every number with "
        "population, estimator, window and n. Which of several is nearer is said where the noise leaves no doubt.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[engine_cli.store_options()],
    )
    parser.add_argument("measured", help="run id, name or beginning of an id: the side that gaps are relative to")
    parser.add_argument("replay", nargs="+", help="the other run, or up to four")
    parser.add_argument("--format", choices=("table", "markdown", "json"), default="table")
    add_scope(parser)
    parser.set_defaults(run=run_compare)


def run_compare(arguments: argparse.Namespace) -> int:
    """``gapscope compare``."""
    from dashboard.compare import compare
    from dashboard.compare.gates import Gate
    from dashboard.metrics import Estimator, Population, Window
    from dashboard.render.comparison import comparison_text
    from dashboard.render.several import comparisons_text
    from dashboard.store import Store
    from dashboard.view import MAX_REPLAYS

    gates = [Gate.parse(text) for text in arguments.gate]
    population = Population.parse(arguments.population)
    store = Store(engine_cli.stores_of(arguments))
    measured = store.find(arguments.measured).run_id
    replays = list(dict.fromkeys(store.find(text).run_id for text in arguments.replay))
    if len(replays) > MAX_REPLAYS:
        raise GapscopeError(f"{len(replays)} replays: expected at most {MAX_REPLAYS} beside a measured run.")
    estimator, window = Estimator(arguments.estimator), Window(arguments.window)
    found = [compare(store, measured, replay, population, estimator, window, gates) for replay in replays]
    several = len(found) > 1
    print(comparisons_text(found, arguments.format) if several else comparison_text(found[0], arguments.format))
    return 0 if all(one.passed for one in found) else 1
