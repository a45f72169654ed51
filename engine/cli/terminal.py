"""What the command line shows besides its answer: a progress bar, the table of knobs, and how a command ends."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from engine.errors import GapscopeError, Interrupted
from engine.knobs import GROUPS, KNOBS, Knob

OK, BAD_INPUT, INTERRUPTED = 0, 2, 130
SIGNALS = (signal.SIGINT, signal.SIGTERM)
WIDTH = 100


class ProgressBar:
    """One line on a terminal, drawn over itself; nothing at all unless both outputs are terminals."""

    def __init__(self, what: str, out: TextIO | None = None) -> None:
        self._what = what
        self._out = out or sys.stderr
        self._live = self._out.isatty() and (out is not None or sys.stdout.isatty())
        self._drawn = False

    def show(self, share: float | None, detail: str) -> None:
        """Draw ``share`` (0 to 1; None: unknown) of the work and ``detail`` beside it."""
        if not self._live:
            return
        bar = "" if share is None else "[" + f"{'#' * round(24 * min(max(share, 0), 1)):<24}" + f"] {share:4.0%} "
        self._out.write(f"\r\x1b[2K{self._what} {bar}{detail}")
        self._out.flush()
        self._drawn = True

    def clear(self) -> None:
        """Take the line away."""
        if self._drawn:
            self._out.write("\r\x1b[2K")
            self._out.flush()
            self._drawn = False


def run_command(parser: argparse.ArgumentParser, arguments: list[str] | None = None) -> int:
    """Parse and run a command; returns the exit code.

    0: done. 2: bad input, told in one sentence. 130: interrupted (Ctrl-C; 143: SIGTERM), with nothing half written.
    """
    parsed = parser.parse_args(arguments)
    interrupts: list[int] = []

    def interrupt(number: int, _frame: Any) -> None:
        interrupts.append(number)
        raise Interrupted(number)

    mine = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, interrupt) for number in SIGNALS} if mine else {}
    try:
        code = parsed.run(parsed)
        sys.stdout.flush()
        return int(code or OK)
    except GapscopeError as error:
        print(f"gapscope: {error}", file=sys.stderr)
        return BAD_INPUT
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except (KeyboardInterrupt, Exception) as error:
        if not interrupts and not isinstance(error, KeyboardInterrupt):
            raise
        # A library that was interrupted while it was being imported fails in ways of its own.
        number = interrupts[0] if interrupts else signal.SIGINT
        told = error if isinstance(error, Interrupted) else Interrupted(number)
        print(f"\ngapscope: {told}", file=sys.stderr)
        return 128 + told.number
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def knob_help() -> str:
    """Every knob by group, as ``--help`` shows it."""
    lines = []
    for group, title in GROUPS.items():
        lines.append(f"\n{title}")
        for knob in (k for k in KNOBS if k.group == group):
            lines.append(f"  {knob.name} = {text_of(knob.default)}   {knob.expectation()}")
            lines += textwrap.wrap(knob.help, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines)


def knob_values(values: Mapping[str, Any], origin: Callable[[Knob], str]) -> str:
    """Resolved knobs, one per line, each with where its value came from."""
    lines = []
    for group, title in GROUPS.items():
        lines.append(title)
        for knob in (k for k in KNOBS if k.group == group):
            shown = f"{text_of(values[knob.name])} {knob.unit}".strip()
            lines.append(f"  {knob.name:<30} {shown:<22} {origin(knob)}".rstrip())
    return "\n".join(lines)


def text_of(value: Any) -> str:
    """A knob's value as ``--set`` takes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)
