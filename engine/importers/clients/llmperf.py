"""llmperf: a list of responses without times of day, and a summary with flat keys."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from engine import definitions as words
from engine.bundle import Check, Phase, Spool, spooled
from engine.errors import GapscopeError
from engine.identity import Identity
from engine.importers.clients import flags
from engine.importers.clients.plausible import statistics_ordered, units_plausible
from engine.importers.clients.reproduce import Figure, compare, reported_rows, reproduced
from engine.importers.clients.run import REPORTED_COLUMNS, ClientRun, seal
from engine.importers.clients.summaries import GIVEN, Meaning
from engine.importers.clients.times import durations
from engine.importers.clients.values import count, first_keys, mapping, ns, text
from engine.importers.clients.within import Spans
from engine.importers.contract import NO_ROWS, NO_SUMMARY, Options, Part, Use
from engine.intake import BadRows, InputFile, Intake, json_document
from engine.intake.rows import number

TOOL = "llmperf"
MEANINGS: dict[str, Meaning] = {
    "ttft_s": ("ttft", "s", "first chunk with text - start"),
    "inter_token_latency_s": (
        "tpot",
        "s",
        "latency / output tokens of the client's count, the first token inside; one value per request",
    ),
    "end_to_end_latency_s": ("e2e", "s", "end of the response - start"),
    "request_output_throughput_token_per_s": (None, "tok/s/user", "output tokens / latency of the request"),
    "number_input_tokens": ("input_tokens", "tokens", "tokens of the prompt by the client's own tokenizer"),
    "number_output_tokens": ("output_tokens", "tokens", "tokens of the text by the client's own tokenizer"),
    "mean_output_throughput_token_per_s": ("output_rate", "tok/s", "output tokens / time of the whole benchmark"),
    "num_completed_requests_per_min": ("request_rate", "req/min", "completed requests / time of the whole benchmark"),
}
_ROW_KEYS = {"error_code", "ttft_s", "end_to_end_latency_s", "number_output_tokens"}
_QUANTILE = re.compile(r"results_(\w+?)_(?:quantiles_(p\d+)|(mean|min|max|stddev))")
_COLUMNS = [
    "request_id",
    "phase",
    "status",
    "tool_status",
    "flags",
    "error_type",
    "error_message",
    "dispatched_ns",
    "first_visible_after_ns",
    "last_visible_after_ns",
    "end_after_ns",
    "input_tokens",
    "output_tokens",
]
_STEP = 5_000


def is_rows(file: InputFile) -> bool:
    """Whether a file is a list of responses."""
    return file.head.lstrip().startswith(b"[") and first_keys(file.head).keys() >= _ROW_KEYS


def is_summary(file: InputFile) -> bool:
    """Whether a file is a summary."""
    keys = first_keys(file.head).keys()
    return "num_concurrent_requests" in keys and sum(key.startswith("results_") for key in keys) >= 5


class LlmPerf:
    """A summary goes with the responses of its own name, or with the only ones of its folder."""

    name = "llmperf"
    describes = "results of llmperf: individual responses and summary"

    def find(self, intake: Intake) -> Sequence[Part]:
        """One part per list of responses with its summary, and one per summary without."""
        lists = [file for file in intake.files if is_rows(file)]
        summaries = [file for file in intake.files if is_summary(file)]
        parts = []
        for rows in lists:
            mine = [s for s in summaries if s.folder == rows.folder and _stem(s) == _stem(rows)]
            near = [s for s in summaries if s.folder == rows.folder]
            alone = sum(other.folder == rows.folder for other in lists) == 1 and len(near) == 1
            summary = next(iter(mine or (near if alone else [])), None)
            parts.append(self._part(intake, rows, summary))
            summaries = [s for s in summaries if s is not summary]
        return [*parts, *(self._part(intake, None, summary) for summary in summaries)]

    def _part(self, intake: Intake, rows: InputFile | None, summary: InputFile | None) -> Part:
        uses = [Use(rows, "a row per response")] if rows else []
        uses += [Use(summary, "the summary")] if summary else []
        name = _stem(uses[0].file)
        notes = []
        if not rows:
            notes.append(NO_ROWS)
        elif not summary:
            notes.append(NO_SUMMARY)
        return Part(
            format=self.name,
            tool=TOOL,
            version=None,
            name=name,
            kind="measured" if rows else "imported_summary",
            uses=tuple(uses),
            run=partial(_import, intake, name, rows, summary),
            notes=tuple(notes),
        )


def _stem(file: InputFile) -> str:
    return re.sub(r"_(individual_responses|summary)$", "", file.base.partition(".json")[0]) or file.base


def _import(
    intake: Intake, name: str, rows: InputFile | None, summary: InputFile | None, store: Path, options: Options
) -> str:
    run = ClientRun(
        "llmperf",
        TOOL,
        None,
        name,
        Identity(),
        kind="measured" if rows else "imported_summary",
        bad=BadRows(options.skip_bad_rows),
        sources=[file for file in (rows, summary) if file],
    )
    values: dict[str, list[float]] = {}
    outcome = (0, 0)
    if rows:
        run.requests, values, outcome = _read(rows, run.bad, intake, options)
        run.not_recorded.append("When a request was sent: no rate and no concurrency can be computed from the rows.")
    document = mapping(json_document(summary)) if summary else {}
    if summary:
        reported = list(_reported(document, summary.base))
        run.reported = spooled("reported", reported, REPORTED_COLUMNS, intake.scratch)
        run.checks += [statistics_ordered(reported), _units(document)]
        if rows:
            run.checks += [_reproduced(document, values, summary.name), _counts(document, outcome, summary.name)]
            spans = Spans()
            for place, latency in enumerate(values["end_to_end_latency_s"]):
                spans.take(f"{place} of the successes", 0.0, latency)
            run.checks.append(spans.check(_duration_s(document), f"the number and rate of requests in {summary.name}"))
        run.know(summary.name, _identity(document))
        length = _duration_s(document)
        run.phases = [Phase("profile", 0, round(length * 1e9))] if length else []
    run.define(
        "format llmperf",
        first_token=words.FIRST_VISIBLE,
        end_of_latency=words.END_RESPONSE,
        token_source=words.TOKENS_LOCAL,
        tpot="latency / output tokens" if not rows else words.TPOT_OURS,
        itl=words.ITL_NONE,
        percentiles=words.PERCENTILES_LINEAR,
        throughput_denominator="the whole benchmark call",
    )
    return seal(run, store, options)


def _read(
    file: InputFile, bad: BadRows, intake: Intake, options: Options
) -> tuple[Spool, dict[str, list[float]], tuple[int, int]]:
    """The requests, the tool's values of those without error, and how many went well and how many did not."""
    options.step(None, "reading the responses")
    document = json_document(file)
    if not isinstance(document, list):
        raise GapscopeError(f"{file.name} holds no list: expected the responses of llmperf.")
    spool = Spool("requests", _COLUMNS, intake.scratch)
    values: dict[str, list[float]] = {key: [] for key in MEANINGS if key.endswith("_s") or key.startswith("number")}
    good, failed = 0, 0
    for place, item in enumerate(document):
        if not isinstance(item, dict) or "error_code" not in item:
            bad.add(f"{file.name} response {place + 1}", "expected an object with error_code and times")
            continue
        spool.append(_row(f"{place}", item))
        if item["error_code"] is None:
            good += 1
            for key, found in values.items():
                value = number(item.get(key))
                if value is not None:
                    found.append(value)
        else:
            failed += 1
        if place % _STEP == 0:
            options.step(place / len(document), f"{place:,} responses")
    return spool, values, (good, failed)


