"""Rung 2: the arithmetic that a run must satisfy by itself, by one estimator on both sides, and where the sides part.

What a gap here says is about admission, memory and the client; a kernel that is too slow cannot break it.
"""

from __future__ import annotations

from dataclasses import replace

from dashboard.compare.align.values import BOTH, MEASURED, REPLAY, Check, between, by_repeats, held, share_off, unknown
from dashboard.compare.numbers import Key, number
from dashboard.compare.rows import compare_number
from dashboard.metrics import Estimator, Population
from dashboard.queries import alignment
from dashboard.queries.ranges import Span, lanes, no_times, population_span
from dashboard.store import Store

ROUNDING = 0.001
"""A share by which sums of rounded times may exceed the time that there is."""


def checks(
    store: Store, measured: str, replay: str, population: Population, repeats: tuple[str, ...], tolerance: float
) -> tuple[Check, ...]:
    """Each side by itself, then both beside each other; a replay that is sound alone lets nothing pass."""
    window = Population(population.phase)
    found: list[Check] = []
    found += _side(store, MEASURED, measured, window, tolerance)
    found += [replace(check, decides=False) for check in _side(store, REPLAY, replay, window, tolerance)]
    found += _pair(store, measured, replay, window, repeats, tolerance)
    return tuple(found)


def _side(store: Store, side: str, run_id: str, population: Population, tolerance: float) -> list[Check]:
    span = population_span(store, run_id, population)
    found = [_concurrency(store, side, run_id, span, population), _running(store, side, run_id)]
    found.append(_little(store, side, run_id, span, population, tolerance))
    found += _tokens(store, side, run_id)
    found.append(_rate(store, side, run_id, span, tolerance))
    found.append(_busy(store, side, run_id, span))
    return found


def _concurrency(store: Store, side: str, run_id: str, span: Span | None, population: Population) -> Check:
    """Lanes at work against lanes stated: a lane may hold several requests at once, as of subagents."""
    name = "lanes with a request in flight, at most the lanes"
    stated, effective = lanes(store, run_id), number(store, run_id, Key("in_flight", "observed"), population)
    if store.bundle(run_id).identity.value("client", "loop") == "open":
        return unknown(name, side, "an open loop holds no concurrency")
    if stated is None:
        in_flight = "" if effective.value is None else f"{effective.value:.2f} requests in flight; "
        return unknown(
            name, side, f"{in_flight}no concurrency is stated", "The concurrency of the client (client.lanes)."
        )
    needed = "The lane of every request, and when it was sent and ended."
    if span is None or effective.value is None:
        return unknown(name, side, effective.why or "the run has no such phase", needed)
    row = alignment.busy_lanes(store, run_id, span).one()
    if not row["lanes"]:
        return unknown(name, side, "not recorded: lanes", needed)
    at_work = float(row["busy_lanes"])
    verdict = between(name, side, 0, stated, max(at_work, row["lanes"]), "lanes").verdict
    why = f"{effective.value:.2f} requests in flight; a lane without one thinks, or is behind"
    return Check(name, side, float(stated), at_work, "lanes", verdict, why, n=effective.n)


def _running(store: Store, side: str, run_id: str) -> Check:
    name = "most running requests, at most max_num_seqs"
    found = alignment.pass_tokens(store, run_id)
    if found.not_recorded:
        return unknown(name, side, found.not_recorded, "Passes with how many requests were running.")
    most, stated = found.one()["most_running"], store.bundle(run_id).identity.value("scheduler", "max_num_seqs")
    if most is None or stated is None:
        what = "how many requests were running" if most is None else "max_num_seqs"
        return unknown(
            name, side, f"not recorded: {what}", "Passes with num_running, and the scheduler's max_num_seqs."
        )
    verdict = between(name, side, 0, stated, most, "requests").verdict
    return Check(name, side, float(stated), float(most), "requests", verdict, decides=False)


def _little(store: Store, side: str, run_id: str, span: Span | None, population: Population, tolerance: float) -> Check:
    """Requests that straddle the ends of the window count whole on one side only, so their time outside is allowed."""
    name = "Little's law: request rate x mean E2E = requests in flight"
    law, counted = (number(store, run_id, Key("in_flight", which), population) for which in ("little", "observed"))
    edges = alignment.edges(store, run_id, span) if span is not None and counted.value else 0.0
    why = law.why or counted.why or (f"its ends may hide {edges:.1%}" if edges > tolerance else "")
    needed = "Times of dispatch, end and last visible token of every request."
    allowed = max(tolerance, edges)
    return held(name, side, counted.value, law.value, "requests", allowed, why=why, needed=needed, n=law.n)


