"""Questions asked of a recording: does it agree with itself, with its trace, and with what it says of itself?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from engine.bundle import Check, Phase
from engine.importers.recording.content import Contents
from engine.importers.recording.files import Recording
from engine.importers.recording.history import Admission, History
from engine.importers.recording.kv_events import CacheEvents
from engine.importers.recording.mending import KILLED
from engine.importers.recording.native import differences, native_metrics
from engine.importers.recording.qualify_engine import events_consistent, passes_consistent, passes_unbroken
from engine.importers.recording.verdict import names, verdict
from engine.jsonl import SkippedRow


def qualify(
    recording: Recording,
    seen: Mapping[str, History],
    contents: Contents,
    events: CacheEvents,
    phases: Sequence[Phase],
    tables: Mapping[str, pa.Table],
) -> list[Check]:
    """Every check of a recorded run, in the order in which a reader wants to see them."""
    rows = {r["request_id"]: r for r in recording.requests}
    return [
        rows_used(recording.skipped, len(recording.requests) + len(recording.passes) + len(recording.events or ())),
        files_intact(recording.identity, recording.digests),
        _phases_complete(recording),
        _prompts(recording, contents),
        *_client_on_time(recording.identity),
        *_ids_echoed(recording.requests),
        *_lengths(recording.identity, recording.requests),
        *_requests(recording, rows, seen),
        *_tokens(recording, rows, seen),
        *_engine(recording, seen, events),
        *_summary(recording, phases, tables),
    ]


def rows_used(skipped: Sequence[SkippedRow], used: int) -> Check:
    """Whether rows had to be left out."""
    return verdict("rows_used", skipped, used + len(skipped), "rows were used", "rows were left out")


def files_intact(identity: Mapping[str, Any], digests: Mapping[str, str]) -> Check:
    """Whether the files are those that the identity lists."""
    listed = identity.get("files")
    wanted = {
        name: entry["sha256"] if isinstance(entry, Mapping) else entry
        for name, entry in (listed.items() if isinstance(listed, Mapping) else ())
        if not isinstance(entry, Mapping) or "sha256" in entry
    }
    bad = [name for name, digest in wanted.items() if digests.get(name) != digest]
    return verdict(
        "files_intact", bad, len(wanted), "files have the listed digest", "files differ from the listed digest"
    )


LATE_MS = 10.0
"""A client whose event loop is later than this (99th percentile) measures itself as well."""


def _client_on_time(identity: Mapping[str, Any]) -> list[Check]:
    """Whether the client was quick enough to measure the server, where it says so."""
    client = identity.get("client")
    lag = client.get("lateness_ms") if isinstance(client, Mapping) else None
    if not isinstance(lag, Mapping) or not isinstance(lag.get("p99"), int | float):
        return []
    text = f"the client's event loop was {lag['p99']:g} ms late at p99 ({LATE_MS:g} ms is the limit here)"
    return [Check("client_on_time", "pass" if lag["p99"] <= LATE_MS else "fail", text)]


def _ids_echoed(requests: Sequence[Mapping[str, Any]]) -> list[Check]:
    """Whether responses carry the ids that the client sent, where the server is one that does so."""
    named = {row["request_id"]: row["response_id"] for row in requests if row.get("response_id")}
    foreign = [name for name, answered in named.items() if name not in answered]
    if len(foreign) == len(named):
        return []
    return [
        verdict(
            "ids_echoed",
            foreign,
            len(named),
            "responses carry the id of their request",
            "responses carry another id than that of their request",
        )
    ]


def _lengths(identity: Mapping[str, Any], requests: Sequence[Mapping[str, Any]]) -> list[Check]:
    """Whether the server read the prompts and put out the lengths of the workload, by its own usage, where the client
    kept what that says of both."""
    exact = identity["workload"].get("sampling", {}).get("exact_output_length")
    told = [row for row in requests if row["status"] == "ok" and "usage_prompt_tokens" in row]
    if not told:
        return []
    checks = []
    for name, ours, theirs, done in (
        ("prompt_as_sent", "input_tokens", "usage_prompt_tokens", "read the prompt"),
        ("lengths_as_asked", "output_tokens_requested", "output_tokens", "put out the length"),
    ):
        known = [row for row in told if row[ours] is not None and row[theirs] is not None]
        said = "the server cannot be told exact lengths" if known else "no response says so"
        if not known or (name == "lengths_as_asked" and not exact):
            checks.append(Check(name, "unknown", said))
            continue
        other = [row["request_id"] for row in known if row[ours] != row[theirs]]
        right, wrong = f"the server {done} that was asked for", f"the server {done} otherwise than asked for"
        checks.append(verdict(name, other, len(known), right, wrong))
    return checks


def _engine(recording: Recording, seen: Mapping[str, History], events: CacheEvents) -> list[Check]:
    """What the engine wrote, in itself; that it wrote nothing is said where only the client was recorded."""
    if not recording.served:
        return [Check("passes_recorded", "unknown", "only the client was recorded: no passes, no KV events")]
    return [
        *_rows_complete(recording.identity),
        passes_unbroken(recording.passes),
        *passes_consistent(recording, seen),
        *events_consistent(recording, events),
    ]


def _rows_complete(identity: Mapping[str, Any]) -> list[Check]:
    """Whether the recorder at the server kept every row, where it says so."""
    kept = identity.get("server_rows")
    if not isinstance(kept, Mapping):
        return []
    lost = [str(sentence) for sentence in kept.get("lost") or ()]
    unsure = [str(sentence) for sentence in kept.get("unsure") or ()]
    words = "; ".join(lost or unsure) or "the server's recorders kept every row"
    return [Check("rows_complete", "fail" if lost else "unknown" if unsure else "pass", words)]


def _phases_complete(recording: Recording) -> Check:
    asked = recording.profile_start_s + recording.identity["phases"]["duration_s"]
    stop = recording.ended_s("stop")
    if stop is None:
        return Check("phases_complete", "unknown", "the recording does not say when it stopped dispatching")
    over = recording.identity.get("end") or {}
    broken = over.get(KILLED) or over.get("interrupted")
    detail = f"dispatching stopped {stop:.3f} s after the start, {asked:g} s were asked for"
    if stop >= asked - 1e-3 and not broken:
        return Check("phases_complete", "pass", detail)
    if over.get(KILLED):
        detail += ": the program that recorded was killed"
    elif broken:
        cause = "the server was gone" if over.get("server_gone") else over.get("problem") or "interrupted"
        detail += f": {cause}"
    elif over.get("trace_exhausted"):
        detail += ": the trace was over"
    return Check("phases_complete", "fail", detail)


def _prompts(recording: Recording, contents: Contents) -> Check:
    total = len(recording.requests)
    check = verdict(
        "prompts_verified",
        contents.differing,
        total,
        "prompts rebuilt from trace and outputs are those that were sent",
        "prompts are not those that trace and outputs give (no block hashes for them)",
    )
    if contents.unknown and check.verdict != "fail":
        which = names(contents.unknown)
        return Check(check.check, "unknown", f"{len(contents.unknown)} of {total} prompts cannot be rebuilt: {which}")
    return check


def _requests(recording: Recording, rows: Mapping[str, Mapping[str, Any]], seen: Mapping[str, History]) -> list[Check]:
    unknown = [name for name in seen if name not in rows]
    # What was canceled may have been on its way to the engine, or reach it after the client let go.
    unseen = [name for name in rows if name not in seen or seen[name].received_s is None]
    lost = [name for name in unseen if rows[name]["status"] == "ok"]
    disorder = []
    for name, row in rows.items():
        history = seen.get(name, History())
        first = history.admissions[0].time_s if history.admissions else None
        times = [row["scheduled_s"], row["dispatch_s"], history.received_s, first, row["first_visible_s"]]
        times += [row["end_s"]] if row["status"] == "ok" else []
        known = [t for t in times if t is not None]
        if known != sorted(known):
            disorder.append(name)
    clock = verdict(
        "one_clock", disorder, len(rows), "requests have their times in order", "requests have times out of order"
    )
    if not recording.served:
        return [clock]
    return [
        verdict(
            "requests_known",
            unknown,
            len(seen),
            "requests of the engine are the client's",
            "requests of the engine are not the client's",
        ),
        verdict(
            "requests_seen",
            lost,
            len(rows) - len(unseen) + len(lost),
            "requests reached the engine",
            "successful requests are not among those that the engine took",
        ),
        clock,
    ]


def _tokens(recording: Recording, rows: Mapping[str, Mapping[str, Any]], seen: Mapping[str, History]) -> list[Check]:
    told = {name: row for name, row in rows.items() if row["output_tokens"] is not None}
    ids = [name for name, row in told.items() if row["output_tokens"] != len(row["output_ids"])]
    chunked = [name for name, row in told.items() if row["output_tokens"] != _tokens_in_chunks(row)]
    streamed = [
        verdict(
            "output_ids",
            ids,
            len(told),
            "requests have an id per output token",
            "requests have another number of ids than output tokens",
        ),
        verdict(
            "chunk_tokens",
            chunked,
            len(told),
            "requests have their tokens in chunks",
            "requests have other token counts in their chunks",
        ),
    ]
    if not recording.served:
        return streamed
    size = recording.block_size
    assert size is not None
    ok = [(name, row, seen[name]) for name, row in rows.items() if row["status"] == "ok" and name in seen]
    admitted = [(name, row, h) for name, row, h in ok if h.admissions and name in told]
    sums = [
        name
        for name, row, h in admitted
        if h.scheduled_tokens - h.recomputed_tokens
        != row["input_tokens"] - h.admissions[0].cached_tokens + row["output_tokens"] - 1
    ]
    hits = [(n, row, a) for n, row, h in admitted for a in h.admissions[:1]]
    return [
        verdict(
            "token_sums",
            sums,
            len(admitted),
            "successful requests computed exactly prompt - cached + outputs - 1 tokens (recomputation apart)",
            "successful requests computed another number of tokens than prompt - cached + outputs - 1",
        ),
        *streamed,
        _cached_tokens(hits),
        verdict(
            "hits_whole_blocks",
            [n for n, row, a in hits if a.cached_tokens % size or a.cached_tokens > row["input_tokens"] - 1],
            len(hits),
            f"hits are whole blocks of {size} tokens and leave the last token to compute",
            "hits are not whole blocks or leave nothing to compute",
        ),
    ]


def _cached_tokens(hits: Sequence[tuple[str, Mapping[str, Any], Admission]]) -> Check:
    """Whether the cached tokens that the server tells are those of the first pass; it need not tell any."""
    told = [(name, row["cached_tokens"], a.cached_tokens) for name, row, a in hits if row["cached_tokens"] is not None]
    if hits and not told:
        words = "no response tells its cached tokens: start vLLM with --enable-prompt-tokens-details"
        return Check("cached_tokens_agree", "unknown", words)
    return verdict(
        "cached_tokens_agree",
        [name for name, said, cached in told if said != cached],
        len(told),
        "successful requests are told the cached tokens of their first pass",
        "successful requests are told another number of cached tokens",
    )


def _tokens_in_chunks(row: Mapping[str, Any]) -> int | None:
    counts = [tokens for _, tokens, _ in row["chunks"]]
    return None if None in counts else sum(counts)


def _summary(recording: Recording, phases: Sequence[Phase], tables: Mapping[str, pa.Table]) -> list[Check]:
    """Whether the recording's own summary follows from its rows; nothing of one that has none."""
    if recording.summary is None:
        return []
    profile = next((p for p in phases if p.name == "profile"), None)
    if profile is None or "passes" not in tables:
        return [Check("summary_reproduced", "unknown", "its figures are of a profile with passes")]
    compared, words = differences(native_metrics(tables.get, profile), recording.summary)
    return [
        verdict(
            "summary_reproduced",
            words,
            compared,
            "figures of the recording's own summary follow from the rows",
            "figures of the recording's own summary differ",
        )
    ]