def _row(request_id: str, item: dict[str, Any]) -> dict[str, Any]:
    row = {"request_id": request_id, "phase": "profile", "input_tokens": count(item.get("number_input_tokens"))}
    if item["error_code"] is not None:
        kind, message = text(item["error_code"]) or "error", text(item.get("error_msg"))
        return {**row, "status": "error", "tool_status": "error", "error_type": kind, "error_message": message}
    output = count(item.get("number_output_tokens"))
    first, end = ns(number(item.get("ttft_s"))), ns(number(item.get("end_to_end_latency_s")))
    noticed = set()
    if not output or not first:
        noticed.add(flags.ZERO_OUTPUT if output is not None else flags.NO_TOKEN_COUNT)
        first = first or None
    found, wrong = durations(first, end if first else None, end)
    joined = flags.joined((*noticed, *wrong))
    return {**row, **found, "status": "ok", "tool_status": "completed", "output_tokens": output, "flags": joined}


def _stated(document: dict[str, Any]) -> Iterator[tuple[str, str, float]]:
    """(figure, statistic, value); some smallest and largest values are written as text."""
    for key, value in document.items():
        found = _QUANTILE.fullmatch(key)
        told = _number(value)
        if told is None or not key.startswith("results_"):
            continue
        if found and found[1] in MEANINGS:
            yield found[1], found[2] or found[3], told
        else:
            yield key.removeprefix("results_"), GIVEN, told


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            return number(float(value))
        except ValueError:
            return None
    return number(value)


