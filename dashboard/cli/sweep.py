"""``gapscope sweep`` and ``gapscope sensitivity``: many replays of one run, as the pages of that name have them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dashboard.cli.scope import add_scope
from engine.cli import main as engine_cli
from engine.errors import GapscopeError

if TYPE_CHECKING:
    from dashboard.store import Store
    from dashboard.sweeps.numbers import Played, Scope
    from dashboard.sweeps.plan import Point
    from engine.bundle import Bundle

SWEEP_EPILOG = """\
examples:
  gapscope sweep ample8-predicted --knob lanes=4,8,16
  gapscope sweep ample8-predicted --knob kv_blocks=512:4096:4:log --knob lanes=4,8 --latency tpot.p90
  gapscope sweep ample8-predicted --knob pass_scale=0.9:1.1:5 --set lanes=6 --gate 'ttft.p90<=10%' --format json

Values are a list, or FROM:TO:STEPS (evenly), or FROM:TO:STEPS:log (by equal factors); at most 64 points. Points are
ordinary runs in the last store: one that is there already is not played again. Exit 1 when no point holds the contract.
"""
SENSITIVITY_EPILOG = """\
examples:
  gapscope sensitivity ample8-predicted
  gapscope sensitivity ample8-predicted --number tpot.mean --knob pass_scale --knob lanes --format markdown

