"""Replicas behind a router: each is a server like any other, fed with what the router gives it when it arrives."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from engine.serving import make_server
from engine.serving.cluster import Cluster, make_router, merge_records, pass_ranges, within
from engine.serving.contract import Columns, ServedRequest, Server, ServerRecord
from engine.serving.members import members
from tests.engine.serving_cases import LinearTiming, random_case
from tests.engine.serving_driver import FixedTiming, Load, drive, request, small_config

ROUTERS = ("round_robin", "least_loaded", "session", "sibling", "kv_aware")


@dataclass
class Watched:
    """A server that writes down what it is told, and when."""

    server: Server
    told: list[tuple[int, str, int]] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)

    @property
    def has_work(self) -> bool:
        return self.server.has_work

    def receive(self, request: ServedRequest, now_ns: int) -> None:
        self.told.append((now_ns, "receive", request.index))
        self.server.receive(request, now_ns)

    def abort(self, index: int, now_ns: int) -> None:
        self.told.append((now_ns, "abort", index))
        self.server.abort(index, now_ns)

    def advance(self, now_ns: int, until_ns: int | None):
        self.calls.append(now_ns)
        return self.server.advance(now_ns, until_ns)

    def finish(self) -> ServerRecord:
        return self.server.finish()


def equal(left: ServerRecord, right: ServerRecord) -> None:
    """Two records hold the same, table by table."""
    for name in ("passes", "requests", "stretches", "prefill_chunks", "admissions", "preemptions", "events"):
        ours, theirs = getattr(left, name), getattr(right, name)
        assert ours.keys() == theirs.keys(), name
        for column in ours:
            np.testing.assert_array_equal(ours[column], theirs[column], err_msg=f"{name}.{column}")
    np.testing.assert_array_equal(left.event_keys, right.event_keys)


def random_load(seed: int, requests: int, spread: int) -> Load:
    """Requests of some sessions at random times; a few are given up."""
    draw = random.Random(seed)
    arrivals, aborts, at = [], [], 0
    for index in range(requests):
        at += draw.choice((0, 0, draw.randrange(spread)))
        family = 1000 * draw.randrange(3)
        keys = [family + position for position in range(draw.randrange(6))]
        made = ServedRequest(index, draw.randrange(1, 40), draw.randrange(1, 12), keys)
        made.session, made.spawned_by = draw.randrange(5), draw.randrange(-1, 2)
        arrivals.append((at, made))
        if draw.random() < 0.1:
            aborts.append((at + draw.randrange(1, 2000), index))
    return Load(arrivals, aborts)


def cluster(seed: int, replicas: int, router: str, core: str) -> tuple[Cluster, list[Watched]]:
    case = random_case(seed)
    config = small_config(blocks=40, seats=4, budget=32)
    timing = LinearTiming(case.between_ns)
    servers = [Watched(make_server(config, timing, core)) for _ in range(replicas)]
    return Cluster(servers, make_router(router, replicas, 4, 40)), servers


@pytest.mark.parametrize("core", ["plain", "skipping"])
@pytest.mark.parametrize("seed", range(12))
def test_each_replica_is_a_single_server_fed_with_its_own_arrivals(seed: int, core: str) -> None:
    replicas = 1 + seed % 4
    load = random_load(seed, 60, 700)
    together, _ = cluster(seed, replicas, "round_robin", core)
    merged, finished = drive(together, load)
    assert [done.end_ns for done in finished] == sorted(done.end_ns for done in finished)
    passes = merged.passes
    turn = {made.index: order % replicas for order, (_, made) in enumerate(load.arrivals)}
    _, alone = cluster(seed, replicas, "round_robin", core)
    parts = []
    for number, watched in enumerate(alone):
        own = Load(
            [(at, made) for at, made in load.arrivals if turn[made.index] == number],
            [(at, index) for at, index in load.aborts if turn[index] == number],
        )
        record, _ = drive(watched.server, own)
        parts.append((number, 0, record))
    expected = merge_records(parts)
    equal(merged, expected)
    assert together.dropped_ns.keys() >= set(np.flatnonzero(merged.requests["aborted"]).tolist())
    assert passes["worker"].tolist() == sorted(passes["worker"].tolist())
