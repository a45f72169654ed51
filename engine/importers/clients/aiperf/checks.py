"""What is asked of an AIPerf run beyond what is asked of every run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc

from engine.bundle import Check, Spool
from engine.importers.clients.aiperf.log import Log
from engine.importers.clients.aiperf.setup import Setup
from engine.importers.clients.aiperf.slices import Slices
from engine.importers.clients.aiperf.summary import Block, Summary
from engine.importers.clients.aiperf.table import Table
from engine.importers.clients.aiperf.tags import METRICS, NS_OF, in_ms
from engine.importers.clients.aiperf.tally import Tally
from engine.importers.clients.aiperf.values import dig
from engine.importers.clients.aiperf.window import Window, Windows
from engine.importers.clients.reproduce import Figure, compare, our_word, reproduced
from engine.importers.clients.units import TIMES, UnknownUnits

_SAME_RATE = 1e-6
"""Relative difference that a window in whole microseconds makes."""
_STALL_MS = 1000.0
_LATE_S = 5.0
"""How much longer than duration and grace a phase may take before something must have held it up."""
WINDOW = "phase window, grace and drain included"
SPAN = "activity span, first start to last content"


@dataclass
class Facts:
    """Everything that the checks look at."""

    table: Table | None
    summary: Summary | None
    setup: Setup
    windows: Windows
    log: Log | None
    slices: Slices | None
    ready: Any
    version: str | None
    unrecorded: dict[str, dict[str, int]]


def run_checks(facts: Facts) -> Iterator[Check]:
    """The checks that apply to the files at hand."""
    if facts.table is not None and facts.table.rows:
        tally = facts.table.tallies["profile"]
        if facts.summary is not None:
            yield from _reproduced(facts.summary, facts.table)
            yield _denominator(facts.summary, tally, facts.windows.profile)[0]
        yield from _accounted(facts, facts.table)
        yield from _concurrency(facts, facts.table.requests)
        yield _error_rate(tally, facts.setup)
        yield from _noticed(facts.table)
    yield _units(facts)
    if facts.slices is not None:
        yield from _slices(facts.slices, facts.summary)
    yield from _ended(facts)
    yield from _length(facts.windows.profile, facts.setup)
    if facts.log is not None and facts.log.stalls:
        worst = facts.log.longest_stall_ms
        words = f"the client's event loops were late {facts.log.stalls} times, by up to {worst:,.0f} ms"
        yield Check("client_responsive", "fail" if worst >= _STALL_MS else "pass", words)


def _reproduced(summary: Summary, table: Table) -> Iterator[Check]:
    yield _phase_reproduced("summary_reproduced", summary, summary.blocks, table.tallies["profile"])
    if summary.warmup:
        yield _phase_reproduced("warmup_summary_reproduced", summary, summary.warmup, table.tallies["warmup"])


def _phase_reproduced(name: str, summary: Summary, blocks: dict[str, Block], tally: Tally) -> Check:
    series, stated, counts = tally.series(), {}, {}
    for tag, block in blocks.items():
        stated[tag] = {word: in_ms(value, block.unit) for word, value in block.statistics.items()}
        if block.n is not None and tag in series:
            counts[tag] = {"count": block.n}
    figures: list[Figure] = list(compare(series, stated, summary.decimals))
    figures += compare(series, counts)
    figures += compare(tally.adjusted(), stated, summary.decimals, method="nearest")
    if tally.span_s is not None:
        spans = {"benchmark_duration": [tally.span_s * 1e3]}
        figures += compare(spans, stated, 3 if summary.decimals is None else summary.decimals)
    gaps = blocks.get("inter_chunk_latency")
    if gaps is not None:
        stated_gaps = dict(gaps.statistics) | ({"count": gaps.n} if gaps.n is not None else {})
        figures += tally.gaps.figures("inter_chunk_latency", stated_gaps)
    told = {figure.name for figure in figures}
    left = sorted(tag for tag in blocks if tag not in told and "_throughput" not in tag)
    aside = (
        f"{len(left)} tags are not in the records and stand as the tool says ({', '.join(left[:3])} ...)."
        if left
        else ""
    )
    if gaps is not None and any(our_word(word).startswith("p") for word in gaps.statistics):
        aside = f"Percentiles of inter_chunk_latency are a sketch of the tool's and are not recomputed. {aside}".strip()
    return reproduced(figures, summary.file.base, aside, name)


def denominator_of(summary: Summary, tally: Tally, window: Window | None) -> str | None:
    """The span that the tool's rates are taken over; None where the rows do not tell."""
    return _denominator(summary, tally, window)[1]


