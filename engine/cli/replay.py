"""The command ``replay``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine import knobs as knob_table
from engine.cli.shared import (
    Commands,
    add_command,
    add_fit_options,
    add_trace_options,
    fit_sources,
    read_as,
    sound_run,
    store_options,
    stores_of,
)
from engine.cli.terminal import ProgressBar, knob_help, knob_values
from engine.errors import GapscopeError

if TYPE_CHECKING:
    from engine.bundle import Bundle
    from engine.traces.tree import Trace


def add_replay(commands: Commands) -> None:
    """Add ``replay`` to an argparse sub-command group."""
    parser = add_command(
        commands,
        "replay",
        "simulate a deployment under a workload and write what happened as a run",
        "What is replayed comes from a run's own record (--like) or from --trace and --set. How long passes take\n"
        "comes from a model (--model), from passes to fit on (--fit), from the recorded passes of --like themselves\n"
        "(--timing measured), from constants (--timing fixed), or is that of the replay which --like names.\n"
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
    add_trace_options(parser)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a knob (see below)")
    parser.add_argument("--timing", choices=("fpm", "measured", "fixed"), help="short for --set timing=...")
    parser.add_argument(
        "--fit", action="append", default=[], metavar="RUN[:PHASE,...]", help="fit the timing on these passes"
    )
    parser.add_argument("--model", type=Path, metavar="FILE", help="a timing model that `gapscope fit` wrote")
    parser.add_argument("--title", help="what people read (the run's id is made from it)")
    parser.add_argument("--dry-run", action="store_true", help="show the resolved knobs and stop")
    add_fit_options(parser)
    parser.set_defaults(run=_replay)


def _replay(arguments: argparse.Namespace) -> int:
    from engine.bundle import measured_runs
    from engine.replay import knobs_from_run, replay, resolve_host_terms, trace_digest
    from engine.timing import build_timing
    from engine.traces import keep_trace

    stores = stores_of(arguments)
    like = sound_run(stores, arguments.like) if arguments.like else None
    base = knobs_from_run(like) if like else {}
    changes = _changes(arguments)
    values = knob_table.resolve(changes, base)
    if not arguments.trace:
        trace_digest(_needed(like, arguments))
    model = _model(arguments, like, stores, values["timing"])
    build_timing(values, model)  # says what is missing before anything is read
    trace = _trace(arguments, like, stores)
    if arguments.dry_run:
        resolved = resolve_host_terms(values, model)
        print(f"trace {trace.name} ({trace.digest[:12]}), {len(trace.plays)} plays")

        def origin(knob: knob_table.Knob) -> str:
            if resolved[knob.name] != values[knob.name]:
                return "as fitted"
            if knob.name in changes:
                return "set"
            return f"from {like.run_id}" if like and knob.name in base else "default"

        print(knob_values(resolved, origin))
        return 0
    is_replay = like is not None and like.kind == "replay"
    bar = ReplayProgress(trace, values)
    try:
        run_id = replay(
            trace,
            values,
            model,
            store=stores[-1],
            title=arguments.title,
            like=_stood_for(like, stores) if like and is_replay else like,
            held=measured_runs(stores),
            parent_run=like.run_id if like and is_replay else None,
            progress=bar.report,
        )
    finally:
        bar.clear()
    if arguments.trace:
        keep_trace(arguments.trace, trace, stores)
    print(run_id)
    return 0


class ReplayProgress(ProgressBar):
    """The progress bar of a replay: its share of the simulated time, or of the turns where there is no deadline."""

    def __init__(self, trace: Trace, values: Mapping[str, Any]) -> None:
        super().__init__("replay")
        self._turns = sum(len(c.turns) for play in trace.plays for c in play.conversations)
        self._before_s = values["warmup_s"]
        self._span_s = values["duration_s"] and values["warmup_s"] + values["duration_s"] + values["grace_s"]

    def report(self, now_ns: int, wall_s: float, passes: int, requests: int) -> None:
        """See :data:`engine.replay.Progress`."""
        now_s = now_ns / 1e9
        share = (now_s + self._before_s) / self._span_s if self._span_s else requests / self._turns
        self.show(share, f"{now_s:,.1f} s simulated in {wall_s:.1f} s, {passes:,} passes, {requests:,} requests")


def _stood_for(replay: Bundle, stores: Sequence[Path]) -> Bundle:
    """The run whose deployment a replay stands for, or the replay itself where that run is not there."""
    from engine.bundle import find_bundle

    try:
        return find_bundle(stores, replay.lineage.get("like") or "")
    except GapscopeError:
        return replay


def _changes(arguments: argparse.Namespace) -> dict[str, Any]:
    changes: dict[str, Any] = {"timing": arguments.timing} if arguments.timing else {}
    for text in arguments.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise GapscopeError(f"--set {text}: expected KEY=VALUE, for example --set lanes=16.")
        changes[name.strip()] = value.strip()
    return changes


def _model(
    arguments: argparse.Namespace, like: Bundle | None, stores: Sequence[Path], timing: str
) -> dict[str, Any] | None:
    """The timing model that was asked for; a replay brings its own."""
    from engine.timing import fit, load_model, model_for

    if timing == "measured":
        if arguments.model or arguments.fit:
            raise GapscopeError("timing=measured takes the recorded passes of --like: leave out --model and --fit.")
        return model_for(like, stores) if like else None
    if timing == "fixed":
        return None

    if arguments.model and arguments.fit:
        raise GapscopeError("--model and --fit both say how long passes take: give one of them.")
    if arguments.model:
        return load_model(arguments.model)
    if arguments.fit:
        return fit(fit_sources(arguments.fit, stores), force=arguments.force)
    return None if like is None else (like.lineage.get("timing") or {}).get("model")


def _needed(like: Bundle | None, arguments: argparse.Namespace) -> Bundle:
    """The run whose workload is replayed where no file is given."""
    if like is None:
        raise GapscopeError("Nothing to replay: give --like RUN, or --trace FILE with the knobs of the deployment.")
    if arguments.nested_timestamps:
        raise GapscopeError(
            "--nested-timestamps says how the file of --trace is read: give both, or leave it out (the trace of --like "
            "is read as it was then)."
        )
    return like


def _trace(arguments: argparse.Namespace, like: Bundle | None, stores: Sequence[Path]) -> Trace:
    from engine.replay import played_trace
    from engine.traces import load_trace
    from engine.traces.cache import TraceCache

    compiled = None if arguments.dry_run else TraceCache(stores[-1])
    if arguments.trace:
        return load_trace(arguments.trace, read_as(arguments), compiled)
    return played_trace(_needed(like, arguments), stores, compiled)
