"""A replay with a prefill and a decode pool beside one without: the way between them by hand, stage by stage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dashboard.charts.requests import request as charts
from dashboard.charts.requests.request_time import stretches
from dashboard.charts.style import ROLES
from dashboard.compare.boundaries import Boundaries
from dashboard.compare.decomposition import decompositions
from dashboard.frame import Frame, Side
from dashboard.metrics import HEADLINE, Estimator, Window
from dashboard.queries.request import find, passes_of
from dashboard.store import Store
from engine.replay import replay
from engine.traces.tree import Conversation, Play, Segment, Trace, Turn

MS = 1_000_000
KNOBS = {
    "timing": "fixed",
    "fixed_pass_us": 10_000,
    "fixed_prefill_token_us": 0,
    "fixed_decode_request_us": 0,
    "fixed_kv_token_ns": 0,
    "block_size": 4,
    "kv_blocks": 101,
    "lanes": 2,
    "lane_stagger_ms": 15,
}
POOLS = {"prefill_replicas": 1, "kv_bytes_per_token": 1000, "transfer_gb_s": 0.001, "transfer_latency_us": 0}
# Every pass takes 10 ms, a token 1 ms on its way. Request a is sent at 0, b at 15: 12 tokens, and 4 or 3 out.
# One engine: a 0-10, 10-20, 20-30 with the prompt of b, 30-40; b waits until 20, and has tokens at 30, 40, 50.
# Pools: a is computed 0-10, sent 10-22, decodes 22-52. b is computed 15-25, the decode worker looks at 32, it is sent
# 32-44, and decodes from the next pass on, 52-72.


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, str, str]:
    root = tmp_path_factory.mktemp("pools")
    turns = {"a": Turn(4, 0, (Segment("a", 12),)), "b": Turn(3, 0, (Segment("b", 12),))}
    trace = Trace("two", "test", "0" * 64, [Play(name, [Conversation(name, [one])]) for name, one in turns.items()])
    one, two = (replay(trace, KNOBS | more, store=root) for more in ({}, POOLS))
    return Store([Path(root)]), one, two


def frame_of(store: Store, *run_ids: str) -> Frame:
    sides = [Side(role, store.bundle(run_id)) for role, run_id in zip(ROLES, run_ids, strict=False)]
    return Frame(sides[0], tuple(sides[1:]), HEADLINE, Estimator.LINEAR, Window.FIXED)


def test_the_transfer_is_a_stage_of_its_own(runs: tuple[Store, str, str]) -> None:
    store, one, two = runs
    both = Boundaries(store, [one, two], [HEADLINE, HEADLINE], "e2e")
    assert [stage.label for stage in both.stages][-4:] == [
        "first token computed to KV transferred",
        "KV transferred to first visible",
        "first visible to last token computed",
        "last token computed to last visible",
    ]
    assert [stage.layer for stage in both.stages][-4:] == ["transfer", "output", "GPU", "output"]
    assert both.merged == []
    a, b = [0, 0, 0, 0, 10, 0, 12, 0, 30, 0], [0, 0, 0, 0, 10, 0, 19, 0, 28, 0]
    assert both.group(1, both.complete).means == pytest.approx(np.mean([a, b], axis=0))
    assert both.group(0, both.complete).means == pytest.approx([0, 0, 2.5, 0, 10, 0, 0, 0, 25, 0])


def test_a_pair_without_pools_has_no_such_stage(runs: tuple[Store, str, str]) -> None:
    store, one, _ = runs
    both = Boundaries(store, [one, one], [HEADLINE, HEADLINE], "e2e")
    assert "first token computed to first visible" in [stage.label for stage in both.stages]
    assert "transfer" not in {part.name for part in decompositions(store, one, one, HEADLINE)["ttft"].parts}


def test_the_transfer_is_a_part_of_the_gap(runs: tuple[Store, str, str]) -> None:
    store, one, two = runs
    found = decompositions(store, one, two, HEADLINE)
    parts = {name: {part.name: part.value_ms for part in found[name].parts} for name in ("ttft", "e2e", "tpot")}
    nothing = dict.fromkeys(("client", "recompute", "decode", "host", "output", "cohort", "unsplit"), 0.0)
    # TTFT 22 and 29 against 10 and 15.
    assert found["ttft"].gap == pytest.approx(13)
    ttft = nothing | {"queueing": -2.5, "prefill": 5, "mixed": -5, "transfer": (12 + 19) / 2}
    assert parts["ttft"] == pytest.approx(ttft)
    # E2E 52 and 57 against 40 and 35: b also waits 8 for the pass under way when it arrives.
    assert found["e2e"].gap == pytest.approx(17)
    e2e = nothing | {"queueing": -2.5 + 4, "prefill": 5, "mixed": -10, "decode": 5, "transfer": 15.5}
    assert parts["e2e"] == pytest.approx(e2e)
    assert "transfer" not in parts["tpot"]
    assert parts["tpot"]["queueing"] == pytest.approx(8 / 2 / 2)


def test_a_request_is_seen_on_its_way_between_the_pools(runs: tuple[Store, str, str]) -> None:
    store, _, two = runs
    (one,) = find(store, [two], "b/0")
    assert one is not None
    passes = passes_of(store, two, one).rows()
    found = [(s.kind, s.start_ns // MS, s.end_ns // MS) for s in stretches(one.row, passes) if s.end_ns > s.start_ns]
    assert found == [("prefill", 15, 25), ("transfer", 25, 52), ("decode", 52, 62), ("decode", 62, 72)]
    assert [row["start_ns"] // MS for row in passes] == [15, 52, 62]


def test_the_boundaries_of_a_request_tell_its_way(runs: tuple[Store, str, str]) -> None:
    store, one, two = runs
    frame = frame_of(store, one, two)
    table = charts.boundaries(frame, store, charts.choose(frame, store, "b/0")).rows.to_pylist()
    found = {row["boundary"]: (row["measured"], row["replay"]) for row in table}
    assert found["first pass begins"] == (5, 0)  # sent at 15
    assert found["first token computed"] == (15, 10)
    assert found["reserved at the decode worker"] == (None, 32 - 15)
    assert found["KV transferred"] == (None, 44 - 15)
    assert [row["boundary"] for row in table][3:8] == ["admitted", *list(found)[4:8]]


def test_a_pair_without_pools_has_no_boundaries_of_them(runs: tuple[Store, str, str]) -> None:
    store, one, _ = runs
    frame = frame_of(store, one, one)
    table = charts.boundaries(frame, store, charts.choose(frame, store, "b/0")).rows.to_pylist()
    names = [row["boundary"] for row in table]
    assert "first token computed" in names
    assert not {"reserved at the decode worker", "KV transferred"} & set(names)
