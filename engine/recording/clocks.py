"""The server's clock on the client's: how far apart they are, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import GapscopeError
from engine.importers.attach.ids import match
from engine.recording.rows import Series

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
S = 1_000_000_000


def boot_id() -> str | None:
    """What tells this boot of this machine from any other; None where the system does not say."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return None


@dataclass(frozen=True)
class ServerClock:
    """``offset_ns`` plus a time of the server's monotonic clock is the client's; ``uncertainty_ns`` to both sides.

    ``readings`` are of the server's monotonic and wall clock.
    """

    offset_ns: int
    uncertainty_ns: int
    source: str
    readings: Sequence[tuple[int, int]]

    def client_ns(self, server_ns: int) -> int:
        """A time of the server's monotonic clock on the client's."""
        return server_ns + self.offset_ns

    def server_ns(self, client_ns: int) -> int:
        """A time of the client's monotonic clock on the server's."""
        return client_ns - self.offset_ns

    def of_wall(self, wall_s: float) -> int:
        """A time of day at the server on the client's monotonic clock, by the nearest reading of both clocks."""
        wall_ns = round(wall_s * S)
        mono, wall = min(self.readings, key=lambda reading: abs(reading[1] - wall_ns))
        return self.client_ns(wall_ns - wall + mono)

    def record(self) -> dict[str, Any]:
        """What the identity of a recording says of it."""
        return {
            "server_offset_s": self.offset_ns / S,
            "server_offset_uncertainty_s": self.uncertainty_ns / S,
            "server_offset_source": self.source,
        }


def clock_of(
    series: Series, requests: Iterable[Mapping[str, Any]], started_ns: int, client_boot_id: str | None
) -> ServerClock:
    """How the clock of a series' server relates to that of the client that sent ``requests`` (rows of a recording).

    One machine has one monotonic clock. Of two, each request says that the engine took it after it was sent, and that
    its end was seen after the engine let it go: the offset lies in what all of them leave.

    Raises:
        GapscopeError: another machine, and the engine's rows have none of the client's requests, or contradict them.
    """
    if client_boot_id is not None and series.meta.get("boot_id") == client_boot_id:
        return ServerClock(0, 0, "one machine: the same monotonic clock", series.clock)
    sent = {row["request_id"]: row for row in requests}
    taken = {name: at for row in series.rows for name, at, *_ in row.get("arrivals", ())}
    left = {name: at for row in series.rows for name, *_, at in row.get("finished", ())}
    mine = match(taken, set(sent))
    low = [started_ns + round(sent[mine[name]]["dispatch_s"] * S) - at for name, at in taken.items() if name in mine]
    high = [
        started_ns + round(sent[mine[name]]["end_s"] * S) - at
        for name, at in left.items()
        if name in mine and sent[mine[name]]["status"] == "ok"
    ]
    if not low or not high:
        raise GapscopeError(
            "The server's rows have none of the requests that were sent: expected the rows of the server that was "
            "asked, written meanwhile."
        )
    earliest, latest = max(low), min(high)
    if earliest > latest:
        raise GapscopeError(
            f"The clocks of client and server drift apart by {(earliest - latest) / 1e6:.1f} ms within the recording: "
            "no offset lets every request be sent before it arrived and end after it was let go."
        )
    source = f"between what was sent before it arrived and seen after it was let go, over {len(low):,} requests"
    return ServerClock((earliest + latest) // 2, (latest - earliest + 1) // 2, source, series.clock)
