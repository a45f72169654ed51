"""The two halves of a recording put together: a run with passes and KV events under its requests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine import jsonl
from engine.errors import GapscopeError
from engine.importers import import_recording
from engine.importers.recording.content import find_trace
from engine.importers.recording.files import REQUEST
from engine.recording.clocks import S, clock_of
from engine.recording.ending import cut_short
from engine.recording.facts import server_facts
from engine.recording.folder import REQUESTS, lay_server_half, mend_client_half, read_identity
from engine.recording.joining import names_of, server_half
from engine.recording.listeners import KV_RAW
from engine.recording.rows import read_series

AFTER_S = 1.0
"""How long after the client's end passes still belong to its run: those that let canceled requests go."""


def join(
    folder: Path,
    rows: Path,
    store: Path,
    trace: Path | None = None,
    events: Path | None = None,
    title: str | None = None,
) -> str:
    """Lay what a server's recorder wrote in ``rows`` under the recording in ``folder``, and import that; returns the
    run's id. ``events`` is the file of the KV-event recorder. ``trace`` is the file that was played, where it
    is not beside or above the folder: what a store keeps of one has no token ids.

    Raises:
        GapscopeError: either half is missing or malformed, or they are not of one time and place.
    """
    mend_client_half(folder)
    identity = read_identity(folder)
    trace = find_trace(folder, identity, trace)  # before anything is laid
    requests = jsonl.read_rows(folder / REQUESTS, lambda row: REQUEST)
    started_ns, ended_ns = _span_ns(folder, identity)
    same = identity["clock"].get("boot_id")
    names = [row["request_id"] for row in requests]
    series = read_series(rows, started_ns, ended_ns, names)
    if same is not None and all(one.meta.get("boot_id") == same for one in series):
        clocks = [clock_of(one, requests, started_ns, same) for one in series]
    else:
        clocks = [clock_of(one, requests, started_ns, same) for one in read_series(rows, client_ids=names)]
        since_ns = min(clock.server_ns(started_ns) for clock in clocks)
        until_ns = max(clock.server_ns(ended_ns) for clock in clocks)
        series = read_series(rows, since_ns, until_ns, names)
    heard = [events] if events is not None else sorted(folder.glob(KV_RAW.format("*")))
    half = server_half(series, clocks, names, started_ns, ended_ns, heard)
    if not half.passes:
        raise GapscopeError(
            f"{rows} has no pass between start and end of {folder.name}: expected the rows of the server that was "
            "asked, written meanwhile."
        )
    ended = started_ns + round(identity["end"]["t_end_s"] * S)
    lost, half.unsure = cut_short(series, clocks, requests, names_of(series, names), started_ns, ended)
    half.lost += lost
    facts = server_facts(identity, series[0].meta)
    facts["clock"] = {**identity["clock"], **clocks[0].record()}
    lay_server_half(folder, half, facts)
    return import_recording(folder, store, trace, title)


def _span_ns(folder: Path, identity: Mapping[str, Any]) -> tuple[int, int]:
    started = identity.get("clock", {}).get("t0_mono_ns")
    ended = identity.get("end", {}).get("t_end_s")
    if type(started) is not int or not isinstance(ended, int | float):
        raise GapscopeError(f"{folder} does not say when it began and ended: expected a recording of this program.")
    return started, started + round((ended + AFTER_S) * S)