def _denominator(summary: Summary, tally: Tally, window: Window | None) -> tuple[Check, str | None]:
    """Both rates of the run, and which of them the summary states."""
    spans = {}
    if window is not None and not window.source.startswith("the rows"):
        spans[WINDOW] = (window.end_ns - window.start_ns) / 1e9
    if tally.span_s:
        spans[SPAN] = tally.span_s
    output = tally.total("output_sequence_length")
    for tag, amount, unit in (
        ("output_token_throughput", output, "tok/s"),
        ("request_throughput", float(tally.valid), "requests/s"),
    ):
        stated = summary.stated(tag)
        if stated is None or not amount:
            continue
        rates = {name: amount / seconds for name, seconds in spans.items() if seconds > 0}
        slack = _SAME_RATE * stated + (0.5 * 10.0**-summary.decimals if summary.decimals is not None else 0.0)
        used = [name for name, rate in rates.items() if abs(rate - stated) <= slack]
        words = "; ".join(
            f"{rate:.3f} {unit} over the {_short(name)} of {spans[name]:.3f} s" for name, rate in rates.items()
        )
        if used:
            chosen = used[0] if len(used) == 1 else None
            verdict = f"the summary states {stated:.3f}, which is that over the {' and the '.join(map(_short, used))}"
            return Check("throughput_denominator", "pass", f"{words}; {verdict}"), chosen
        implied = f"the summary states {stated:.3f}, a division by {amount / stated:.3f} s"
        return Check("throughput_denominator", "fail", f"{words or 'no span is known'}; {implied}"), None
    return Check("throughput_denominator", "unknown", "the summary states no throughput that the rows can tell"), None


def _short(denominator: str) -> str:
    return denominator.partition(",")[0]


def _accounted(facts: Facts, table: Table) -> Iterator[Check]:
    tally, parts, wrong = table.tallies["profile"], [], False
    if facts.summary is not None:
        stated = facts.summary.stated("request_count"), facts.summary.stated("error_request_count") or 0.0
        if stated[0] is not None:
            wrong |= stated != (tally.valid, tally.errors)
            parts.append(f"the summary counts {stated[0]:.0f} requests and {stated[1]:.0f} errors")
    counted = facts.log.phases.get("profiling") if facts.log else None
    if counted is not None and counted.sent is not None:
        lost = facts.unrecorded.get("profile", {})
        wrong |= counted.sent < tally.rows or bool(lost.get("in_flight"))
        parts.append(
            f"the log {counted.sent:,} sent, {counted.completed if counted.completed is not None else '?'} completed, "
            f"{counted.canceled if counted.canceled is not None else '?'} canceled; {sum(lost.values())} have no record"
        )
    asked = facts.setup.requests
    if asked is not None:
        wrong |= tally.rows > asked
        parts.append(f"{asked:,} were asked for")
    if parts:
        rows = f"{tally.valid:,} records without error and {tally.errors:,} with one"
        rows += f", {tally.silent:,} with neither figures nor an error" if tally.silent else ""
        yield Check("requests_accounted", "fail" if wrong else "pass", f"{rows}; {'; '.join(parts)}")


def in_flight(starts: Any, ends: Any) -> int:
    """The most intervals that are open at once; one that ends when another starts has left."""
    moments = np.concatenate([ends, starts])
    steps = np.concatenate([np.full(len(ends), -1), np.full(len(starts), 1)])
    order = np.lexsort((steps, moments))
    return int(np.cumsum(steps[order]).max(initial=0))


def _concurrency(facts: Facts, requests: Spool) -> Iterator[Check]:
    cap = facts.setup.concurrency
    if cap is None:
        return
    names = ("phase", "dispatched_ns", "end_ns", "play_id")
    phase, start, end, play = (requests.column(name) for name in names)
    kept = pc.and_(pc.equal(phase, "profile"), pc.and_(pc.is_valid(start), pc.is_valid(end)))
    starts, ends = (column.filter(kept).to_numpy().astype(np.int64) for column in (start, end))
    peak = in_flight(starts, ends)
    words = f"at most {peak} requests were in flight"
    if facts.setup.agentic:
        plays, codes = np.unique(play.filter(kept).fill_null("").to_numpy().astype(str), return_inverse=True)
        first, last = np.full(len(plays), np.iinfo(np.int64).max), np.zeros(len(plays), np.int64)
        np.minimum.at(first, codes, starts)
        np.maximum.at(last, codes, ends)
        trees = in_flight(first, last)
        words += f" and {trees} session trees open, where {cap} trees were asked for"
        yield Check("concurrency_kept", "fail" if trees > cap else "pass", words)
        return
    said = facts.summary.stated("effective_concurrency", "max") if facts.summary else None
    words += f", where {cap} were allowed" + (f"; the tool says {said:g} at most" if said is not None else "")
    yield Check("concurrency_kept", "fail" if peak > cap else "pass", words)


