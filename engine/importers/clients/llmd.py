"""llm-d benchmark reports 0.1, 0.2 and 0.2.1, in JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from engine.bundle import Check, spooled
from engine.errors import GapscopeError
from engine.identity import Identity
from engine.importers.clients.outline import outline
from engine.importers.clients.plausible import SECONDS, statistics_ordered, units_plausible
from engine.importers.clients.reproduce import reported_rows
from engine.importers.clients.run import REPORTED_COLUMNS, ClientRun, seal
from engine.importers.clients.summaries import GIVEN, is_statistics
from engine.importers.clients.units import TIMES, UnknownUnits
from engine.importers.clients.values import count, dig, mapping, text
from engine.importers.contract import NO_ROWS, Options, Part, Use
from engine.intake import InputFile, Intake, json_document
from engine.intake.rows import number

TOOL = "llm-d benchmark"
MEANINGS: dict[str, tuple[str | None, str | None]] = {
    "time_to_first_token": ("ttft", "as the harness measures it"),
    "time_per_output_token": ("tpot", "as the harness measures it, the first token not inside"),
    "inter_token_latency": ("chunk_gap", "gaps as the harness keeps them"),
    "normalized_time_per_output_token": (None, "latency / output tokens, the first token inside"),
    "request_latency": ("e2e", "as the harness measures it"),
    "output_token_rate": ("output_rate", "output tokens / duration"),
    "total_token_rate": ("total_rate", "input and output tokens / duration"),
    "request_rate": ("request_rate", "requests / duration"),
    "input_length": ("input_tokens", "tokens of the prompt"),
    "output_length": ("output_tokens", "tokens of the response"),
}
_YAML = re.compile(rb"^version: *['\"]?(0\.\d(?:\.\d)?)['\"]?\s*$", re.MULTILINE)
_YAML_KEYS = re.compile(rb"^(scenario|metrics|results|run):", re.MULTILINE)
_KNOWN = re.compile(r"v?0\.[12](\.\d)?")
_DEEPEST = 10
_CLOSE = 0.02


class LlmdReports:
    """Reports say their version; those in YAML are known, and cannot be read here."""

    name = "llm-d-report"
    describes = "benchmark reports of llm-d, versions 0.1 to 0.2.1, in JSON"

    def find(self, intake: Intake) -> Sequence[Part]:
        """One part per report."""
        parts = []
        for file in intake.files:
            keys = outline(file.head)
            if {"version", "scenario"} <= keys.keys() and {"metrics", "results"} & keys.keys():
                parts.append(self._part(intake, file, None))
            elif not keys and (found := _YAML.search(file.head)) and len(set(_YAML_KEYS.findall(file.head))) >= 2:
                parts.append(self._part(intake, file, found[1].decode()))
        return parts

    def _part(self, intake: Intake, file: InputFile, yaml: str | None) -> Part:
        name = file.base.partition(".")[0]
        notes = [NO_ROWS]
        if yaml:
            notes = [_convert(file)]
        return Part(
            format=self.name,
            tool=TOOL,
            version=yaml,
            name=name,
            kind="imported_summary",
            uses=(Use(file, "the report, in YAML" if yaml else "the report"),),
            run=partial(_refuse, file) if yaml else partial(_import, intake, name, file),
            notes=tuple(notes),
        )


def _convert(file: InputFile) -> str:
    return (
        f"{file.name} is a report in YAML, which is not read here: convert it to JSON (`yq -o json`) and import that."
    )


def _refuse(file: InputFile, store: Path, options: Options) -> str:
    raise GapscopeError(_convert(file))


def _import(intake: Intake, name: str, file: InputFile, store: Path, options: Options) -> str:
    document = json_document(file)
    if not isinstance(document, dict):
        raise GapscopeError(f"{file.name} holds no object: expected a benchmark report of llm-d.")
    version = text(document.get("version")) or str(number(document.get("version")) or "unknown")
    if not _KNOWN.fullmatch(version):
        raise GapscopeError(f"{file.name} is a report of version {version!r:.20}, known are 0.1, 0.2 and 0.2.1.")
    rows = list(_reported(document, file.base))
    harness = _harness(document)
    run = ClientRun(
        "llm-d-report",
        harness[0] or TOOL,
        harness[1],
        name,
        Identity(),
        kind="imported_summary",
        reported=spooled("reported", rows, REPORTED_COLUMNS, intake.scratch),
        checks=list(_checks(document, rows)),
        not_recorded=["Single requests: a report holds aggregates."],
        sources=[file],
        lineage={"report_version": version.removeprefix("v")},
    )
    run.know(file.name, _identity(document))
    run.define("format llm-d-report", throughput_denominator="duration of the run as the harness measures it")
    return seal(run, store, options)


def _harness(document: dict[str, Any]) -> tuple[str | None, str | None]:
    """The load generator and its version."""
    load = dig(document, "scenario", "load")
    told = mapping(dig(load, "standardized"))
    return text(told.get("tool")) or text(dig(load, "name")), text(told.get("tool_version"))


def _performance(document: dict[str, Any]) -> dict[str, Any]:
    """The part with figures of requests, of any version."""
    found = dig(document, "results", "request_performance", "aggregate") or document.get("metrics")
    return mapping(found)


def _reported(document: dict[str, Any], source: str) -> Iterator[dict[str, Any]]:
    for name, block in _blocks(_performance(document)):
        yield from _figure("run", name, block, source, None)
    components = dig(document, "results", "observability", "components")
    for component in components if isinstance(components, list) else []:
        label = " ".join(filter(None, (text(dig(component, "component_label")), text(dig(component, "replica_id")))))
        for name, block in _blocks(mapping(dig(component, "aggregate"))):
            yield from _figure("server", name, block, source, label or None)


def _figure(scope: str, name: str, block: dict[str, Any], source: str, label: str | None) -> Iterator[dict[str, Any]]:
    metric, definition = MEANINGS.get(name, (None, None))
    statistics = {_word(word): value for word, value in block.items() if word != "units"}
    unit = text(block.get("units"))
    if metric == "tpot" or metric == "chunk_gap":  # a time per token is a time
        unit = unit.removesuffix("/token") if unit else unit
    if unit is None and name == "duration":
        unit = "s"
    yield from reported_rows(
        scope, name, statistics, source, unit=unit, metric=metric, definition=definition, labels=label
    )


def _word(word: str) -> str:
    """``p0p1`` and ``p99p9`` are p0.1 and p99.9, as ours are written."""
    found = re.fullmatch(r"p(\d+)p(\d+)", word)
    return f"p{found[1]}.{found[2]}" if found else {"stddev": "std"}.get(word, word)


def _blocks(document: Any, depth: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
    if not isinstance(document, dict) or depth > _DEEPEST:
        return
    for name, value in document.items():
        if isinstance(value, dict):
            if is_statistics(value) or ("units" in value and any(number(v) is not None for v in value.values())):
                yield name, value
            else:
                yield from _blocks(value, depth + 1)
        elif number(value) is not None:
            yield name, {GIVEN: value}


def _checks(document: dict[str, Any], rows: list[dict[str, Any]]) -> Iterator[Check]:
    yield statistics_ordered(rows)
    units = UnknownUnits()
    for figure in {(row["name"], row["unit"], row["source"]): row for row in rows if row["metric"] in TIMES}.values():
        if figure["unit"] is not None and figure["unit"] not in SECONDS:
            units.take(figure["name"], figure["unit"], figure["source"])
    yield units.check()
    stated = {(r["name"], r["statistic"]): (r["value"], r["unit"]) for r in rows if r["scope"] == "run"}

    def seconds(name: str) -> float | None:
        value, unit = stated.get((name, "mean"), (None, None))
        factor = SECONDS.get(unit or "")
        return None if value is None or factor is None else value * factor

    length = stated.get(("output_length", "mean"), (None, None))[0]
    yield units_plausible(
        seconds("request_latency"), seconds("time_to_first_token"), length, "units as the report labels"
    )
    duration, problems = _times(document)
    detail = "; ".join(problems) or "start, stop and duration fit"
    known = duration is not None or problems
    yield Check(
        "times_in_order", "fail" if problems else "pass" if known else "unknown", detail if known else "not stated"
    )
    yield _rates(stated, duration)


def _times(document: dict[str, Any]) -> tuple[float | None, list[str]]:
    """The run's length in seconds, and what is wrong with its times."""
    block = mapping(dig(document, "metrics", "time")) or mapping(dig(document, "run", "time"))
    start, stop = (_moment(block.get(keys[0], block.get(keys[1]))) for keys in (("start", "begin"), ("stop", "end")))
    duration = _duration(block.get("duration"))
    problems = []
    if start is not None and stop is not None:
        if stop < start:
            problems.append(f"stop lies {start - stop:.6g} s before start")
        elif duration is not None and abs(stop - start - duration) > _CLOSE * max(duration, 1.0) + 1:
            problems.append(f"duration is {duration:.6g} s where stop - start is {stop - start:.6g} s")
    return duration, problems


