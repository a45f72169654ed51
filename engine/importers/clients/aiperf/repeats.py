"""Statistics across repeated runs (``--num-profile-runs``): figures of their own, with no rows below them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.bundle import Check, Spool
from engine.identity import Identity
from engine.importers.clients.aiperf.families import Family
from engine.importers.clients.aiperf.kinds import Kind
from engine.importers.clients.aiperf.values import count, dig, mapping, text
from engine.importers.clients.reproduce import reported_rows
from engine.importers.clients.run import REPORTED_COLUMNS, ClientRun, seal
from engine.importers.contract import Options
from engine.intake import InputFile, Intake, json_document

_STATISTICS = ("mean", "std", "min", "max", "cv", "se", "ci_low", "ci_high", "t_critical")


def import_repeats(
    family: Family, name: str, version: str | None, intake: Intake, store: Path, options: Options
) -> str:
    """Read the aggregate (and the collated figures) of a multi-run folder; returns the id of the summary."""
    files = [file for kind in (Kind.AGGREGATE, Kind.COLLATED) for file in family.all(kind)]
    run = ClientRun("aiperf", "AIPerf", version, name, Identity(), kind="imported_summary", sources=files)
    run.reported = Spool("reported", REPORTED_COLUMNS, intake.scratch)
    for file in files:
        document = json_document(file)
        for row in _rows(document, file):
            run.reported.append(row)
        run.checks += _complete(document)
    run.not_recorded.append("Single requests: each of the repeated runs is a run of its own.")
    return seal(run, store, options)


def _rows(document: Any, file: InputFile) -> Iterator[dict[str, Any]]:
    runs = count(dig(document, "metadata", "num_successful_runs"))
    level = dig(document, "metadata", "confidence_level")
    definition = f"across runs; ci_low and ci_high at a confidence of {level}" if level is not None else "across runs"
    for name, block in mapping(dig(document, "metrics")).items():
        statistics = {word: dig(block, word) for word in _STATISTICS}
        unit = text(dig(block, "unit"))
        yield from reported_rows("repeats", name, statistics, file.name, unit=unit, definition=definition, n=runs)
    for name, block in mapping(dig(document, "combined")).items():
        statistics = {word: value for word, value in mapping(block).items() if word not in ("unit", "count")}
        unit = text(dig(block, "unit"))
        yield from reported_rows("repeats", name, statistics, file.name, unit=unit, definition="pooled over runs")


def _complete(document: Any) -> Iterator[Check]:
    asked = count(dig(document, "metadata", "num_profile_runs"))
    done = count(dig(document, "metadata", "num_successful_runs"))
    if asked is not None and done is not None:
        yield Check("runs_complete", "pass" if done == asked else "fail", f"{done} of {asked} runs succeeded")
