"""InferenceX results as parts of an import: one per object, whether alone in its file or one of a list."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from engine import definitions as words
from engine.bundle import spooled
from engine.errors import GapscopeError
from engine.identity import Identity
from engine.importers.clients.inferencex import header
from engine.importers.clients.inferencex.figures import FIXED, FLAT, agentic_rows, flat_rows
from engine.importers.clients.inferencex.validity import agentic_checks, common_checks, fixed_checks
from engine.importers.clients.run import REPORTED_COLUMNS, ClientRun, seal
from engine.importers.clients.values import dig, first_keys
from engine.importers.contract import NO_ROWS, Options, Part, Use
from engine.intake import InputFile, Intake, json_document
from engine.intake.rows import number

TOOL = "InferenceX"
MAX_BYTES = 64 << 20
"""A list of results that is larger than this is not one."""
_ROWS = (b'"x_request_id"', b'"benchmark_phase"')
_SPAN = "last end - first start of successful requests"


@dataclass(frozen=True)
class Shape:
    """A kind of result: what tells it, and how it is read."""

    words: str
    keys: frozenset[str]
    any_of: frozenset[str]
    rows: Callable[[dict[str, Any], str], Iterator[dict[str, Any]]]
    checks: Callable[[dict[str, Any], list[dict[str, Any]]], Iterator[Any]]
    definitions: dict[str, str]

    def fits(self, keys: Any) -> bool:
        """Whether an object with these keys is of this kind."""
        return self.keys <= set(keys) and (not self.any_of or bool(self.any_of & set(keys)))


_AIPERF = {
    "first_token": words.FIRST_CONTENT,
    "end_of_latency": words.END_CONTENT,
    "token_source": words.TOKENS_USAGE,
    "tpot": words.TPOT_OURS,
    "itl": words.ITL_NONE,
    "percentiles": words.PERCENTILES_LINEAR,
    "throughput_denominator": _SPAN,
    "zero_output": "an error, dropped",
    "stream_errors": words.STREAM_ERROR_SUCCESS,
}
SHAPES = (
    Shape(
        "agentic replay (AgentX)",
        frozenset(("hw", "request_accounting", "request_metrics")),
        frozenset(),
        agentic_rows,
        agentic_checks,
        _AIPERF,
    ),
    Shape(
        "trace replay of 2026-04",
        frozenset(("hw", "users", "offload_mode")),
        frozenset(),
        lambda point, source: flat_rows(point, FLAT, source),
        lambda point, rows: common_checks(rows, number(point.get("mean_output_tokens_actual"))),
        {
            "tpot": "(last token - first token) / (output tokens - 1), unweighted over requests",
            "itl": words.ITL_NONE,
            "percentiles": words.PERCENTILES_LINEAR,
            "throughput_denominator": _SPAN,
        },
    ),
    Shape(
        "fixed lengths",
        frozenset(("hw", "conc", "model", "framework", "precision")),
        frozenset(("tput_per_gpu", "mean_ttft", "median_ttft", "mean_tpot")),
        lambda point, source: flat_rows(point, FIXED, source),
        fixed_checks,
        {
            "tpot": "(latency - TTFT) / (output tokens - 1), unweighted over requests",
            "itl": words.ITL_CHUNKS,
            "percentiles": words.PERCENTILES_LINEAR,
            "throughput_denominator": "the whole benchmark call, per GPU",
        },
    ),
)


class InferenceXImporter:
    """Aggregated results; folders of artefacts are AIPerf's, and read as such."""

    name = "inferencex"
    describes = "aggregated results of InferenceX: fixed lengths, agentic replay; an object or a list of them"

    def find(self, intake: Intake) -> Sequence[Part]:
        """One part per result."""
        found: list[Part] = []
        rows = any(all(mark in file.head for mark in _ROWS) for file in intake.files)
        for file in intake.files:
            keys = first_keys(file.head)
            if keys and shape_of(keys):
                found += self._parts(file, rows, intake)
        return found

    def _parts(self, file: InputFile, rows: bool, intake: Intake) -> Iterator[Part]:
        try:
            points = points_of(file)
        except GapscopeError as error:
            yield self._part(file, file.base, None, (), partial(_refuse, error))
            return
        known = [(place, point, shape_of(point)) for place, point in enumerate(points, 1)]
        strange = tuple(
            (f"{file.name} object {place}", "no result of InferenceX") for place, _, shape in known if shape is None
        )
        for place, point, shape in known:
            if shape is None:
                continue
            what = f"object {place} of {len(points)}" if len(points) > 1 else "the result"
            notes = [NO_ROWS]
            if rows and shape is SHAPES[0]:
                notes.append("The rows (AIPerf's records) lie in the same input and are the better source.")
            run = partial(_import, intake, file, point, shape)
            yield self._part(file, header.name(point), shape, strange, run, what, tuple(notes))
            strange = ()

    def _part(
        self,
        file: InputFile,
        name: str,
        shape: Shape | None,
        ignores: tuple[tuple[str, str], ...],
        run: Callable[[Path, Options], str],
        what: str = "results",
        notes: tuple[str, ...] = (),
    ) -> Part:
        return Part(
            format=self.name,
            tool=TOOL,
            version=None,
            name=name,
            kind="imported_summary",
            uses=(Use(file, f"{what}, {shape.words}" if shape else what),),
            run=run,
            ignores=ignores,
            notes=notes,
        )


def shape_of(keys: Any) -> Shape | None:
    """The kind of result that has these keys."""
    return next((shape for shape in SHAPES if isinstance(keys, dict) and shape.fits(keys)), None)


def points_of(file: InputFile) -> list[Any]:
    """The results in a file.

    Raises:
        GapscopeError: it is no JSON, or far larger than results are.
    """
    if file.size > MAX_BYTES:
        raise GapscopeError(f"{file.name} is larger than {MAX_BYTES >> 20} MiB: split the list of results.")
    document = json_document(file)
    return document if isinstance(document, list) else [document]


def _refuse(error: GapscopeError, store: Path, options: Options) -> str:
    raise error


def _import(intake: Intake, file: InputFile, point: dict[str, Any], shape: Shape, store: Path, options: Options) -> str:
    rows = list(shape.rows(point, file.base))
    run = ClientRun(
        "inferencex",
        TOOL,
        None,
        header.name(point),
        Identity(),
        kind="imported_summary",
        reported=spooled("reported", rows, REPORTED_COLUMNS, intake.scratch),
        checks=list(shape.checks(point, rows)),
        not_recorded=["Single requests: InferenceX publishes aggregates, so nothing can be computed again."],
        sources=[file],
        lineage={"shape": shape.words, "schema": header.schema(point), "header": header.kept(point)},
    )
    run.know(file.name, header.identity(point))
    run.know("format inferencex, a request starts when another ends", [("client", "loop", "closed")])
    run.define(f"format inferencex, {shape.words}", **shape.definitions)
    if shape is SHAPES[0]:
        window = number(dig(point, "request_metrics", "throughput", "duration_seconds"))
        run.know(file.name, [("client", "duration_s", window)])
    return seal(run, store, options)


INFERENCEX = InferenceXImporter()
