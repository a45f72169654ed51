"""The ``gapscope`` command; :mod:`dashboard.cli.commands` has its parser."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code.

    Its packages are read here, which takes a second: Ctrl-C meanwhile ends it with a sentence as well.
    """
    try:
        from dashboard.cli.commands import run
    except KeyboardInterrupt:
        print("gapscope: interrupted before the command began: nothing was written.", file=sys.stderr)
        return 130
    return run(arguments)