def _tokens(store: Store, side: str, run_id: str) -> list[Check]:
    names = ("new tokens per pass x passes = prompts - reused", "decodes per pass x passes = outputs after the first")
    asked, computed = alignment.request_tokens(store, run_id), alignment.pass_tokens(store, run_id)
    if said := asked.not_recorded or computed.not_recorded:
        return [unknown(name, side, said, "Requests and passes of one recording.") for name in names]
    want, got = asked.one(), computed.one()
    found = []
    for name, column, lacking in zip(names, ("new_tokens", "decode_tokens"), ("prompts", "outputs"), strict=True):
        if want[f"{lacking}_unknown"] or want["open_unknown"] or got["tokens_unknown"] or not got["passes"]:
            why = (
                f"not recorded: {'lengths and reuse' if lacking == 'prompts' else 'lengths'} of every request and pass"
            )
            found.append(unknown(name, side, why, "Input, cached and output tokens of every request."))
        elif lacking == "outputs" and _drafts(store, run_id):
            found.append(unknown(name, side, "drafts make a pass give several tokens of a request"))
        else:
            low, more, moved = float(want[column]), float(want[f"open_{column}"]), float(want["preemptions"])
            notes = [f"requests that did not succeed may hold up to {more:,.0f} more"] if more else []
            notes += [f"preemptions may move {moved:,.0f} from the decodes to the new tokens"] if moved else []
            low, high = (low - moved, low + more) if lacking == "outputs" else (low, low + more + moved)
            told = float(got[column])
            found.append(between(name, side, low, high, told, "tokens", why="; ".join(notes), n=got["passes"]))
    return found


def _drafts(store: Store, run_id: str) -> bool:
    return store.bundle(run_id).identity.value("speculation", "method") not in (None, "none", "off")


def _rate(store: Store, side: str, run_id: str, span: Span | None, tolerance: float) -> Check:
    name = "output rate = requests decoding / time per token + first tokens"
    needed = "Chunks with their times and tokens, and times of first and last visible token."
    if span is None or not span.length_ns or no_times(store, run_id):
        return unknown(name, side, no_times(store, run_id) or "the run has no such phase", needed)
    told, came = alignment.decoding(store, run_id, span), alignment.chunk_tokens(store, run_id, span)
    if told.not_recorded or came is None or came["tokens"] is None or came["unknown"]:
        return unknown(name, side, told.not_recorded or "not recorded: when tokens came", needed)
    row, seconds = told.one(), span.length_ns * 1e-9
    if not row["per_token_ns"]:
        return unknown(name, side, "no success with two tokens or more", needed)
    expected = row["decoding"] / (row["per_token_ns"] * 1e-9) + row["first_tokens"] / seconds
    why = f"{row['decoding']:.2f} decoding, {row['per_token_ns'] / 1e6:.2f} ms per token"
    return held(name, side, expected, came["tokens"] / seconds, "tok/s", tolerance, why=why, n=row["requests"])


def _busy(store: Store, side: str, run_id: str, span: Span | None) -> Check:
    name = "time in passes, at most the time there is"
    share, why, n = busy_share(store, run_id, span)
    if share is None:
        return unknown(name, side, why, "Passes with start and end.")
    verdict = between(name, side, 0.0, 1 + ROUNDING, share, "share").verdict
    return Check(name, side, 1.0, share, "share", verdict, why, n=n, decides=False)


def busy_share(store: Store, run_id: str, span: Span | None) -> tuple[float | None, str, int]:
    """Share of a window that ranks spend in passes, what stands beside it, and how many passes that is."""
    if span is None or not span.length_ns:
        return None, "the run has no such phase", 0
    found = alignment.busy(store, run_id, span)
    said = found.not_recorded or no_times(store, run_id, "passes")
    if said:
        return None, said, 0
    row = found.one()
    if not row["passes"]:
        return None, "no passes in the phase", 0
    ranks = "" if row["ranks"] == 1 else f"mean of {row['ranks']} ranks"
    return row["busy_ns"] / (row["ranks"] * span.length_ns), ranks, row["passes"]


def _pair(
    store: Store, measured: str, replay: str, population: Population, repeats: tuple[str, ...], tolerance: float
) -> list[Check]:
    row = compare_number(store, (measured, replay), Key("in_flight", "observed"), population, Estimator.LINEAR, repeats)
    if row.state == "not comparable":
        first = unknown("effective concurrency", BOTH, row.reason, "Times of every request on both sides.")
    else:
        first = held(
            "effective concurrency",
            BOTH,
            row.measured.value,
            row.replay.value,
            "requests",
            tolerance,
            noise=row.noise,
            why="less than measured: the replay admits or sends less" if (row.gap or 0) < 0 else "",
            n=row.replay.n,
        )
    ours, theirs = (_busy_of(store, run_id, population) for run_id in (measured, replay))
    others = [share_off(ours, _busy_of(store, other, population)) for other in repeats]
    return [
        first,
        held(
            "time in passes",
            BOTH,
            ours,
            theirs,
            "share",
            tolerance,
            noise=by_repeats(ours, [off for off in others if off is not None]),
            needed="Passes with start and end on both sides.",
        ),
    ]


def _busy_of(store: Store, run_id: str, population: Population) -> float | None:
    return busy_share(store, run_id, population_span(store, run_id, population))[0]
