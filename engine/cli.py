"""The commands that need no dashboard: import, fit, replay, parity, trace.

``python -m engine.cli COMMAND`` runs them alone; the ``gapscope`` entry point has them beside its own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine import knobs as knob_table
from engine.errors import GapscopeError
from engine.stores import VARIABLE, default_stores
from engine.terminal import ProgressBar, knob_help, knob_values, run_command

if TYPE_CHECKING:
    from engine.bundle import Bundle
    from engine.timing import FitSource
    from engine.traces.tree import Trace

Commands = Any  # argparse has no public name for what add_subparsers returns

# Commands import what they need when they run, so that `--help` and `runs` answer at once.


def store_options() -> argparse.ArgumentParser:
    """The options that say where runs lie, for ``parents=[...]`` of a command."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument(
        "--store",
        action="append",
        type=Path,
        metavar="FOLDER",
        help=f"a folder of runs; repeat it for several, the last gets new runs (default: {VARIABLE}, "
        "else the sample runs and ./runs)",
    )
    return parser


def stores_of(arguments: argparse.Namespace) -> list[Path]:
    """The folders of runs that a command looks at; new runs go into the last."""
    return arguments.store or default_stores()


def register(commands: Commands) -> None:
    """Add the engine's commands to an argparse sub-command group."""
    for add in (_add_import, _add_fit, _add_replay, _add_parity, _add_trace):
        add(commands)


def _command(commands: Commands, name: str, summary: str, text: str, **options: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.\n\n{text}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **options,
    )
    return parser


# -- import ----------------------------------------------------------------------------------------------------


def _add_import(commands: Commands) -> None:
    parser = _command(
        commands,
        "import",
        "turn recordings into run bundles",
        "The format is told by the content. Rows that cannot be used are an error, unless they are to be skipped;\n"
        "then they are counted and named in the run.\n\n"
        "  gapscope import recordings/ample8 recordings/fpm_sweep\n"
        "  gapscope import recordings/ample8 --trace trace.jsonl --store my_runs",
        parents=[store_options()],
    )
    parser.add_argument("path", nargs="+", type=Path, help="a recording: a folder or a file")
    parser.add_argument("--trace", type=Path, help="the workload that was played, where it is not beside the recording")
    parser.add_argument("--title", help="what people read")
    parser.add_argument("--skip-bad-rows", action="store_true", help="leave out rows that cannot be used")
    parser.set_defaults(run=_import)


def _import(arguments: argparse.Namespace) -> int:
    from engine.importers import import_any

    store = stores_of(arguments)[-1]
    options = {"trace": arguments.trace, "title": arguments.title, "skip_bad_rows": arguments.skip_bad_rows}
    for path in arguments.path:
        print(import_any(path, store, **options), flush=True)
    return 0


# -- fit -------------------------------------------------------------------------------------------------------


