"""The arrays of SGLang's details as rows of ``requests`` and ``chunks``, and how far its counts can be trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.importers.clients import flags
from engine.importers.clients.bench_rows import Kinds, Totals, failure, gaps, requests_in, seconds
from engine.importers.clients.run import ClientRun
from engine.importers.clients.times import durations
from engine.importers.clients.values import count, ns
from engine.importers.contract import Options
from engine.intake.rows import number

ARRAYS = ("input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors", "cached_tokens")
COLUMNS = [
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
    "requested_output_tokens",
    "output_tokens",
    "cached_tokens",
]
_KINDS: Kinds = {"ttfts": float, "errors": str, "generated_texts": str}
_SHORT = 0.75
"""A text of less than this share of what its tokens would take at least was not that long."""


@dataclass
class SglangTotals(Totals):
    """Beside what the rows add up to: responses that are shorter than the length they are counted with."""

    uncounted: int = 0


def counts_doubtful(document: Mapping[str, Any], held: Mapping[str, list[Any]]) -> bool:
    """Whether the counts may be the requested lengths.

    An answer of nothing that is counted with tokens proves it; where all have one length and fewer tokens come of the
    texts, it is likely.
    """
    nothing = [""] * len(held["output_lens"])
    columns = (
        held["output_lens"],
        held["ttfts"],
        held.get("generated_texts") or nothing,
        held.get("errors") or nothing,
    )
    good = [(count(n), ttft, words_) for n, ttft, words_, error in zip(*columns, strict=True) if not error]
    if "generated_texts" in held and any(n and not number(ttft) and not words_ for n, ttft, words_ in good):
        return True
    told, again = number(document.get("total_output_tokens")), number(document.get("total_output_tokens_retokenized"))
    return told is not None and again is not None and told > again and len({n for n, _, _ in good}) == 1


def text_per_token(held: Mapping[str, list[Any]]) -> float | None:
    """Fewest characters a token took in responses whose chunks are as many as their tokens; None without any."""
    if "generated_texts" not in held or "itls" not in held:
        return None
    found = []
    for length, between, words_ in zip(held["output_lens"], held["itls"], held["generated_texts"], strict=True):
        tokens, list_ = count(length), gaps(between)
        if tokens and list_ is not None and isinstance(words_, str) and len(list_) + 1 == tokens and words_:
            found.append(len(words_) / tokens)
    return min(found, default=None)


def read_rows(
    held: Mapping[str, list[Any]],
    doubtful: bool,
    least: float | None,
    run: ClientRun,
    rows: SglangTotals,
    where: str,
    options: Options,
) -> None:
    """Fill the run's tables and ``rows`` from the arrays; ``least`` is as :func:`text_per_token` says."""
    for request_id, given in requests_in(held, ARRAYS, _KINDS, rows.unusable, run.bad, where, options):
        _request(request_id, given, doubtful, least, run, rows)


def _request(
    request_id: str, given: Mapping[str, Any], doubtful: bool, least: float | None, run: ClientRun, rows: SglangTotals
) -> None:
    assert run.requests is not None
    row: dict[str, Any] = {"request_id": request_id, "phase": "profile", "input_tokens": count(given["input_lens"])}
    if given["errors"]:
        rows.failed += 1
        run.requests.append({**row, **failure(given["errors"])})
        return
    ttft, between, tokens = seconds(given["ttfts"]), gaps(given["itls"]), count(given["output_lens"])
    row["requested_output_tokens"] = tokens if doubtful else None
    rows.succeeded(row["input_tokens"], tokens, ttft, between)
    noticed: set[str] = set()
    words_ = given["generated_texts"]
    if not ttft and not between and not words_:
        noticed.add(flags.ZERO_OUTPUT)
        tokens, ttft = 0, None
    elif tokens is None:
        noticed.add(flags.NO_TOKEN_COUNT)
    elif between is not None and len(between) + 1 < tokens:
        if not doubtful:
            noticed.add(flags.BURST)
        elif least is None or not words_ or len(words_) < _SHORT * least * tokens:
            noticed.add(flags.ASKED_LENGTH)
            tokens = None if least is not None else tokens
            rows.uncounted += 1
        else:
            noticed.add(flags.BURST)
    last = None if ttft is None or between is None else ttft + sum(between)
    rows.spans.take(request_id, 0.0, last if ns(last) is not None else None)
    found, wrong = durations(ns(ttft), ns(last), None)
    row |= {
        "status": "ok",
        "tool_status": "success",
        "output_tokens": tokens,
        "cached_tokens": count(given["cached_tokens"]),
    }
    run.requests.append({**row, **found, "flags": flags.joined((*noticed, *wrong))})
    if ttft is not None and between is not None and run.chunks is not None:
        single = tokens is not None and len(between) + 1 == tokens
        for ordinal, after in enumerate((ttft + np.concatenate([[0.0], np.cumsum(between)])).tolist()):
            chunk = {"request_id": request_id, "ordinal": ordinal, "after_ns": ns(after), "visible": True}
            run.chunks.append({**chunk, "tokens": 1 if single else None})
