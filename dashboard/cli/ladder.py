"""``gapscope ladder``: what the numbers do from rung to rung; the rungs are built by the engine's command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.cli import main as engine_cli

if TYPE_CHECKING:
    from engine.ladder import Ladder


def add_ladder(commands: Any) -> None:
    """Add what the numbers do from rung to rung, after the engine's command has built them, or without building."""
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
    from dashboard.render.ladder import ladder_text
    from dashboard.store import Store

    population, estimator = Population.parse(arguments.population), Estimator(arguments.estimator)
    print(ladder_text(climb(Store(stores), measured, base, population, estimator), arguments.format, why))