def _add_fit(commands: Commands) -> None:
    parser = _command(
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
    _add_fit_options(parser)
    parser.set_defaults(run=_fit)


def _add_fit_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--force", action="store_true", help="pool passes of deployments that are known to differ")


def _fit(arguments: argparse.Namespace) -> int:
    from engine.timing import fit, save_model

    model = fit(_fit_sources(arguments.source, stores_of(arguments)), force=arguments.force)
    print(save_model(model, arguments.out))
    print(_held_out(model), file=sys.stderr)
    return 0


def _fit_sources(texts: Sequence[str], stores: Sequence[Path]) -> list[FitSource]:
    from engine.bundle import find_bundle
    from engine.timing import FitSource

    sources = []
    for text in texts:
        run, _, phases = text.partition(":")
        sources.append(FitSource(find_bundle(stores, run), tuple(phases.split(",")) if phases else None))
    return sources


def _held_out(model: dict[str, Any]) -> str:
    lines = [f"mixed passes composed by {model['composition']}; error of held-out passes:"]
    for name, error in model["holdout"][model["composition"]]["by_class"].items():
        if error["passes"]:
            lines.append(
                f"  {name:<12} {error['passes']:>6} passes   {100 * error['mape']:5.1f} % each   "
                f"{100 * error['total']:+6.1f} % in sum"
            )
    return "\n".join(lines)


# -- replay ----------------------------------------------------------------------------------------------------


def _add_replay(commands: Commands) -> None:
    parser = _command(
        commands,
        "replay",
        "simulate a deployment under a workload and write what happened as a run",
        "What is replayed comes from a measured run's own record (--like) or from --trace and --set. How long\n"
        "passes take comes from a model (--model), from passes to fit on (--fit), or from constants (--timing fixed).\n"
        "Prints the run's id. Interrupting it writes nothing.\n\n"
        "  gapscope replay --like ample8 --fit fpm_sweep --fit ample8:warmup\n"
        "  gapscope replay --like tight8 --model tight8.timing.json --set kv_blocks=448 --title 'twice the pool'\n"
        "  gapscope replay --trace mooncake.jsonl --timing fixed --set lanes=32 --set lane_assignment=cursor\n"
        "  gapscope replay --like ample8 --fit fpm_sweep --dry-run",
        parents=[store_options()],
        epilog="Knobs, for --set KEY=VALUE:\n" + knob_help(),
    )
    parser.add_argument("--like", metavar="RUN", help="replay this run's deployment and workload")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="the workload (default: that of --like)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a knob (see below)")
    parser.add_argument("--timing", choices=("fpm", "fixed"), help="short for --set timing=...")
    parser.add_argument(
        "--fit", action="append", default=[], metavar="RUN[:PHASE,...]", help="fit the timing on these passes"
    )
    parser.add_argument("--model", type=Path, metavar="FILE", help="a timing model that `gapscope fit` wrote")
    parser.add_argument("--title", help="what people read (the run's id is made from it)")
    parser.add_argument("--dry-run", action="store_true", help="show the resolved knobs and stop")
    _add_fit_options(parser)
    parser.set_defaults(run=_replay)


def _replay(arguments: argparse.Namespace) -> int:
    from engine.bundle import find_bundle, measured_runs
    from engine.replay import knobs_from_run, replay, resolve_host_terms
    from engine.timing import build_timing

    stores = stores_of(arguments)
    like = find_bundle(stores, arguments.like) if arguments.like else None
    base = knobs_from_run(like) if like else {}
    changes = _changes(arguments)
    values = knob_table.resolve(changes, base)
    model = _model(arguments, stores) if values["timing"] == "fpm" else None
    build_timing(values, model)  # says what is missing before anything is read
    trace = _trace(arguments.trace, like, stores)
    if arguments.dry_run:
        resolved = resolve_host_terms(values, model)
        print(f"trace {trace.name} ({trace.digest[:12]}), {len(trace.plays)} plays")

        def origin(knob: knob_table.Knob) -> str:
            if knob.name in changes:
                return "set"
            if resolved[knob.name] != values[knob.name]:
                return "as fitted"
            return f"from {like.run_id}" if like and knob.name in base else "default"

        print(knob_values(resolved, origin))
        return 0
    bar = ProgressBar("replay")
    total_turns = sum(len(c.turns) for play in trace.plays for c in play.conversations)
    span_s = values["duration_s"] and values["warmup_s"] + values["duration_s"] + values["grace_s"]

    def progress(now_ns: int, wall_s: float, passes: int, requests: int) -> None:
        share = (now_ns / 1e9 + values["warmup_s"]) / span_s if span_s else requests / total_turns
        bar.show(share, f"{now_ns / 1e9:,.1f} s simulated in {wall_s:.1f} s, {passes:,} passes, {requests:,} requests")

    try:
        run_id = replay(
            trace,
            values,
            model,
            store=stores[-1],
            title=arguments.title,
            like=like,
            held=measured_runs(stores),
            progress=progress,
        )
    finally:
        bar.clear()
    print(run_id)
    return 0


