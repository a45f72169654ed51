"""What the engine's commands share: where runs lie, how a run or the passes of one are named."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.stores import VARIABLE, default_stores

if TYPE_CHECKING:
    from engine.bundle import Bundle
    from engine.timing import FitSource

Commands = Any  # argparse has no public name for what add_subparsers returns


def add_command(commands: Commands, name: str, summary: str, text: str, **options: Any) -> argparse.ArgumentParser:
    """A command with its one-line summary and a longer text with examples."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.\n\n{text}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **options,
    )
    return parser


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


def add_fit_options(parser: argparse.ArgumentParser) -> None:
    """The options of everything that fits a timing model."""
    parser.add_argument("--force", action="store_true", help="pool passes of deployments that are known to differ")


def add_trace_options(parser: argparse.ArgumentParser) -> None:
    """The options that decide what a trace format leaves open."""
    parser.add_argument(
        "--nested-timestamps",
        choices=("auto", "absolute", "relative"),
        help="Weka sessions: times inside subagents count from the beginning of the session (absolute) or of the "
        "subagent (relative); auto, the default, tells by requests that would come before their subagent",
    )


def read_as(arguments: argparse.Namespace) -> dict[str, str]:
    """What those options say, for :func:`engine.traces.load_trace`."""
    return {"nested_timestamps": arguments.nested_timestamps} if arguments.nested_timestamps else {}


def sound_run(stores: Sequence[Path], ref: str) -> Bundle:
    """The run that ``ref`` means.

    Raises:
        GapscopeError: there is none, or it was altered since it was sealed.
    """
    from engine.bundle import find_bundle

    bundle = find_bundle(stores, ref)
    bundle.require_intact()
    return bundle


def say_checks(bundle: Bundle, always: Collection[str] = ()) -> None:
    """Say on stderr how many of a run's checks passed, and the detail of those that failed or that ``always`` names."""
    verdicts = [check.verdict for check in bundle.qualification]
    rest = "".join(
        f", {verdicts.count(verdict)} {word}"
        for verdict, word in (("fail", "failed"), ("unknown", "unknown"))
        if verdict in verdicts
    )
    print(f"{bundle.run_id}: {verdicts.count('pass')} of {len(verdicts)} checks passed{rest}", file=sys.stderr)
    for check in bundle.qualification:
        if check.verdict == "fail" or check.check in always:
            print(f"  {check.verdict} {check.check}: {check.detail}", file=sys.stderr)


def fit_sources(texts: Sequence[str], stores: Sequence[Path]) -> list[FitSource]:
    """The passes that texts like ``RUN`` and ``RUN:warmup,profile`` mean."""
    from engine.timing import FitSource

    sources = []
    for text in texts:
        run, _, phases = text.partition(":")
        sources.append(FitSource(sound_run(stores, run), tuple(phases.split(",")) if phases else None))
    return sources
