"""Measured formats turned into run bundles: one module or package each, registered here (docs/importers.md)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.bundle import working_folder
from engine.errors import GapscopeError
from engine.importers.aisimulate import AISIMULATE
from engine.importers.clients.aiperf import AIPERF
from engine.importers.clients.fw_benchmark import FwBenchmark
from engine.importers.clients.genai_bench import GenAiBench
from engine.importers.clients.guidellm import GuideLlm
from engine.importers.clients.inference_perf import InferencePerf
from engine.importers.clients.inferencex import INFERENCEX
from engine.importers.clients.kv_cache_tester import KvCacheTester
from engine.importers.clients.llmd import LlmdReports
from engine.importers.clients.llmperf import LlmPerf
from engine.importers.clients.llmservingsim import LlmServingSim
from engine.importers.clients.lmbenchmark import LmBenchmark
from engine.importers.clients.sglang_bench import SglangBench
from engine.importers.clients.vllm_bench import VllmBench
from engine.importers.contract import Canceled, Importer, Options, Part, Plan, Use
from engine.importers.exported import Exports
from engine.importers.fpm import FpmImporter, SelfBenchmarks
from engine.importers.joined import join_parts
from engine.importers.kv_events import KvEventImporter
from engine.importers.own_names import with_own_names
from engine.importers.recording import PASS_STREAMS, RECORDINGS, SWEEPS, import_recording, import_sweep
from engine.importers.unknown import hint, reason
from engine.intake import Intake, open_intake

__all__ = [
    "IMPORTERS",
    "Canceled",
    "Importer",
    "Options",
    "Part",
    "Plan",
    "Use",
    "import_any",
    "import_recording",
    "import_sweep",
    "intake_for",
    "plan_import",
]

IMPORTERS: tuple[Importer, ...] = (
    Exports(),
    RECORDINGS,
    SWEEPS,
    PASS_STREAMS,
    FpmImporter(),
    SelfBenchmarks(),
    KvEventImporter(),
    INFERENCEX,
    AIPERF,
    AISIMULATE,
    VllmBench(),
    SglangBench(),
    GuideLlm(),
    GenAiBench(),
    InferencePerf(),
    LlmPerf(),
    LmBenchmark(),
    KvCacheTester(),
    LlmServingSim(),
    FwBenchmark(),
    LlmdReports(),
)
"""In this order: a file that a part of one importer uses or ignores is not shown to the next."""


def plan_import(intake: Intake, join: bool = True) -> Plan:
    """What an input holds, and which files of it nobody uses.

    With ``join``, a client's files and the passes or KV events of its engine in one folder make one run.

    Raises:
        GapscopeError: no importer knows any of it.
    """
    rest, parts = intake, []
    for importer in IMPORTERS:
        for part in importer.find(rest):
            parts.append(part)
            taken = {use.file.name for use in part.uses} | {name for name, _ in part.ignores}
            rest = rest.without(taken)
    if not parts:
        raise GapscopeError(
            f"{intake.path} is in no format that can be imported.{hint(intake)} "
            "`gapscope import --formats` lists those that are known, and what each is told by."
        )
    ignored = [(file.name, reason(file)) for file in rest.files]
    runs = map(with_own_names, join_parts(parts) if join else parts)
    return Plan(intake, tuple(runs), (*ignored, *intake.left_out))


@contextmanager
def intake_for(path: Path, store: Path) -> Iterator[Intake]:
    """What lies at ``path``, on its way into ``store``: archives and rows are spread out on the store's disk.

    Raises:
        GapscopeError: as :func:`engine.intake.open_intake` says, or the store cannot be written.
    """
    with working_folder(Path(store)) as scratch, open_intake(Path(path), scratch) as intake:
        yield intake


def import_any(path: Path, store: Path, **options: Any) -> list[str]:
    """Import every run that ``path`` holds, told by content, into ``store``; returns their ids.

    Options are those of :class:`engine.importers.contract.Options`.

    Raises:
        GapscopeError: nothing there, a format that no importer knows, or as the importer says. Runs that were
            complete by then stay.
    """
    asked = Options(**options)
    with intake_for(path, store) as intake:
        return [part.run(Path(store), asked) for part in plan_import(intake).parts]
