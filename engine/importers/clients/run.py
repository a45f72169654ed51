"""A run as a load generator's files tell it, on its way into a bundle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.bundle import BundleWriter, Check, Phase, Spool, slugify
from engine.identity import Identity
from engine.importers.clients.checks import standard_checks
from engine.importers.contract import Options
from engine.intake import BadRows, InputFile

REPORTED_COLUMNS = (
    "scope",
    "slice_start_ns",
    "slice_end_ns",
    "name",
    "labels",
    "unit",
    "statistic",
    "value",
    "n",
    "metric",
    "definition",
    "source",
)


@dataclass
class ClientRun:
    """What an importer found. Times in spools may be absolute: ``origin_ns`` is profile start on their clock."""

    format: str
    tool: str
    version: str | None
    name: str
    identity: Identity
    kind: str = "measured"
    title: str | None = None
    requests: Spool | None = None
    chunks: Spool | None = None
    passes: Spool | None = None
    admissions: Spool | None = None
    reported: Spool | None = None
    telemetry: Spool | None = None
    phases: list[Phase] = field(default_factory=list)
    """In nanoseconds from profile start."""
    origin_ns: int = 0
    profile_start_unix_ns: int | None = None
    never_issued: int | None = None
    checks: list[Check] = field(default_factory=list)
    """The importer's own; those that every run gets are added when it is sealed."""
    not_recorded: list[str] = field(default_factory=list)
    """What the format lacks, a sentence each."""
    sources: list[InputFile] = field(default_factory=list)
    bad: BadRows = field(default_factory=BadRows)
    lineage: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else tells where the run comes from."""
    clocks: Mapping[str, str] = field(default_factory=dict)

    def define(self, source: str, **definitions: str | None) -> None:
        """Set fields of the identity group ``definitions`` (words of :mod:`engine.definitions`); None is unknown."""
        for name, words in definitions.items():
            if words is not None:
                self.identity.set("definitions", name, words, source)

    def know(self, source: str, facts: Iterable[tuple[str, str, Any]]) -> None:
        """Set identity fields (group, field, value) read from ``source``; None is unknown and left out."""
        for group, name, value in facts:
            if value is not None:
                self.identity.set(group, name, value, source)


def seal(run: ClientRun, store: Path, options: Options) -> str:
    """Write the run into ``store``; returns its id.

    Raises:
        GapscopeError: as :class:`engine.bundle.BundleWriter` says.
    """
    options.step(None, "writing the run")
    run.know(f"format {run.format}", [("client", "generator", run.tool), ("client", "version", run.version)])
    tables = {
        "requests": run.requests,
        "passes": run.passes,
        "admissions": run.admissions,
        "chunks": run.chunks,
        "reported": run.reported,
        "telemetry": run.telemetry,
    }
    checks = [*standard_checks(run.requests, run.phases, run.origin_ns, run.bad), *run.checks]
    title = options.title or run.title or run.name
    with BundleWriter(store, run.kind, slugify(run.name), title, run.identity) as writer:
        for name, spool in tables.items():
            if spool is not None and (spool.rows or name == "requests"):
                writer.write_table(name, spool.batches(run.origin_ns))
        return writer.seal(
            phases=run.phases,
            never_issued=run.never_issued,
            lineage={
                "format": run.format,
                "tool": run.tool,
                "tool_version": run.version,
                "source_files": {file.name: file.sha256 for file in run.sources},
                "rows_left_out": run.bad.count,
                "not_recorded": list(run.not_recorded),
                **run.lineage,
            },
            qualification=checks,
            profile_start_unix_ns=run.profile_start_unix_ns,
            clocks=run.clocks,
        )
