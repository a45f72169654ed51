"""The commands of ``gapscope``: the engine's commands and those that read numbers off runs, one module per command.

Exit codes: 0 done, 1 a gate of an acceptance contract does not hold or doctor found a fault, 2 bad input, 130
interrupted. Heavy packages are imported by the commands that need them. The commands on hypotheses, saved views and
the server stand in the packages of these.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from dashboard.cli.align import add_align
from dashboard.cli.compare import add_compare
from dashboard.cli.doctor import add_doctor
from dashboard.cli.ladder import add_ladder, show_ladder
from dashboard.cli.report import add_report
from dashboard.cli.runs import add_runs
from dashboard.cli.source import add_source
from dashboard.cli.sweep import add_sweep
from dashboard.cli.tools import add_tools
from dashboard.hypotheses.command import add_hypothesis
from dashboard.saved.command import add_views
from dashboard.serving.command import add_serving
from engine.cli import main as engine_cli
from engine.cli.terminal import run_command


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code."""
    return run_command(build_parser(), None if arguments is None else list(arguments))


def build_parser() -> argparse.ArgumentParser:
    """The parser with every command."""
    parser = argparse.ArgumentParser(
        prog="gapscope",
        description="Which part of the measured LLM serving path does this replay misrepresent?",
        epilog="`gapscope COMMAND --help` explains a command.",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    engine_cli.register(commands, show_ladder)
    add_ladder(commands)
    add_compare(commands)
    add_report(commands)
    add_align(commands)
    add_tools(commands)
    add_sweep(commands)
    add_source(commands)
    add_runs(commands)
    add_hypothesis(commands)
    add_views(commands)
    add_serving(commands)
    add_doctor(commands)
    return parser
