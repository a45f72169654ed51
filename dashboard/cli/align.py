"""``gapscope align``: the rungs from reproducing a prediction to its numbers end to end, each with its own verdict."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.cli import main as engine_cli
from engine.errors import GapscopeError

if TYPE_CHECKING:
    from engine.bundle import Bundle
    from engine.replay.again import Again

EPILOG = """\
examples:
  gapscope align ample8 --replay ample8-predicted
  gapscope align ample8 --replay ample8-predicted --tolerance 8 --format markdown > review.md
  gapscope align run1 --replay run1-predicted --engine-log vllm.log --part h100-sxm --model-preset qwen3-8b

rungs, each of which compares neighbours only:
  1 reproduce                the same config gives the same tables
  2 consistency arithmetic   lanes, Little's law, tokens, rate, time in passes; requests in flight on both sides
  3 memory ledger            component by component beside the engine's own figures
  4 per-role benches         passes by class at the measured geometry
  5 end to end               the numbers of the whole

A rung above one that fails is not to be read yet. Exit 1 when a rung fails.
"""


def add_align(commands: Any) -> None:
    """Add the command."""
    from dashboard.metrics import Estimator

    parser = commands.add_parser(
        "align",
        help="find a gap rung by rung: reproduce, arithmetic, memory, passes by role, end to end",
        description="Hold a replay against a measured run layer by layer, from the bottom. Each rung keeps its own "
        "verdict with figures and bounds, or says what would be needed for one.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[engine_cli.store_options()],
    )
    parser.add_argument("measured", metavar="RUN", help="the measured run")
    parser.add_argument("--replay", metavar="REPLAY", help="the prediction (default: the only replay of RUN)")
    parser.add_argument("--quick", action="store_true", help="do not play the replay again: rung 1 is not judged")
    parser.add_argument(
        "--tolerance",
        type=float,
        default=5.0,
        metavar="PERCENT",
        help="how far a figure may be off, unless the noise is more (default 5)",
    )
    parser.add_argument(
        "--engine-log", type=Path, metavar="FILE", help="what the engine wrote while starting; its figures are kept"
    )
    parser.add_argument("--part", default="", help="the GPU's preset, where the replay's knobs name none")
    parser.add_argument("--model-preset", default="", help="the model's preset, where the replay's knobs name none")
    parser.add_argument("--ahead", action="store_true", help="show the figures of rungs that are not to be read yet")
    parser.add_argument("--anyway", action="store_true", help="judge rung 5 of runs that are not like for like")
    parser.add_argument("--format", choices=("table", "markdown", "json"), default="table")
    parser.add_argument("--population", default="profile", metavar="PHASE[.SUBSET]", help="as for compare")
    parser.add_argument("--estimator", choices=[e.value for e in Estimator], default="linear", help="of percentiles")
    parser.set_defaults(run=run_align)


def run_align(arguments: argparse.Namespace) -> int:
    """``gapscope align``."""
    from dashboard.compare.align import Presets, align
    from dashboard.metrics import Estimator, Population
    from dashboard.render.align import alignment_text
    from dashboard.store import Store
    from engine.cli.ladder import only_replay
    from engine.cli.shared import sound_run

    stores = engine_cli.stores_of(arguments)
    measured = sound_run(stores, arguments.measured)
    replay = sound_run(stores, arguments.replay or only_replay(measured, stores))
    if arguments.engine_log:
        _keep_log(arguments.engine_log, measured.run_id, stores)
    found = align(
        Store(stores),
        measured.run_id,
        replay.run_id,
        again=None if arguments.quick else _again(replay, stores),
        population=Population.parse(arguments.population),
        estimator=Estimator(arguments.estimator),
        tolerance=arguments.tolerance / 100,
        presets=Presets(arguments.part, arguments.model_preset),
        acknowledged=arguments.anyway,
    )
    print(alignment_text(found, arguments.format, arguments.ahead))
    return 1 if found.first_failed else 0


def _keep_log(path: Path, run_id: str, stores: Sequence[Path]) -> None:
    from engine.deployment.engine_log import read_memory_log
    from engine.deployment.kept_log import keep_memory_log

    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            log = read_memory_log(lines)
    except OSError as problem:
        raise GapscopeError(f"{path} cannot be read: {problem.strerror}.") from None
    keep_memory_log(log, run_id, stores[-1])


def _again(replay: Bundle, stores: Sequence[Path]) -> Again | None:
    """What comes of playing the replay again; None where its record does not say how, which the rung then says."""
    from engine.cli.terminal import ProgressBar
    from engine.replay.again import replay_again, why_not
    from engine.traces import find_trace

    if why_not(replay):
        return None
    try:
        find_trace(stores, str(replay.identity.value("trace", "digest")))
    except GapscopeError:
        return None
    bar = ProgressBar("again")
    try:
        return replay_again(
            replay,
            stores,
            lambda now_ns, *_: bar.show(None, f"playing it again, {now_ns / 1e9:,.1f} s simulated"),
        )
    finally:
        bar.clear()
