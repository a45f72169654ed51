"""The sample recordings: every published figure of theirs, by the queries that the pages use.

The figures were written down beside the recordings by the programs that made them, rounded as here.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.compute as pc
import pytest
from small_runs import SAMPLES, sample_id

from dashboard.compare.numbers import Key, number
from dashboard.metrics import HEADLINE, Population
from dashboard.queries import cache, cohort, reuse
from dashboard.queries.identity import repeats
from dashboard.store import Store

NAMES = ("ample8", "ample8_repeat", "tight8", "tight8_repeat")

FIGURES: dict[str, tuple[float, float, float, float]] = {
    "ttft.mean": (215, 210, 471, 482),
    "ttft.p50": (163, 160, 343, 316),
    "ttft.p90": (431, 417, 1047, 1151),
    "tpot_chunk.mean": (34.7, 33.0, 41.6, 42.3),
    "tpot_chunk.p50": (31.8, 30.6, 38.1, 38.0),
    "tpot_chunk.p90": (50.8, 48.5, 67.6, 68.1),
    "latency_end.mean": (1268, 1187, 1717, 1767),
    "latency_end.p50": (1055, 976, 1382, 1352),
    "latency_end.p90": (2469, 2355, 3628, 3716),
    "hit_ratio.tokens": (0.817, 0.816, 0.618, 0.614),
    "request_rate.completions": (4.43, 4.61, 3.59, 3.49),
    "preemptions.capture": (0, 0, 6, 2),
}
PASSES = {
    "prefill_only": (5, 5, 8, 7),
    "mixed": (693, 716, 749, 750),
    "decode_only": (4091, 4405, 3009, 2902),
}
OK_AND_CANCELED = ((662, 3), (691, 2), (533, 8), (516, 7))


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    found = Store([SAMPLES])
    yield found
    found.close()


def decimals(figure: float) -> float:
    """Half a unit of the last digit that the figure shows."""
    text = repr(figure)
    return 0.5 * 10.0 ** -(len(text.partition(".")[2]) if "." in text else 0)


@pytest.mark.parametrize("text", FIGURES)
@pytest.mark.parametrize("name", NAMES)
def test_published_figures(store: Store, name: str, text: str) -> None:
    figure = FIGURES[text][NAMES.index(name)]
    found = number(store, sample_id(name), Key.parse(text), HEADLINE).value
    assert found == pytest.approx(figure, abs=decimals(figure) + 1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_passes_of_the_whole_capture(store: Store, name: str) -> None:
    for class_, counts in PASSES.items():
        found = number(store, sample_id(name), Key("pass_count", class_), Population("all")).value
        assert found == counts[NAMES.index(name)]


@pytest.mark.parametrize("name", NAMES)
def test_the_ledger_balances(store: Store, name: str) -> None:
    told = cohort.ledger(store, sample_id(name))
    profile = next(row for row in told.rows if row.phase == "profile")
    assert told.balanced
    assert (profile.ok, profile.canceled, profile.error) == (*OK_AND_CANCELED[NAMES.index(name)], 0)


def test_definitions_are_kept_apart_on_ample8(store: Store) -> None:
    run_id = sample_id("ample8")

    def value(text: str) -> float | None:
        return number(store, run_id, Key.parse(text), HEADLINE).value

    assert value("request_rate.completions") == pytest.approx(4.427, abs=5e-4)
    assert value("request_rate.fixed") == pytest.approx(4.413, abs=5e-4)
    assert value("request_rate.observed_span") == pytest.approx(4.407, abs=5e-4)
    assert value("tpot.mean") == pytest.approx(34.650, abs=5e-4)
    assert value("tpot_chunk.mean") == pytest.approx(34.655, abs=5e-4)
    assert value("e2e.mean") == pytest.approx(1267.81, abs=5e-3)
    assert value("latency_end.mean") == pytest.approx(1268.06, abs=5e-3)
    assert value("queue_time.mean") == pytest.approx(4.788, abs=5e-4)
    assert value("request_path.mean") == pytest.approx(44.489, abs=5e-4)
    assert value("dispatch_lag.mean") == pytest.approx(4.844, abs=5e-4)
    assert value("chunk_gap.mean") == pytest.approx(34.395, abs=5e-4)
    assert number(store, run_id, Key("chunk_gap", "mean"), HEADLINE).n == 20_272
    assert number(store, run_id, Key("tpot", "mean"), HEADLINE).n == 580


def test_tokens_per_second_as_published(store: Store) -> None:
    run_id = sample_id("ample8")
    assert number(store, run_id, Key("output_rate", "completions"), HEADLINE).value == pytest.approx(140.42, abs=5e-3)
    total = number(store, run_id, Key("total_rate", "completions"), HEADLINE).value
    assert total == pytest.approx(140.42 + 5064.073, abs=6e-3)


def test_repeats_find_each_other(store: Store) -> None:
    for left, right in (("ample8", "ample8_repeat"), ("tight8", "tight8_repeat")):
        assert repeats(store, sample_id(left)) == [sample_id(right)]
        assert repeats(store, sample_id(right)) == [sample_id(left)]


def test_shared_turns_have_equal_prompts_and_reuse(store: Store) -> None:
    left, right = sample_id("ample8"), sample_id("ample8_repeat")
    found = reuse.summary(store, left, right, Population("all"))
    assert (found.turns, found.equal_turns) == (747, 747)
    change = reuse.change(store, left, right, Population("all"))
    assert pc.all(pc.equal(change.table["measured_input_tokens"], change.table["replay_input_tokens"])).as_py()


def test_blocks_stored_and_removed(store: Store) -> None:
    # Of tight8: 8,703 stored and 8,487 removed; preemptions from the batches.
    totals: dict[str, int] = {}
    for row in cache.event_totals(store, sample_id("tight8")).rows():
        totals[row["kind"]] = totals.get(row["kind"], 0) + (row["blocks"] or 0)
    assert (totals["store"], totals["evict"]) == (8703, 8487)