One knob at a time, all else as in the base: what two knobs do together is not in it.
"""


def add_sweep(commands: Any) -> None:
    """Add both commands."""
    from dashboard.metrics import SWEEP_NUMBERS, SWEEP_RATES, SWEEP_TAILS
    from dashboard.sweeps.steps import RULE

    parser = _parser(
        commands, "sweep", "replay a run along one knob or over two: a number, and the Pareto front", SWEEP_EPILOG
    )
    parser.add_argument("--knob", action="append", required=True, metavar="KNOB=VALUES", help="one, or two of them")
    parser.add_argument(
        "--number", choices=SWEEP_NUMBERS, default="ttft.p90", metavar="NUMBER", help="beside the front's"
    )
    parser.add_argument("--throughput", choices=SWEEP_RATES, default="output_rate", help="of the front")
    parser.add_argument("--latency", choices=SWEEP_TAILS, default="ttft.p90", metavar="NUMBER", help="of the front")
    parser.set_defaults(run=run_sweep)
    parser = _parser(
        commands, "sensitivity", "which knob moves a gap: each one step down and up", f"{RULE}\n\n{SENSITIVITY_EPILOG}"
    )
    parser.add_argument(
        "--number", choices=SWEEP_NUMBERS, default="ttft.p90", metavar="NUMBER", help="default ttft.p90"
    )
    parser.add_argument(
        "--knob", action="append", default=[], metavar="KNOB", help="one that is varied (default: the usual)"
    )
    parser.set_defaults(run=run_sensitivity)


def _parser(commands: Any, name: str, summary: str, epilog: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[engine_cli.store_options()],
    )
    parser.add_argument("base", metavar="RUN", help="the run to start from: a replay brings its timing model along")
    parser.add_argument("--measured", metavar="RUN", help="what points are held against (default: what RUN stands for)")
    parser.add_argument("--set", action="append", default=[], metavar="KNOB=VALUE", help="changed for every point")
    parser.add_argument("--fit", action="append", default=[], metavar="RUN[:PHASE]", help="passes to fit the timing on")
    parser.add_argument("--format", choices=("table", "markdown", "json"), default="table")
    add_scope(parser)
    return parser


def run_sweep(arguments: argparse.Namespace) -> int:
    """``gapscope sweep``."""
    from dashboard.render.sweep import sweep_text
    from dashboard.sweeps.plan import parse_axis, parse_changes, points

    asked = _Asked(arguments)
    axes = []
    for text in arguments.knob:
        name, _, values = text.partition("=")
        axes.append(parse_axis(name, values))
    if len(axes) > 2:
        raise GapscopeError(f"{len(axes)} knobs to sweep: expected one or two --knob.")
    plan = points(axes, asked.now, parse_changes(" ".join(arguments.set)))
    names = list(dict.fromkeys((arguments.number, arguments.throughput, arguments.latency)))
    found = asked.played(plan, names)
    front = (arguments.throughput, arguments.latency)
    print(sweep_text(asked.store, asked.scope, asked.base.run_id, axes, found, names, front, arguments.format))
    return 0 if not arguments.gate or any(one.holds for one in found) else 1


def run_sensitivity(arguments: argparse.Namespace) -> int:
    """``gapscope sensitivity``."""
    from dashboard.render.sweep import sensitivity_text
    from dashboard.sweeps.effects import effect
    from dashboard.sweeps.plan import parse_changes, point
    from dashboard.sweeps.steps import USUAL, steps

    asked, fixed = _Asked(arguments), parse_changes(" ".join(arguments.set))
    found = steps(arguments.knob or USUAL, asked.now, fixed)
    plan = [point((), fixed, asked.now), *(step.point for step in found.steps)]
    first, *others = asked.played(plan, [arguments.number])
    number, noise = asked.scope.base(asked.store, asked.base.run_id, arguments.number)
    base, target = first.value(arguments.number), number.value
    effects = [
        effect(step, one.run_id, one.value(arguments.number), base, target, noise)
        for step, one in zip(found.steps, others, strict=True)
    ]
    print(
        sensitivity_text(asked.scope, arguments.number, base, number, noise, effects, found.skipped, arguments.format)
    )
    return 0


class _Asked:
    """What both commands begin with: the runs, the knobs, and the points played where they are missing."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        from dashboard.compare.gates import Gate
        from dashboard.jobs.what_if import base_values
        from dashboard.metrics import Estimator, Population, Window
        from dashboard.store import Store
        from dashboard.sweeps.numbers import Scope
        from engine.cli.shared import sound_run

        self.stores: Sequence[Path] = engine_cli.stores_of(arguments)
        self.store: Store = Store(self.stores)
        self.base: Bundle = sound_run(self.stores, arguments.base)
        self.now: dict[str, Any] = base_values(self.base)
        self.fit: list[str] = arguments.fit
        self._gates = [Gate.parse(text) for text in arguments.gate]
        stands_for = self.base.run_id if self.base.kind == "measured" else self.base.lineage.get("like")
        if not (arguments.measured or stands_for):
            raise GapscopeError(f"Run {self.base.run_id} names no measured run: say which one with --measured.")
        measured = sound_run(self.stores, arguments.measured or str(stands_for)).run_id
        population, estimator = Population.parse(arguments.population), Estimator(arguments.estimator)
        self.scope: Scope = Scope(measured, population, estimator, Window(arguments.window))

    def played(self, plan: Sequence[Point], names: Sequence[str]) -> list[Played]:
        """The points with their numbers, after those that are missing were played."""
        from dashboard.jobs import sweep
        from dashboard.sweeps.numbers import played
        from dashboard.sweeps.plan import key_of, record_of
        from engine.cli.terminal import ProgressBar

        bar = ProgressBar("sweep")
        asked = sweep.spec(self.base.run_id, plan, self.fit, self.stores, "")["points"]
        try:
            told = sweep.play(
                self.base.run_id,
                asked,
                self.fit,
                self.stores,
                self.stores[-1],
                lambda done, words, share: bar.show(share, words),
            )
        finally:
            bar.clear()
        if not any(one["run_id"] for one in told):
            raise GapscopeError(" ".join(dict.fromkeys(one["why"] for one in told)) or "No point can be played.")
        made = {key_of(record_of(self.base.run_id, one["changes"], self.fit)): one["run_id"] for one in told}
        known = {key: run_id for key, run_id in made.items() if run_id}
        return played(self.store, known, self.base.run_id, self.fit, plan, self.scope, names, self._gates)
