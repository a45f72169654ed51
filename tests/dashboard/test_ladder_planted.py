"""Planted faults: the ladder names the layer that was made wrong, and warns where two faults hide each other."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from planted import planted_store

from dashboard.compare.climb import Climb
from dashboard.compare.ladder import climb
from dashboard.compare.numbers import Key
from dashboard.render.ladder import sentences
from dashboard.store import Store
from engine.bundle import find_bundle
from engine.ladder import build_ladder
from engine.ladder.rungs import RUNGS


@pytest.fixture(scope="module")
def climbs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Climb]:
    """The ladder of each fault, by its name."""
    store = tmp_path_factory.mktemp("planted")
    pairs = planted_store(store)
    for measured, base in pairs.values():
        built = build_ladder(find_bundle([store], measured), find_bundle([store], base), stores=[store], store=store)
        assert [rung.why for rung in built.rungs] == [""] * 5
    shown = Store([store])
    return {name: climb(shown, *pair) for name, pair in pairs.items()}


@pytest.mark.parametrize(
    ("fault", "number", "rung"),
    [
        ("pool", "ttft.mean", 1),
        ("pool", "ttft.p90", 1),
        ("pool", "hit_ratio.tokens", 1),
        ("think", "ttft.mean", 2),
        ("think", "e2e.mean", 2),
        ("think", "request_rate.fixed", 2),
        ("decode", "tpot.mean", 4),
        ("decode", "tpot.p90", 4),
        ("decode", "e2e.mean", 4),
        ("decode", "itl.p50", 4),
    ],
)
def test_the_planted_layer_is_named_and_holds_the_gap(
    climbs: dict[str, Climb], fault: str, number: str, rung: int
) -> None:
    gap = climbs[fault].gaps[Key.parse(number)]
    assert gap.step is not None
    assert gap.step.taken == (rung,)
    assert gap.share is not None
    assert gap.share >= 0.8
    assert f"is the {RUNGS[rung].isolates} (rung {rung - 1} → {rung})" in sentences(gap)[0]
    assert gap.canceling == ()


def test_faults_that_hide_each_other_are_both_named(climbs: dict[str, Climb]) -> None:
    gap = climbs["compensating"].gaps[Key("ttft", "mean")]
    assert gap.gap is not None
    assert gap.measured.value is not None
    assert abs(gap.gap) < 0.02 * gap.measured.value
    assert [step.taken for step in gap.canceling] == [(4,), (6,)]
    timing, frontend = (step.changes[gap.key].difference for step in gap.canceling)
    assert timing is not None
    assert frontend is not None
    assert timing > 0 > frontend
    assert any("Steps of opposite sign cancel" in sentence for sentence in sentences(gap))


def test_without_a_fault_no_step_does_anything(climbs: dict[str, Climb]) -> None:
    for key, gap in climbs["none"].gaps.items():
        assert (gap.gap, gap.step, gap.canceling) == (0, None, ()), key


def test_steps_sum_to_the_gap(climbs: dict[str, Climb]) -> None:
    for found in climbs.values():
        assert len(found.steps) == 6
        for key, gap in found.gaps.items():
            told = [step.changes[key].difference for step in found.steps]
            assert sum(told) == pytest.approx(gap.gap, abs=1e-9), key