def _error_rate(tally: Tally, setup: Setup) -> Check:
    attempted = tally.valid + tally.errors
    rate = tally.errors / attempted if attempted else 0.0
    words = f"{tally.errors:,} of {attempted:,} requests failed as the tool counts, {100 * rate:.2f} %"
    if attempted and not tally.valid:
        return Check("error_rate", "fail", f"every request failed: {words}")
    if setup.failed_threshold is not None:
        verdict = "fail" if rate > setup.failed_threshold else "pass"
        return Check("error_rate", verdict, f"{words}; {100 * setup.failed_threshold:g} % were allowed")
    return Check("error_rate", "unknown" if tally.errors else "pass", f"{words}; no limit was set")


def _noticed(table: Table) -> Iterator[Check]:
    skew = f"{table.skewed:,} of {table.rows:,} records have a time before one that it must follow"
    yield Check("record_times", "fail" if table.skewed else "pass", skew)
    yield table.odd_times.check()
    if table.silent:
        words = (
            f"{len(table.silent):,} of {table.rows:,} records have neither figures nor an error, the first in "
            f"{table.silent[0]}: what became of these requests is unknown, and they are in no rate and no latency"
        )
        yield Check("outcomes_known", "fail", words)
    if table.responses:
        both = table.responses_agree + table.responses_differ
        words = f"TTFT and latency of {table.responses_agree:,} of {both:,} records are those of their chunks"
        wrong = table.responses_differ or table.unrecorded
        words += f"; {table.unrecorded:,} responses have no record" if table.unrecorded else ""
        yield Check("raw_agrees", "fail" if wrong else "pass" if both else "unknown", words)
    if table.unfinished:
        words = f"{table.unfinished:,} responses ended without a finish reason or the server's count"
        yield Check("streams_finished", "fail", words)


def _units(facts: Facts) -> Check:
    """Times of records and of the summary in a unit of time."""
    found = facts.table.odd_units if facts.table is not None else UnknownUnits()
    if facts.summary is not None:
        for tag, block in (*facts.summary.blocks.items(), *facts.summary.warmup.items()):
            if METRICS.get(tag, (None, ""))[0] in TIMES and block.unit and str(block.unit).lower() not in NS_OF:
                found.take(tag, block.unit, facts.summary.file.base)
    return found.check()


def _slices(slices: Slices, summary: Summary | None) -> Iterator[Check]:
    stated = summary.stated("request_count") if summary else None
    tokens = summary.stated("total_osl") if summary else None
    if stated is None:
        return
    wrong = slices.requests != stated or (
        tokens is not None and slices.output_tokens and slices.output_tokens != tokens
    )
    words = f"{slices.slices:,} slices hold {slices.requests:.0f} requests, the summary {stated:.0f}"
    if tokens is not None and slices.output_tokens:
        words += f"; {slices.output_tokens:.0f} output tokens, the summary {tokens:.0f}"
    yield Check("slices_add_up", "fail" if wrong else "pass", words)


def _ended(facts: Facts) -> Iterator[Check]:
    ready, document = facts.ready, facts.summary.document if facts.summary else {}
    if isinstance(ready, dict):
        good = ready.get("ready") is True and not ready.get("partial") and not ready.get("was_cancelled")
        words = ", ".join(f"{name} is {_word(ready.get(name))}" for name in ("ready", "was_cancelled", "partial"))
        yield Check("results_ready", "pass" if good else "fail", words)
    elif facts.version is not None and _at_least(facts.version, 0, 13):
        yield Check("results_ready", "unknown", "the marker that AIPerf writes last is not among the files")
    told = {name: document.get(name) for name in ("was_cancelled", "is_complete") if name in document}
    if told:
        good = told.get("was_cancelled") is not True and told.get("is_complete") is not False
        words = ", ".join(f"{name} is {_word(value)}" for name, value in told.items())
        reason = document.get("incomplete_reason")
        yield Check("run_complete", "pass" if good else "fail", f"{words}{f' ({reason})' if reason else ''}")
    valid = dig(document, "metadata", "submission_valid")
    if isinstance(valid, bool):
        reasons = dig(document, "metadata", "submission_invalid_reasons")
        named = ", ".join(map(str, reasons)) if isinstance(reasons, list) else ""
        words = f"submission_valid is {_word(valid)}{f': {named}' if named else ''}"
        yield Check("submission_valid", "pass" if valid else "fail", words)


def _length(window: Window | None, setup: Setup) -> Iterator[Check]:
    if window is None or setup.duration_s is None or window.source.startswith("the rows"):
        return
    length, asked = (window.end_ns - window.start_ns) / 1e9, setup.duration_s
    grace = 30.0 if setup.grace_s is None else setup.grace_s
    words = (
        f"the phase took {length:.3f} s ({window.source}), asked for were {asked:g} s and up to {grace:g} s of grace"
    )
    good = asked - 1e-3 <= length <= asked + grace + _LATE_S
    yield Check("window_length", "pass" if good else "fail", words)


def _word(value: Any) -> str:
    return "not said" if value is None else str(value).lower()[:40]


def _at_least(version: str, *least: int) -> bool:
    parts = [int(part) if part.isdigit() else 0 for part in version.split(".")[:2]]
    return parts >= list(least)
