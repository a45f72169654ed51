"""Gathers a report: the comparisons, the sections, the command that makes it again, and the link to the pages."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

from dashboard.compare import compare
from dashboard.compare.gates import Gate
from dashboard.frame import Frame
from dashboard.report.contents import Report
from dashboard.report.sections import sections
from dashboard.store import Store
from dashboard.view import DEFAULT_PAGE, View
from engine.errors import GapscopeError


def gather(store: Store, shown: Frame, gates: Sequence[Gate] = ()) -> Report:
    """The report on the runs of a frame.

    Raises:
        GapscopeError: there is nothing to compare with, or a run has no requests.
    """
    if not shown.replays:
        raise GapscopeError("A report compares: name at least one run besides the measured one.")
    frame = replace(shown, dark=False)
    measured, scope = frame.measured.run_id, (frame.population, frame.estimator, frame.window)
    found = tuple((side, compare(store, measured, side.run_id, *scope, gates)) for side in frame.replays)
    texts = [gate.text for gate in gates]
    report = Report(frame, found, (), command(frame, texts), permalink(frame, texts))
    return replace(report, sections=tuple(sections(store, report)))


def command(frame: Frame, gates: Sequence[str]) -> str:
    """The command line that writes this report again."""
    words = ["gapscope", "report", *(side.run_id for side in frame.sides), "--population", frame.population.name]
    words += ["--estimator", frame.estimator.value, "--window", frame.window.value]
    for gate in gates:
        words += ["--gate", gate]
    if frame.population.subset == "matched_near":
        words += ["--tolerance", str(frame.population.tolerance_tokens)]
    words += ["--compare-anyway"] if frame.acknowledged else []
    return shlex.join([*words, "--out", "report.html"])


def permalink(frame: Frame, gates: Sequence[str]) -> str:
    """Path and query of the verdict on the pair."""
    population = frame.population
    values = {
        "m": frame.measured.run_id,
        "r": [side.run_id for side in frame.replays],
        "pop": population.subset,
        "tol": population.tolerance_tokens,
        "phase": population.phase,
        "est": frame.estimator.value,
        "win": frame.window.value,
        "ack": frame.acknowledged,
        "gates": " ".join(gates),
    }
    return View(DEFAULT_PAGE, values).link()
