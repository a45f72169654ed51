"""Drives a server through an open loop and reads its record, for the tests of the serving cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.serving.contract import Finished, ServedRequest, Server, ServerConfig, ServerRecord
from engine.serving.members import members


@dataclass
class FixedTiming:
    """Every pass takes ``duration_ns``, plus ``per_token_ns`` for each new token and ``per_decode_ns`` per decode."""

    duration_ns: int = 1
    between_ns: int = 0
    per_token_ns: int = 0
    per_decode_ns: int = 0

    def pass_ns(
        self,
        prefill_requests: int,
        new_tokens: int,
        prefill_kv_tokens: int,
        decode_requests: int,
        decode_kv_tokens: int,
    ) -> int:
        return self.duration_ns + new_tokens * self.per_token_ns + decode_requests * self.per_decode_ns


@dataclass
class Load:
    """Requests with their arrival times, and who is aborted when."""

    arrivals: Sequence[tuple[int, ServedRequest]]
    aborts: Sequence[tuple[int, int]] = ()


def small_config(
    blocks: int = 1000, block_size: int = 4, seats: int = 100, budget: int = 1000, threshold: int = 0, **others: bool
) -> ServerConfig:
    return ServerConfig(blocks, block_size, seats, budget, threshold, **others)


def request(index: int, prompt: int, output: int, keys: Sequence[int] = ()) -> ServedRequest:
    return ServedRequest(index, prompt, output, list(keys))


def drive(server: Server, load: Load, step_ns: int | None = None) -> tuple[ServerRecord, list[Finished]]:
    """Serve a load to its end; ``step_ns`` limits what one call of ``advance`` may run."""
    agenda = sorted(
        [(at, 0, order) for order, (at, _) in enumerate(load.arrivals)]
        + [(at, 1, order) for order, (at, _) in enumerate(load.aborts)]
    )
    finished: list[Finished] = []
    now = 0
    while agenda or server.has_work:
        while agenda and agenda[0][0] <= now:
            _, kind, order = agenda.pop(0)
            if kind == 0:
                server.receive(load.arrivals[order][1], now)
            else:
                server.abort(load.aborts[order][1], now)
        if server.has_work:
            until = agenda[0][0] if agenda else None
            if step_ns is not None:
                until = min(now + step_ns, until) if until is not None else now + step_ns
            now, done = server.advance(now, until)
            finished += done
        elif agenda:
            now = max(now, agenda[0][0])
    return server.finish(), finished


def batches(record: ServerRecord) -> list[list[tuple[int, int, int]]]:
    """(index, computed before, scheduled) of every member of every pass."""
    result: list[list[tuple[int, int, int]]] = [[] for _ in record.passes["start_ns"]]
    found = members(record)
    for p, *member in zip(
        found.pass_index.tolist(),
        found.index.tolist(),
        found.computed_before.tolist(),
        found.scheduled_tokens.tolist(),
        strict=True,
    ):
        result[p].append(tuple(member))
    return result


def events(record: ServerRecord) -> list[tuple[str, int, int, list[int]]]:
    """(store or evict, pass, index, keys) of every event."""
    rows = zip(
        *(record.events[c].tolist() for c in ("kind", "pass_index", "index", "first_key", "num_keys")), strict=True
    )
    keys = record.event_keys.tolist()
    return [(("store", "evict")[kind], p, index, keys[first : first + n]) for kind, p, index, first, n in rows]
