"""The command ``replay``."""

from __future__ import annotations

import argparse
import sys
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
        "(--timing measured), from an anchor of the store (--anchor), from what a named deployment can do\n"
        "(--timing analytic), from constants (fixed), or is that of the replay which --like names.\n"
        "Prints the run's id. Interrupting it writes nothing.\n\n"
        "  gapscope replay --like ample8 --fit fpm_sweep --fit ample8:warmup\n"
        "  gapscope replay --like tight8 --model tight8.timing.json --set kv_blocks=448 --title 'twice the pool'\n"
        "  gapscope replay --like ample8 --anchor toy\n"
        "  gapscope replay --like ample8 --timing analytic --set part=h100-sxm --set model_preset=qwen3-8b\n"
        "  gapscope replay --trace mooncake.jsonl --timing fixed --set lanes=32 --set lane_assignment=cursor\n"
        "  gapscope replay --like ample8 --fit fpm_sweep --dry-run",
        parents=[store_options()],
        epilog="Knobs, for --set KEY=VALUE:\n" + knob_help(),
    )
    parser.add_argument("--trace", type=Path, metavar="FILE", help="the workload (default: that of --like)")
    add_trace_options(parser)
    add_timing_options(parser)
    parser.add_argument("--title", help="what people read (the run's name is made from it, where none is given)")
    parser.add_argument("--name", help="the part of the run's id before its digest, as ample8-12-lanes")
    parser.add_argument("--dry-run", action="store_true", help="show the resolved knobs and stop")
    add_fit_options(parser)
    parser.set_defaults(run=_replay)


def add_timing_options(parser: argparse.ArgumentParser) -> None:
    """The options that say which deployment is replayed, and how long its passes take."""
    parser.add_argument("--like", metavar="RUN", help="replay this run's deployment and workload")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a knob (see below)")
    parser.add_argument("--timing", choices=knob_table.BY_NAME["timing"].choices, help="short for --set timing=...")
    parser.add_argument(
        "--fit", action="append", default=[], metavar="RUN[:PHASE,...]", help="fit the timing on these passes"
    )
    parser.add_argument("--model", type=Path, metavar="FILE", help="a timing model that `gapscope fit` wrote")
    parser.add_argument(
        "--table",
        metavar="NAME|FILE",
        help="a published table of whole passes (`gapscope table`); short for timing=table",
    )
    parser.add_argument("--anchor", metavar="NAME", help="short for --set timing=anchor --set anchor=NAME")


def _replay(arguments: argparse.Namespace) -> int:
    from engine.bundle import checked_slug, measured_runs
    from engine.deployment import changed_presets, memory_notes, preset_folders
    from engine.replay import knobs_from_run, replay, resolve_host_terms, trace_digest
    from engine.timing import build_timing
    from engine.timing.notes import notes_of
    from engine.traces import keep_trace

    name = checked_slug(arguments.name) if arguments.name is not None else None
    stores = stores_of(arguments)
    like = sound_run(stores, arguments.like) if arguments.like else None
    base = knobs_from_run(like) if like else {}
    changes = changes_of(arguments)
    values = knob_table.resolve(changes, base)
    if not arguments.trace:
        trace_digest(_needed(like, arguments))
    model = model_of(arguments, like, stores, values)
    presets = preset_folders(stores, like.lineage.get("timing") if like else None)
    timing = build_timing(values, model, presets)  # says what is missing before anything is read
    stood_for = _stood_for(like, stores) if like and like.kind == "replay" else like
    notes = changed_presets(presets, values) + memory_notes(values, presets)
    if stood_for:
        notes += notes_of(timing.describe(), stood_for.run_id, stood_for.identity)
    for note in notes:
        print(f"Note: {note}", file=sys.stderr)
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
            presets=presets,
            title=arguments.title,
            slug=name,
            like=stood_for,
            held=measured_runs(stores),
            parent_run=like.run_id if like and is_replay else None,
            base=like if is_replay else None,
            progress=bar.report,
        )
    finally:
        bar.clear()
    if arguments.trace:
        keep_trace(arguments.trace, trace, stores)
    if arguments.table:
        _keep_table(arguments.table, stores)
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


def changes_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The knobs that the options set."""
    changes: dict[str, Any] = {"timing": arguments.timing} if arguments.timing else {}
    if arguments.anchor:
        changes |= {"timing": "anchor", "anchor": arguments.anchor}
    if arguments.table:
        changes |= {"timing": "table", "table": _table_name(arguments.table, stores_of(arguments))}
    for text in arguments.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise GapscopeError(f"--set {text}: expected KEY=VALUE, for example --set lanes=16.")
        changes[name.strip()] = value.strip()
    return changes


def model_of(
    arguments: argparse.Namespace, like: Bundle | None, stores: Sequence[Path], values: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The timing model that was asked for; a replay brings its own."""
    from engine.timing import fit, load_model, model_for
    from engine.timing.anchors.selection import anchor_model

    timing = values["timing"]
    if timing == "measured":
        if arguments.model or arguments.fit:
            raise GapscopeError("timing=measured takes the recorded passes of --like: leave out --model and --fit.")
        return model_for(like, stores) if like else None
    if timing in ("fixed", "analytic"):
        return None
    if timing == "anchor" and arguments.fit:
        raise GapscopeError("timing=anchor takes an anchor of the store: leave out --fit.")
    if timing == "table":
        if arguments.model or arguments.fit:
            raise GapscopeError("timing=table takes the passes of a table: leave out --model and --fit.")
        return _table_model(arguments, like, stores)

    if arguments.model and arguments.fit:
        raise GapscopeError("--model and --fit both say how long passes take: give one of them.")
    if arguments.model:
        return load_model(arguments.model)
    if timing == "anchor":
        return anchor_model(values, like, stores)
    if arguments.fit:
        return fit(fit_sources(arguments.fit, stores), force=arguments.force)
    return None if like is None else (like.lineage.get("timing") or {}).get("model")


def _table_model(arguments: argparse.Namespace, like: Bundle | None, stores: Sequence[Path]) -> dict[str, Any] | None:
    """The table that was named, held against the deployment of ``like``; a replay of one brings its own."""
    from engine.timing.anchors.target import of_run
    from engine.timing.tables import table_model

    name = arguments.table or changes_of(arguments).get("table")
    if name:
        return table_model(name, stores, of_run(like.identity) if like else None, force=arguments.force)
    return None if like is None else (like.lineage.get("timing") or {}).get("model")


def _table_name(text: str, stores: Sequence[Path]) -> str:
    """The name of a table in the store: what knobs and links say, also of a file."""
    from engine.timing.tables import find_table

    path, which = find_table(text, stores)
    return path.stem + ("" if which is None else f"#{which + 1}")


def _keep_table(text: str, stores: Sequence[Path]) -> None:
    """Copy a table that was given as a file into the store, where its name means it from now on."""
    from engine.timing.tables import find_table, keep, table_names

    path, _ = find_table(text, stores)
    if path.stem not in table_names(stores):
        keep(path, stores[-1])


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
