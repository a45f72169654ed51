"""The command ``correct``."""

from __future__ import annotations

import argparse
import sys

from engine import knobs as knob_table
from engine.cli.replay import add_timing_options, changes_of, model_of
from engine.cli.shared import Commands, add_command, fit_sources, sound_run, store_options, stores_of


def add_correct(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "correct",
        "learn bounded factors on a timing from measured passes",
        "What the timing says of passes that were measured is divided into what they took: the median of up to 64\n"
        "newest passes of each kind, in 16 buckets of their size, between 0.5 and 2. A bucket without any is left as\n"
        "it is. Name passes that are not what you want to predict. Nothing is corrected unless a replay names it.\n\n"
        "  gapscope correct warm ample8:warmup --like ample8 --model ample8.timing.json\n"
        "  gapscope replay --like ample8 --model ample8.timing.json --set correction=warm",
        parents=[store_options()],
    )
    parser.add_argument("name", help="what knobs call it")
    parser.add_argument("source", nargs="+", metavar="RUN[:PHASE,...]", help="measured passes to learn on")
    add_timing_options(parser)
    parser.add_argument("--force", action="store_true", help="replace the correction of that name")
    parser.set_defaults(run=_correct)


def _correct(arguments: argparse.Namespace) -> int:
    from engine.deployment import preset_folders
    from engine.replay import knobs_from_run
    from engine.timing import build_timing
    from engine.timing.correction import learn, save_correction
    from engine.timing.notes import circular

    stores = stores_of(arguments)
    like = sound_run(stores, arguments.like) if arguments.like else None
    values = knob_table.resolve(changes_of(arguments), knobs_from_run(like) if like else {}) | {"correction": ""}
    folders = preset_folders(stores, like.lineage.get("timing") if like else None)
    source = build_timing(values, model_of(arguments, like, stores, values), folders)
    correction = learn(source, fit_sources(arguments.source, stores))
    print(save_correction(correction, arguments.name, folders[-1], replace=arguments.force))
    stood_for = like.lineage.get("like") if like and like.kind == "replay" else like and like.run_id
    if stood_for and (note := circular({"correction": correction | {"name": arguments.name}}, stood_for)):
        print(f"Note: {note}", file=sys.stderr)
    for kind, factors in correction["factors"].items():
        said = [f"{f:.3f} ({n})" for f, n in zip(factors, correction["samples"][kind], strict=True) if f is not None]
        print(f"  {kind:<12} {', '.join(said) or 'too few passes: left as it is'}", file=sys.stderr)
    return 0
