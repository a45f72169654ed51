"""The commands that need no dashboard: from import and replay to parity, parts, models and deployments.

``python -m engine.cli COMMAND`` runs them alone; the ``gapscope`` entry point has them beside its own.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from engine.cli.anchors import add_anchor
from engine.cli.attaching import add_attach
from engine.cli.correcting import add_correct
from engine.cli.deployment import add_deployment
from engine.cli.exporting import add_export
from engine.cli.importing import add_import
from engine.cli.ladder import Show, add_ladder
from engine.cli.presets import add_presets
from engine.cli.recording import add_record
from engine.cli.replay import add_replay
from engine.cli.shared import (
    Commands,
    add_command,
    add_fit_options,
    add_trace_options,
    fit_sources,
    read_as,
    say_checks,
    sound_run,
    store_options,
    stores_of,
)
from engine.cli.tables import add_table
from engine.cli.terminal import run_command

__all__ = ["main", "register", "store_options", "stores_of"]

# Commands import what they need when they run, so that `--help` and `runs` answer at once.


def register(commands: Commands, show_ladder: Show | None = None) -> None:
    """Add the engine's commands to an argparse sub-command group; ``show_ladder`` is called after one was built."""
    for add in (add_record, add_import, add_attach, add_export, _add_fit, add_correct, add_replay):
        add(commands)
    add_ladder(commands, show_ladder)
    for add in (_add_parity, _add_trace, add_table, add_presets, add_deployment, add_anchor):
        add(commands)


# -- fit -------------------------------------------------------------------------------------------------------


def _add_fit(commands: Commands) -> None:
    parser = add_command(
        commands,
        "fit",
        "fit a timing model on measured passes and keep it as a file",
        "A source is a run or sweep, or some phases of one. A sweep says how passes compare, a run how fast the\n"
        "machine was. Only the passes named here are used; the error shown is that of passes held out.\n\n"
        "  gapscope fit fpm_sweep ample8:warmup --out ample8.timing.json\n"
        "  gapscope replay --like ample8 --model ample8.timing.json",
        parents=[store_options()],
    )
    parser.add_argument("source", nargs="+", metavar="RUN[:PHASE,...]", help="passes to fit on")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the model goes")
    add_fit_options(parser)
    parser.set_defaults(run=_fit)


def _fit(arguments: argparse.Namespace) -> int:
    from engine.timing import fit, save_model

    model = fit(fit_sources(arguments.source, stores_of(arguments)), force=arguments.force)
    print(save_model(model, arguments.out))
    print(_held_out(model), file=sys.stderr)
    return 0


def _held_out(model: dict[str, Any]) -> str:
    lines = [f"mixed passes composed by {model['composition']}; error of held-out passes:"]
    for name, error in model["holdout"][model["composition"]]["by_class"].items():
        if error["passes"]:
            lines.append(
                f"  {name:<12} {error['passes']:>6} passes   {100 * error['mape']:5.1f} % each   "
                f"{100 * error['total']:+6.1f} % in sum"
            )
    for source in model["lineage"]["sources"]:
        if cold := source["left_out"].get("primer"):
            lines.append(f"{source['run_id']}: {cold:,} cold passes were left out; :primer behind its name uses them")
    return "\n".join(lines)


# -- parity ----------------------------------------------------------------------------------------------------


def _add_parity(commands: Commands) -> None:
    parser = add_command(
        commands,
        "parity",
        "check the scheduler against the recorded batches of a run",
        "Compares every batch (who, in which order, tokens computed before, tokens scheduled) and every stored and\n"
        "removed block. What decides who came when:\n"
        "  arrival   the pass at which the engine took each recorded request; for both cores\n"
        "  dispatch  when the client sent it, and an estimated way to the engine; says why a pass differs, then goes\n"
        "            on from the recorded state\n"
        "  loop      nothing: the trace in a closed loop, with recorded durations by geometry; says where they part\n"
        "Exit code 1: by arrival, a core differs from the recording. The other two inform.\n\n"
        "  gapscope parity tight8\n"
        "  gapscope parity tight8 --core plain\n"
        "  gapscope parity tight8 --by dispatch --show 5",
        parents=[store_options()],
    )
    parser.add_argument("name", metavar="RUN", help="a measured run with recorded batches")
    parser.add_argument("--core", choices=("plain", "skipping", "both"), default="both", help="default: both")
    parser.add_argument(
        "--by", choices=("arrival", "dispatch", "loop", "all"), default="arrival", help="default: arrival"
    )
    parser.add_argument(
        "--show", type=int, default=1, metavar="N", help="passes to show of those that differ by dispatch (default: 1)"
    )
    parser.set_defaults(run=_parity)


def _parity(arguments: argparse.Namespace) -> int:
    from engine.parity import check_by_dispatch, check_closed_loop, check_parity
    from engine.replay import played_trace

    stores, by = stores_of(arguments), arguments.by
    bundle = sound_run(stores, arguments.name)
    if any(check.verdict == "fail" for check in bundle.qualification):
        say_checks(bundle)
    exact = True
    if by in ("arrival", "all"):
        for core in ("plain", "skipping") if arguments.core == "both" else (arguments.core,):
            result = check_parity(bundle, core)
            print(result.describe())
            exact &= result.exact
    if by in ("dispatch", "all"):
        print(check_by_dispatch(bundle).describe(arguments.show))
    if by in ("loop", "all"):
        print(check_closed_loop(bundle, played_trace(bundle, stores)).describe())
    return 0 if exact else 1


# -- trace -----------------------------------------------------------------------------------------------------


def _add_trace(commands: Commands) -> None:
    parser = add_command(
        commands,
        "trace",
        "say what is in a workload",
        "  gapscope trace inspect mooncake.jsonl\n  gapscope trace inspect trace.jsonl",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    inspect = actions.add_parser("inspect", help="count plays, turns and tokens, and what could be reused of them")
    inspect.add_argument("file", type=Path)
    add_trace_options(inspect)
    inspect.set_defaults(run=_inspect)


def _inspect(arguments: argparse.Namespace) -> int:
    from engine.traces import load_trace
    from engine.workload.summary import describe

    print(describe(load_trace(arguments.file, read_as(arguments))))
    return 0


def main(arguments: list[str] | None = None) -> int:
    """The engine's command line."""
    parser = argparse.ArgumentParser(
        prog="gapscope", description="Replay LLM serving workloads and keep the runs as bundles."
    )
    register(parser.add_subparsers(dest="command", required=True, metavar="COMMAND"))
    return run_command(parser, arguments)
