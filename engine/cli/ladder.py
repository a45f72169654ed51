"""The command ``ladder``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from engine.cli.shared import Commands, add_command, add_fit_options, fit_sources, sound_run, store_options, stores_of
from engine.cli.terminal import ProgressBar
from engine.errors import GapscopeError

if TYPE_CHECKING:
    from engine.bundle import Bundle
    from engine.ladder import BuiltRung, Ladder

Show = Callable[[argparse.Namespace, Sequence[Path], "Ladder"], None]
"""Called with the arguments, the stores and a ladder that was built, in place of listing its runs."""


def add_ladder(commands: Commands, show: Show | None = None) -> None:
    """Add ``ladder`` to an argparse sub-command group; ``show`` says what the rungs tell, once they are built."""
    parser = add_command(
        commands,
        "ladder",
        "build the replays between a prediction and a measured run, one measured layer after the other",
        "Rung 0 is the prediction. Each further rung takes one layer more from the measurement: the pool, when each\n"
        "request was sent, what each reused, how long passes took, who was in each batch. Where the numbers jump\n"
        "between two rungs, the layer in between is wrong. Prints the run of each rung, or why there is none.\n\n"
        "  gapscope ladder ample8 ample8-predicted\n"
        "  gapscope ladder tight8 --fit fpm_sweep --fit tight8:warmup\n"
        "  gapscope ladder tight8 --dry-run",
        parents=[store_options()],
    )
    parser.add_argument("measured", metavar="MEASURED", help="the measured run")
    parser.add_argument("base", nargs="?", metavar="BASE", help="the prediction (default: the only replay of MEASURED)")
    parser.add_argument(
        "--fit", action="append", default=[], metavar="RUN[:PHASE,...]", help="predict first, from these passes"
    )
    parser.add_argument("--dry-run", action="store_true", help="say which rungs can be built, and stop")
    add_fit_options(parser)
    parser.set_defaults(run=lambda arguments: _ladder(arguments, show))


def _ladder(arguments: argparse.Namespace, show: Show | None) -> int:
    from engine.ladder import build_ladder, plan_ladder

    if arguments.base and arguments.fit:
        raise GapscopeError("BASE and --fit both say what the prediction is: give one of them.")
    if arguments.fit and arguments.dry_run:
        raise GapscopeError("--dry-run looks at a prediction that there is: name it instead of --fit.")
    stores = stores_of(arguments)
    measured = sound_run(stores, arguments.measured)
    bar = ProgressBar("ladder")
    try:
        if arguments.fit:
            base = _predict(measured, arguments, stores, bar)
        else:
            base = sound_run(stores, arguments.base or only_replay(measured, stores))
        if arguments.dry_run:
            _print(base.run_id, plan_ladder(measured, base, stores=stores), measured.run_id, built="can be built")
            return 0
        ladder = build_ladder(measured, base, stores=stores, store=stores[-1], progress=bar.show)
    finally:
        bar.clear()
    if show is None:
        _print(base.run_id, ladder.rungs, measured.run_id)
    else:
        show(arguments, stores, ladder)
    return 0


def _predict(measured: Bundle, arguments: argparse.Namespace, stores: Sequence[Path], bar: ProgressBar) -> Bundle:
    """Rung 0: what ``gapscope replay --like MEASURED --fit ...`` makes."""
    from engine import knobs as knob_table
    from engine.bundle import find_bundle, measured_runs
    from engine.replay import knobs_from_run, played_trace, replay, trace_digest
    from engine.timing import fit

    trace_digest(measured)  # says what is missing before anything is fitted
    values = knob_table.resolve({}, knobs_from_run(measured))
    model = fit(fit_sources(arguments.fit, stores), force=arguments.force)
    run_id = replay(
        played_trace(measured, stores),
        values,
        model,
        store=stores[-1],
        like=measured,
        held=measured_runs(stores),
        progress=lambda now_ns, *_: bar.show(None, f"rung 0, {now_ns / 1e9:,.1f} s simulated"),
    )
    return find_bundle(stores, run_id)


def only_replay(measured: Bundle, stores: Sequence[Path]) -> str:
    """The one replay in the stores that predicts the run.

    Raises:
        GapscopeError: there is none, or several.
    """
    from engine.bundle import list_bundles, open_bundle

    found = set()
    for path in (path for store in stores for path in list_bundles(store)):
        try:
            bundle = open_bundle(path)
        except GapscopeError:
            continue  # one that cannot be opened cannot be a prediction
        own = bundle.kind == "replay" and bundle.lineage.get("like") == measured.run_id
        if own and not bundle.lineage.get("rung"):
            found.add(bundle.run_id)
    if len(found) == 1:
        return found.pop()
    if found:
        raise GapscopeError(f"{measured.run_id} has several replays: name one of {', '.join(sorted(found))}.")
    raise GapscopeError(
        f"No replay of {measured.run_id} is in the stores: name the prediction, or the passes to fit one on "
        "(`--fit RUN:warmup`)."
    )


def _print(base: str, rungs: Sequence[BuiltRung], measured: str, built: str = "") -> None:
    from engine.ladder import MEASURED, PREDICTION, RUNGS

    lines = [(PREDICTION, base), *((RUNGS[rung.number], _said(rung, built)) for rung in rungs), (MEASURED, measured)]
    for rung, text in lines:
        print(f"{rung.number}  {rung.name:<24} {text}")


def _said(rung: BuiltRung, built: str) -> str:
    return f"not built: {rung.why}" if rung.why else rung.run_id or built
