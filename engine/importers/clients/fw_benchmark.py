"""fw-ai/benchmark: a CSV with a row per Locust run, aggregates only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from engine import definitions as words
from engine.bundle import spooled
from engine.errors import GapscopeError
from engine.identity import Identity
from engine.importers.clients.plausible import statistics_ordered, units_plausible
from engine.importers.clients.reproduce import reported_rows
from engine.importers.clients.run import REPORTED_COLUMNS, ClientRun, seal
from engine.importers.clients.summaries import GIVEN, Meaning
from engine.importers.clients.values import cell, csv_head, truth
from engine.importers.contract import NO_ROWS, Options, Part, Use
from engine.intake import BadRows, InputFile, Intake, csv_rows

TOOL = "fw-ai/benchmark"
HEAD = frozenset(("Provider", "Model", "Time To First Token", "Total Latency", "Num Requests", "Qps"))
MAX_BYTES = 16 << 20
MEANINGS: dict[str, Meaning] = {
    "Time To First Token": ("ttft", "ms", "first chunk with text - start"),
    "Total Latency": ("e2e", "ms", "end of the response - start"),
    "Latency Per Token": (None, "ms", "(latency - TTFT) / tokens, as the tool counts them"),
    "Overall Latency Per Token": (None, "ms", "latency / tokens, the first token inside"),
    "Qps": ("request_rate", "req/s", "requests / time of the run"),
    "Num Requests": (None, "requests", None),
    "Num Tokens": ("output_tokens", "tokens", "tokens of the response as the tool counts them"),
    "Completion Tokens": ("output_tokens", "tokens", "tokens of the response as the tool counts them"),
    "Prompt Tokens": ("input_tokens", "tokens", "tokens of the prompt"),
}
_ASKED = ("Provider", "Model", "Stream", "Temperature", "Logprobs", "Concurrency", "Generation Tokens", "Max Tokens")
_MEANS = frozenset(("Num Tokens", "Prompt Tokens", "Completion Tokens", "Time To First Token", "Total Latency"))
_MEANS |= {"Latency Per Token", "Overall Latency Per Token"}
_PERCENTILE = re.compile(r"P(\d+(?:\.\d+)?) (.+)")


class FwBenchmark:
    """Told by its exact columns; others may follow."""

    name = "fw-ai-benchmark"
    describes = "the CSV summary of fw-ai/benchmark (Locust)"

    def find(self, intake: Intake) -> Sequence[Part]:
        """One part per row."""
        parts: list[Part] = []
        for file in intake.files:
            if set(csv_head(file.head)) >= HEAD:
                parts += self._parts(intake, file)
        return parts

    def _parts(self, intake: Intake, file: InputFile) -> Iterator[Part]:
        try:
            rows = _rows(file)
        except GapscopeError as error:
            yield self._part(file, file.base, "rows", partial(_refuse, error))
            return
        if not rows:
            empty = GapscopeError(f"{file.name} has a head and no row: nothing to import.")
            yield self._part(file, file.base, "rows", partial(_refuse, empty))
        for line, cells in rows:
            load = cells.get("Concurrency", "").strip()
            name = " ".join(filter(None, (cells["Provider"], cells["Model"], load and f"concurrency {load}")))
            yield self._part(file, name, f"line {line}", partial(_import, intake, name, file, line, cells))

    def _part(self, file: InputFile, name: str, what: str, run: Any) -> Part:
        return Part(
            format=self.name,
            tool=TOOL,
            version=None,
            name=name,
            kind="imported_summary",
            uses=(Use(file, what),),
            run=run,
            notes=(NO_ROWS,),
        )


def _rows(file: InputFile) -> list[tuple[int, dict[str, str]]]:
    if file.size > MAX_BYTES:
        raise GapscopeError(f"{file.name} is larger than {MAX_BYTES >> 20} MiB: split it.")
    return list(csv_rows(file, BadRows()))


def _refuse(error: GapscopeError, store: Path, options: Options) -> str:
    raise error


def _import(
    intake: Intake, name: str, file: InputFile, line: int, cells: dict[str, str], store: Path, options: Options
) -> str:
    try:
        rows = list(_reported(cells, file.base))
        means = [cell(cells, key) for key in ("Total Latency", "Time To First Token")]
        length = cell(cells, "Num Tokens") or cell(cells, "Completion Tokens")
        load = cell(cells, "Concurrency")
    except ValueError as error:
        raise GapscopeError(f"{file.name} line {line}: {error}. Repair the file and import it again.") from None
    seconds = [None if mean is None else mean / 1e3 for mean in means]
    run = ClientRun(
        "fw-ai-benchmark",
        TOOL,
        None,
        name,
        Identity(),
        kind="imported_summary",
        reported=spooled("reported", rows, REPORTED_COLUMNS, intake.scratch),
        checks=[statistics_ordered(rows), units_plausible(seconds[0], seconds[1], length, "figures taken as ms")],
        not_recorded=["Single requests: the tool writes aggregates."],
        sources=[file],
        lineage={"line": line, "asked": {key: cells[key] for key in _ASKED if cells.get(key)}},
    )
    run.know(file.name, [("model", "name", cells["Model"].strip() or None)])
    run.know(file.name, [("client", "streaming", truth(cells.get("Stream")))])
    run.know(file.name, [("client", "lanes", load if load is None or load % 1 else int(load))])
    run.define(
        "format fw-ai-benchmark",
        first_token=words.FIRST_VISIBLE,
        end_of_latency=words.END_RESPONSE,
        tpot="(latency - TTFT) / tokens",
        itl=words.ITL_NONE,
        percentiles="Locust's, of values rounded to two digits",
        throughput_denominator="the run as Locust measures it",
    )
    return seal(run, store, options)


def _reported(cells: dict[str, str], source: str) -> Iterator[dict[str, Any]]:
    """Every column that is a figure; a percentile belongs to the column that it names."""
    for column in cells:
        if column in _ASKED:
            continue
        found = _PERCENTILE.fullmatch(column)
        name, word = (found[2], f"p{found[1]}") if found else (column, "mean" if column in _MEANS else GIVEN)
        metric, unit, definition = MEANINGS.get(name, (None, None, None))
        value = cell(cells, column) if name in MEANINGS else _any(cells, column)
        yield from reported_rows("run", name, {word: value}, source, unit=unit, metric=metric, definition=definition)


def _any(cells: dict[str, str], column: str) -> float | None:
    try:
        return cell(cells, column)
    except ValueError:
        return None  # a column of text that this module does not know