def _changes(arguments: argparse.Namespace) -> dict[str, Any]:
    changes: dict[str, Any] = {"timing": arguments.timing} if arguments.timing else {}
    for text in arguments.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise GapscopeError(f"--set {text}: expected KEY=VALUE, for example --set lanes=16.")
        changes[name.strip()] = value.strip()
    return changes


def _model(arguments: argparse.Namespace, stores: Sequence[Path]) -> dict[str, Any] | None:
    from engine.timing import fit, load_model

    if arguments.model and arguments.fit:
        raise GapscopeError("--model and --fit both say how long passes take: give one of them.")
    if arguments.model:
        return load_model(arguments.model)
    if arguments.fit:
        return fit(_fit_sources(arguments.fit, stores), force=arguments.force)
    return None


def _trace(path: Path | None, like: Bundle | None, stores: Sequence[Path]) -> Trace:
    from engine.traces import find_trace, load_trace

    if path is not None:
        return load_trace(path)
    if like is None:
        raise GapscopeError("Nothing to replay: give --like RUN, or --trace FILE with the knobs of the deployment.")
    digest = like.identity.value("trace", "digest")
    if not digest:
        raise GapscopeError(f"The identity of {like.run_id} does not say which trace was played: give --trace FILE.")
    return load_trace(find_trace(stores, digest))


# -- parity ----------------------------------------------------------------------------------------------------


def _add_parity(commands: Commands) -> None:
    parser = _command(
        commands,
        "parity",
        "check the scheduler against the recorded batches of a run",
        "Feeds a core with the pass at which each recorded request arrived, and compares every batch (who, in which\n"
        "order, tokens computed before, tokens scheduled) and every stored and removed block.\n"
        "Exit code 1: the core differs from the recording.\n\n"
        "  gapscope parity tight8\n"
        "  gapscope parity tight8 --core plain",
        parents=[store_options()],
    )
    parser.add_argument("name", metavar="RUN", help="a measured run with recorded batches")
    parser.add_argument("--core", choices=("plain", "skipping", "both"), default="both", help="default: both")
    parser.set_defaults(run=_parity)


def _parity(arguments: argparse.Namespace) -> int:
    from engine.bundle import find_bundle
    from engine.parity import check_parity

    bundle = find_bundle(stores_of(arguments), arguments.name)
    exact = True
    for core in ("plain", "skipping") if arguments.core == "both" else (arguments.core,):
        result = check_parity(bundle, core)
        blocks = "cache events not recorded"
        if result.stored is not None:
            blocks = (
                f"stored {result.stored_equal:,} of {result.stored:,}, removed {result.removed_equal:,} of "
                f"{result.removed:,} blocks equal in order"
            )
        print(f"{core:<9} {result.equal_passes:,} of {result.passes:,} passes equal; {blocks}")
        if result.first_divergence is not None:
            print(result.first_divergence.describe())
        exact &= result.exact
    return 0 if exact else 1


# -- trace -----------------------------------------------------------------------------------------------------


def _add_trace(commands: Commands) -> None:
    parser = _command(
        commands,
        "trace",
        "say what is in a workload",
        "  gapscope trace inspect mooncake.jsonl\n  gapscope trace inspect trace.jsonl",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    inspect = actions.add_parser("inspect", help="count plays, turns and tokens, and what could be reused of them")
    inspect.add_argument("file", type=Path)
    inspect.set_defaults(run=_inspect)


def _inspect(arguments: argparse.Namespace) -> int:
    from engine.traces import load_trace
    from engine.workload.summary import describe

    print(describe(load_trace(arguments.file)))
    return 0


def main(arguments: list[str] | None = None) -> int:
    """The engine's command line."""
    parser = argparse.ArgumentParser(
        prog="gapscope", description="Replay LLM serving workloads and keep the runs as bundles."
    )
    register(parser.add_subparsers(dest="command", required=True, metavar="COMMAND"))
    return run_command(parser, arguments)


if __name__ == "__main__":
    sys.exit(main())
