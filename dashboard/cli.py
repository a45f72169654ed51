"""The ``gapscope`` command: the engine's commands plus compare, report, tools, runs, serve and doctor.

Exit codes: 0 done, 1 a gate of an acceptance contract does not hold or doctor found a fault, 2 bad input, 130
interrupted. Heavy packages are imported by the commands that need them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dashboard.cli_align import add_align
from dashboard.cli_report import add_report
from dashboard.cli_scope import add_scope
from dashboard.cli_source import add_source
from dashboard.cli_sweep import add_sweep
from dashboard.cli_tools import add_tools
from dashboard.hypotheses.command import add_hypothesis
from dashboard.saved.command import add_views
from dashboard.serving.command import add_serving
from engine.cli import main as engine_cli
from engine.cli.terminal import run_command
from engine.errors import GapscopeError

if TYPE_CHECKING:
    from engine.ladder import Ladder

Commands = Any  # argparse has no public name for what add_subparsers returns

COMPARE_EPILOG = """\
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code."""
    return run_command(build_parser(), None if arguments is None else list(arguments))


def build_parser() -> argparse.ArgumentParser:
    """The parser with every command."""
    parser = argparse.ArgumentParser(
        prog="gapscope",
        description="Which part of the measured LLM serving path does this replay misrepresent?",
        epilog="`gapscope COMMAND --help` explains a command.",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    engine_cli.register(commands, show_ladder)
    _ladder(commands)
    _compare(commands)
    add_report(commands)
    add_align(commands)
    add_tools(commands)
    add_sweep(commands)
    add_source(commands)
    _runs(commands)
    add_hypothesis(commands)
    add_views(commands)
    add_serving(commands)
    _doctor(commands)
    return parser


def _compare(commands: Commands) -> None:
    parser = commands.add_parser(
        "compare",
        help="replays beside a measured run: numbers, gaps, noise, gates",
        description="Compare two runs, or several with the first. The same queries as the pages; every number with "
        "population, estimator, window and n. Which of several is nearer is said where the noise leaves no doubt.",
        epilog=COMPARE_EPILOG,
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
    from dashboard.render import comparison_text
    from dashboard.render_several import comparisons_text
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


def _ladder(commands: Commands) -> None:
    """What the numbers do from rung to rung, after the engine's command has built them, or without building."""
    from dashboard.metrics import Estimator

    parser = commands.choices["ladder"]
    parser.add_argument("--show", action="store_true", help="build nothing: the rungs that are in the stores")
    parser.add_argument("--format", choices=("table", "markdown", "json"), default="table")
    parser.add_argument("--population", default="profile", metavar="PHASE[.SUBSET]", help="as for compare")
    parser.add_argument("--estimator", choices=[e.value for e in Estimator], default="linear", help="of percentiles")
    build = parser.get_default("run")
    parser.set_defaults(run=lambda arguments: run_ladder_show(arguments) if arguments.show else build(arguments))


def run_ladder_show(arguments: argparse.Namespace) -> int:
    """``gapscope ladder --show``."""
    from engine.cli.ladder import only_replay
    from engine.cli.shared import sound_run

    stores = engine_cli.stores_of(arguments)
    measured = sound_run(stores, arguments.measured)
    base = sound_run(stores, arguments.base or only_replay(measured, stores))
    _print_ladder(arguments, stores, measured.run_id, base.run_id, {})
    return 0


def show_ladder(arguments: argparse.Namespace, stores: Sequence[Path], built: Ladder) -> None:
    """The steps of a ladder that ``gapscope ladder`` built."""
    why = {rung.number: rung.why for rung in built.rungs if rung.why}
    _print_ladder(arguments, stores, built.measured, built.base, why)


def _print_ladder(
    arguments: argparse.Namespace, stores: Sequence[Path], measured: str, base: str, why: dict[int, str]
) -> None:
    from dashboard.compare.ladder import climb
    from dashboard.metrics import Estimator, Population
    from dashboard.render_ladder import ladder_text
    from dashboard.store import Store

    population, estimator = Population.parse(arguments.population), Estimator(arguments.estimator)
    print(ladder_text(climb(Store(stores), measured, base, population, estimator), arguments.format, why))


def _runs(commands: Commands) -> None:
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
    from dashboard.render import runs_text

    entries = Catalogue(engine_cli.stores_of(arguments)).entries(verify=not arguments.quick)
    print(runs_text([e for e in entries if arguments.kind in (None, e.kind)], arguments.format))
    return 0


def _doctor(commands: Commands) -> None:
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


if __name__ == "__main__":
    sys.exit(main())