def _moment(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value.replace("Z", "+00:00")).timestamp()
        except ValueError:
            return None
    return number(value)


def _duration(value: Any) -> float | None:
    """Seconds, also where they are written as ISO 8601 (``PT57.4S``)."""
    if isinstance(value, str):
        found = re.fullmatch(r"PT(?:(\d+)H)?(?:(\d+)M)?(?:([\d.]+)S)?", value)
        return (
            sum(float(part or 0) * unit for part, unit in zip(found.groups(), (3600, 60, 1), strict=True))
            if found
            else None
        )
    return number(value)


def _rates(stated: dict[tuple[str, str], tuple[float, str | None]], duration: float | None) -> Check:
    """Requests x mean output / duration is the rate of output tokens."""

    def first(*keys: tuple[str, str]) -> float | None:
        return next((stated[key][0] for key in keys if key in stated), None)

    total, failed = first(("total", GIVEN)), first(("failures", GIVEN)) or 0.0
    length = first(("output_length", "mean"))
    rate = first(("output_token_rate", "mean"), ("output_token_rate", GIVEN), ("output_tokens_per_sec", GIVEN))
    if None in (total, length, rate, duration) or not duration or not total or not length or not rate:
        return Check("rates_add_up", "unknown", "requests, output length, rate and duration are not all stated")
    expected = (total - failed) * length / duration
    agrees = abs(expected - rate) <= 0.1 * max(expected, rate)
    detail = (
        f"{total - failed:g} requests of {length:.6g} tokens in {duration:.6g} s make {expected:.6g} tok/s; stated are "
        f"{rate:.6g}"
    )
    return Check("rates_add_up", "pass" if agrees else "fail", detail)


def _identity(document: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    scenario = mapping(document.get("scenario"))
    yield "client", "lanes", count(dig(scenario, "load", "standardized", "concurrency"))
    yield "model", "name", text(dig(scenario, "model", "name"))
    engine = dig(scenario, "platform", "engine")
    engines = {text(dig(entry, "name")) for entry in engine} if isinstance(engine, list) else set()
    yield "source", "engine", engines.pop() if len(engines) == 1 else None
    accelerators = dig(scenario, "host", "accelerator")
    parts = {text(dig(entry, "model")) for entry in accelerators} if isinstance(accelerators, list) else set()
    yield "hardware", "part", parts.pop() if len(parts) == 1 else None
    stack = scenario.get("stack")
    for component in stack if isinstance(stack, list) else []:
        told = mapping(dig(component, "standardized"))
        yield "model", "name", text(dig(told, "model", "name"))
        yield "source", "engine", text(told.get("tool"))
        yield "source", "version", text(told.get("tool_version"))
        yield "hardware", "part", text(dig(told, "accelerator", "model"))
        yield "topology", "tp", count(dig(told, "accelerator", "parallelism", "tp"))