def _reported(document: dict[str, Any], source: str) -> Iterator[dict[str, Any]]:
    for name, word, value in _stated(document):
        metric, unit, definition = MEANINGS.get(name, (None, None, None))
        yield from reported_rows("run", name, {word: value}, source, unit=unit, metric=metric, definition=definition)


def _reproduced(document: dict[str, Any], values: dict[str, list[float]], source: str) -> Check:
    blocks: dict[str, dict[str, float]] = {}
    for name, word, value in _stated(document):
        if word != GIVEN:
            blocks.setdefault(name, {})[word] = value
    figures = list(compare(values, blocks, ddof=1))
    length, rate = _duration_s(document), _number(document.get("results_mean_output_throughput_token_per_s"))
    if length and rate is not None:
        found = sum(values["number_output_tokens"]) / length
        figures.append(Figure("mean_output_throughput_token_per_s", GIVEN, rate, found))
    return reproduced(figures, source, "The standard deviation is that of a sample (n - 1).")


def _duration_s(document: dict[str, Any]) -> float | None:
    """The benchmark's length, from completed requests and their rate."""
    done = _number(document.get("results_num_completed_requests"))
    rate = _number(document.get("results_num_completed_requests_per_min"))
    return done / rate * 60 if done and rate and rate > 0 else None


def _counts(document: dict[str, Any], outcome: tuple[int, int], source: str) -> Check:
    keys = ("num_requests_started", "num_completed_requests", "number_errors")
    started, completed, errors = (_number(document.get(f"results_{key}")) for key in keys)
    if started is None and completed is None:
        return Check("rows_counted", "unknown", f"{source} states no counts")
    expected = sum(outcome) if started is not None else outcome[0]
    agrees = started in (None, sum(outcome)) and completed in (None, outcome[0]) and errors in (None, outcome[1])
    detail = (
        f"{source} counts {_digits(started)} started, {_digits(completed)} completed, {_digits(errors)} errors; the "
        f"rows hold {expected} with {outcome[0]} completed and {outcome[1]} errors"
    )
    return Check("rows_counted", "pass" if agrees else "fail", detail)


def _digits(value: float | None) -> str:
    return "an unknown number" if value is None else f"{value:g}"


def _units(document: dict[str, Any]) -> Check:
    means = {name: value for name, word, value in _stated(document) if word == "mean"}
    keys = ("end_to_end_latency_s", "ttft_s", "number_output_tokens")
    latency, first, length = (means.get(key) for key in keys)
    return units_plausible(latency, first, length, "figures stated in seconds")


def _identity(document: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    yield "model", "name", text(document.get("model"))
    yield "client", "lanes", count(document.get("num_concurrent_requests"))
    yield "client", "loop", "closed"
    shape = [count(document.get(f"mean_{side}_tokens")) for side in ("input", "output")]
    if None not in shape:
        yield "trace", "name", f"sonnet prompts, mean ISL {shape[0]}, mean OSL {shape[1]}"
