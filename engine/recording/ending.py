"""Whether a server's rows reach the end of the load: one that is killed writes no last row, one that idles neither."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine.importers.recording.verdict import names as listed
from engine.recording.clocks import S, ServerClock
from engine.recording.rows import Series

SILENT_S = 90.0
"""A recorder that lives writes a row with its clocks every minute."""
_BROKEN = ("connection:", "cut off:")


def cut_short(
    series: Sequence[Series],
    clocks: Sequence[ServerClock],
    requests: Sequence[Mapping[str, Any]],
    client_id: Callable[[str], str],
    started_ns: int,
    ended_ns: int,
) -> tuple[list[str], list[str]]:
    """Sentences on rows that are missing at the end, and on what cannot be told; times as in ``server_half``.

    Rows may just stop when a server idles or goes on. They are cut short where the engine had requests that it never
    let go, where requests after the last row broke off without reaching it, or where not even its clocks come.
    """
    status = {row["request_id"]: row["status"] for row in requests}
    lost: list[str] = []
    unsure: list[str] = []
    silent: list[str] = []
    for one, clock in zip(series, clocks, strict=True):
        if one.ended:
            continue
        last_ns = clock.client_ns(one.last_ns)
        when = f"rank {one.dp_rank}: the rows end {(ended_ns - last_ns) / S:.1f} s before the load"
        if last_ns >= ended_ns:
            when = f"rank {one.dp_rank}: the rows go on after the load"
        held = [name for name in map(client_id, one.open) if name in status]
        left = [name for name in held if status[name] != "canceled"]
        if left:
            lost.append(
                f"{when}, without a last row, and {len(left):,} requests are never let go ({listed(left)}): was the "
                "server killed?"
            )
        elif held:
            unsure.append(f"{when}; nothing tells that canceled requests were let go: {listed(held)}")
        elif last_ns < ended_ns - round(SILENT_S * S):
            silent.append(f"{when}, without a last row, and a recorder that lives writes one every minute")
    if not lost and not any(one.ended for one in series):
        lost += _not_reached(series, clocks, requests, client_id, started_ns)
    return lost or silent, unsure


def _not_reached(
    series: Sequence[Series],
    clocks: Sequence[ServerClock],
    requests: Sequence[Mapping[str, Any]],
    client_id: Callable[[str], str],
    started_ns: int,
) -> list[str]:
    """Requests that broke off after the last row of all ranks, and are in none."""
    last_ns = max(clock.client_ns(one.last_ns) for one, clock in zip(series, clocks, strict=True))
    seen = {client_id(name) for one in series for row in one.rows for name, *_ in row.get("arrivals", ())}
    broken = [
        row["request_id"]
        for row in requests
        if row["request_id"] not in seen
        and str(row["error"]).startswith(_BROKEN)
        and started_ns + round(row["end_s"] * S) > last_ns
    ]
    if not broken:
        return []
    at_s = (last_ns - started_ns) / S
    return [
        f"the rows end {at_s:.1f} s after the start, without a last row, and {len(broken)} requests broke off after it "
        f"that are in none ({listed(broken)}): was the server killed?"
    ]
