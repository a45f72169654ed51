"""The parts of a gap: by hand for every part, sums on random runs, what is not recorded, and planted faults."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_runs import MS, SAMPLES, request, sample_id, write
from split_runs import CLOCK, a_pass, chunks, measured_rows, ns, pair, replay_rows

from dashboard.compare import compare
from dashboard.compare.compensation import DEFAULT_TOLERANCE, compensating, tolerance
from dashboard.compare.decomposition import DECOMPOSED, Decomposition, Part, decompositions
from dashboard.compare.gates import Gate
from dashboard.compare.numbers import Key, Number
from dashboard.compare.rows import Row
from dashboard.metrics import HEADLINE, Population
from dashboard.queries.stages import stage_rows
from dashboard.store import Store
from engine.bundle import Check

sys.path.insert(0, str(Path(__file__).parents[1]))

from planted import planted_store

ENGINE = ("recompute", "prefill", "mixed", "decode", "host")


def values(found: Decomposition) -> dict[str, float | None]:
    return {part.name: part.value_ms for part in found.parts}


def test_the_stages_of_a_request_by_hand(tmp_path: Path) -> None:
    store, measured, _ = pair(tmp_path / "store")
    rows = stage_rows(store, measured)
    told = {name: [round(float(v) / MS, 6) for v in column] for name, column in rows.columns.items()}
    # The way of a is 5: no pass runs. That of b is between 1 and 21, as the pass of 41-61 hides all but 1 ms of it.
    # The bounds are 5, 5, 1 and 21, their median is 5, and so are both ways.
    assert told["way_ns"] == [5, 5]
    assert told["wait_ns"] == [0, 16]
    assert told["queue_time_ns"] == [0.5, 0.5]
    assert told["first_pass_ns"] == [30.5, 30.5]
    assert told["pre_prefill_ns"] == [30, 0]
    assert told["pre_mixed_ns"] == [0, 30]
    assert told["pre_host_ns"] == [0.5, 0.5]
    assert told["first_lag_ns"] == [2, 5]
    # a after its first token: 41-61, 62-92, 93-103, 104-114 with four gaps of 1 ms.
    # b: 93-103, then preempted from 104 to 115, computed again 115-145, 146-156; gaps at 92, 103, 145 (114 is waiting).
    assert told["post_decode_ns"] == [40, 20]
    assert told["post_mixed_ns"] == [30, 0]
    assert told["post_prefill_ns"] == [0, 30]
    assert told["post_waiting_ns"] == [0, 11]
    assert told["post_host_ns"] == [4, 3]
    assert told["last_lag_ns"] == [4, 4]
    assert list(rows["visible_tokens"]) == [5, 4]


def test_every_part_by_hand(tmp_path: Path) -> None:
    store, measured, replay = pair(tmp_path / "store")
    found = decompositions(store, measured, replay, HEADLINE)
    # Replay: the way of a is 6 (idle); of b 12 with the pass 31-51 running, so at least 1, at most 12; of c 5. Bounds
    # 6, 6, 1, 12, 5, 5: median 5.5, so a 6, b 5.5 and a wait of 6.5.
    # TTFT: measured a 38, b 57 (mean 47.5); replay a 31, b 37, c 20: mean 88/3. Shared: 34.
    # A prompt token costs 60/140 ms: 30 prefill-only + 30 mixed over 100 + 40 tokens; replay computes 120 of them.
    per_token = {"prefill": 30 / 140, "mixed": 30 / 140}
    fewer = (120 - 140) / 2
    ttft = {
        "client": (6 + 5.5) / 2 - (5 + 5) / 2,
        "queueing": (0 + 6.5) / 2 - (0.5 + 16 + 0.5) / 2,
        "recompute": fewer * (per_token["prefill"] + per_token["mixed"]),
        "prefill": (20 - 30) / 2 - fewer * per_token["prefill"],
        "mixed": (20 - 30) / 2 - fewer * per_token["mixed"],
        "decode": 0,
        "host": 0 - (0.5 + 0.5) / 2,
        "output": (5 + 5) / 2 - (2 + 5) / 2,
        "cohort": (88 / 3 - 34) - 0,
        "unsplit": 0,
    }
    assert values(found["ttft"]) == pytest.approx(ttft, abs=1e-9)
    assert found["ttft"].gap == pytest.approx(88 / 3 - 47.5)
    assert sum(ttft.values()) == pytest.approx(88 / 3 - 47.5)
    # E2E: a 114, b 120 against a 115, b 90, c 20. After its first token the measured b computes 30 tokens again and
    # waits 11 ms; replay a: 31-51, 52-72, 73-93, 94-114 with four gaps; b: 73-93, 94-114, 115-125 with three.
    again = (0 - 30) / 2
    e2e = {
        "client": ttft["client"],
        "queueing": ttft["queueing"] - 11 / 2,
        "recompute": (fewer + again) * 60 / 140,
        "prefill": (20 + 0) / 2 - (30 + 30) / 2 - (fewer + again) * per_token["prefill"],
        "mixed": (20 + 20) / 2 - (30 + 30) / 2 - (fewer + again) * per_token["mixed"],
        "decode": (60 + 50) / 2 - (40 + 20) / 2,
        "host": (4 + 3) / 2 - (1 + 4 + 3) / 2,
        "output": (5 + 5) / 2 - (4 + 4) / 2,
        "cohort": (115 + 90 + 20) / 3 - (115 + 90) / 2,
        "unsplit": 0,
    }
    assert values(found["e2e"]) == pytest.approx(e2e, abs=1e-9)
    # TPOT: a over 4 tokens, b over 3; c has one token and no TPOT, so the cohorts are equal.
    tpot = {
        "queueing": -11 / 3 / 2,
        "recompute": (0 - 30 / 3) / 2 * 60 / 140,
        "prefill": (0 - 30 / 3) / 2 + 10 / 2 * per_token["prefill"],
        "mixed": (20 - 30) / 4 / 2 + 10 / 2 * per_token["mixed"],
        "decode": (60 / 4 + 50 / 3) / 2 - (40 / 4 + 20 / 3) / 2,
        "host": 0,
        "output": 0 - ((4 - 2) / 4 + (4 - 5) / 3) / 2,
        "cohort": 0,
        "unsplit": 0,
    }
    assert values(found["tpot"]) == pytest.approx(tpot, abs=1e-9)
    # Pooled ITL: seven gaps on either side.
    itl = {
        "queueing": -11 / 7,
        "recompute": -30 / 7 * 60 / 140,
        "prefill": -30 / 7 + 30 / 7 * per_token["prefill"],
        "mixed": (20 - 30) / 7 + 30 / 7 * per_token["mixed"],
        "decode": (60 + 50 - 40 - 20) / 7,
        "host": 0,
        "output": (0 - (4 - 2) - (4 - 5)) / 7,
        "cohort": 0,
        "unsplit": 0,
    }
    assert values(found["itl"]) == pytest.approx(itl, abs=1e-9)
    assert (found["ttft"].n, found["ttft"].shared, found["itl"].n) == ((2, 3), 2, (7, 7))


def test_the_gap_is_the_one_of_the_table(tmp_path: Path) -> None:
    store, measured, replay = pair(tmp_path / "store")
    found = compare(store, measured, replay)
    for one in found.decompositions:
        row = found.row(f"{one.metric}.mean")
        assert (one.measured, one.replay) == pytest.approx((row.measured.value, row.replay.value))
        assert one.n == (row.measured.n, row.replay.n)


def without(rows: dict[str, list[dict[str, Any]]], *tables: str, **columns: None) -> dict[str, Any]:
    kept = {name: found for name, found in rows.items() if name not in tables}
    return kept | {"requests": [row | columns for row in kept["requests"]]}


@pytest.mark.parametrize(
    ("left", "gone", "words"),
    [
        (without(measured_rows(), "passes"), {"client", "output", *ENGINE}, "time in the engine is not split"),
        (without(measured_rows(), cached_tokens=None), {"recompute"}, "recompute stands in the GPU parts"),
        (
            without(measured_rows(), received_ns=None, first_admit_ns=None),
            {"client", "queueing", *ENGINE},
            "not recorded on both sides",
        ),
    ],
)
def test_what_a_side_does_not_record_is_no_zero(
    tmp_path: Path, left: dict[str, Any], gone: set[str], words: str
) -> None:
    store, measured, replay = pair(tmp_path / "store", left)
    found = decompositions(store, measured, replay, HEADLINE)["ttft"]
    told = values(found)
    assert {name for name, value in told.items() if value is None} == gone
    assert sum(value or 0 for value in told.values()) == pytest.approx(found.gap)
    assert words in found.note
    if gone != {"recompute"}:
        assert told["unsplit"]
        assert found.part("unsplit").state in ("~ inside the noise", "outside the noise", "noise unknown")


def test_one_turn_that_is_not_recorded_leaves_the_others_split(tmp_path: Path) -> None:
    left = measured_rows()
    del left["kv_events"]  # b was preempted, and nobody knows from when to when
    store, measured, replay = pair(tmp_path / "store", left)
    found = decompositions(store, measured, replay, HEADLINE)["e2e"]
    assert found.part("decode").value_ms == pytest.approx((60 - 40) / 2)  # a alone
    assert found.part("unsplit").value_ms
    assert sum(value or 0 for value in values(found).values()) == pytest.approx(found.gap)
    assert "Of 1 of them something is not recorded" in found.note


def test_two_clocks_are_said_and_not_split(tmp_path: Path) -> None:
    left, right = measured_rows(), replay_rows()
    root = tmp_path / "store"
    apart = [Check("one_clock", "fail", "3 of 9 out of order")]
    measured = write(root, "m", left.pop("requests"), record=CLOCK, qualification=apart, **left)
    replay = write(root, "r", right.pop("requests"), kind="replay", **right)
    found = decompositions(Store([root]), measured, replay, HEADLINE)["ttft"]
    assert found.part("client").value_ms is None
    assert found.part("output").value_ms is None
    assert "not known to stand on one clock" in found.note
    # Durations on the engine's clock still mean something.
    assert found.part("host").value_ms == pytest.approx(-0.5)


def test_no_shared_turn_splits_nothing(tmp_path: Path) -> None:
    right = replay_rows()
    right["requests"] = [row | {"conversation_id": f"other-{row['request_id']}"} for row in right["requests"]]
    store, measured, replay = pair(tmp_path / "store", None, right)
    found = decompositions(store, measured, replay, HEADLINE)["ttft"]
    assert {part.name for part in found.parts if part.value_ms is not None} == {"unsplit"}
    assert found.part("unsplit").value_ms == pytest.approx(found.gap)
    assert "share no source-turn" in found.note


def test_a_matched_population_has_no_cohort_part(tmp_path: Path) -> None:
    store, measured, replay = pair(tmp_path / "store")
    found = decompositions(store, measured, replay, Population("profile", "matched"))["ttft"]
    assert found.part("cohort").value_ms == 0
    assert found.n == (2, 2)
    assert found.gap == pytest.approx(34 - 47.5)


durations = st.lists(st.integers(1, 40), min_size=8, max_size=8)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(durations, durations, st.integers(0, 30), st.booleans(), st.sampled_from(["profile", "profile.matched"]))
def test_parts_sum_to_the_gap(
    tmp_path_factory: pytest.TempPathFactory, left: list[int], right: list[int], lag: int, bare: bool, population: str
) -> None:
    def run(lengths: list[int], extra: int) -> dict[str, list[dict[str, Any]]]:
        """Turns one after the other, each with a prefill and two decode passes and a pause before each pass."""
        rows: dict[str, list[dict[str, Any]]] = {"requests": [], "passes": []}
        times: dict[str, list[int]] = {}
        at = 0
        for number, length in enumerate(lengths):
            sent, at = at, at + length
            ends = []
            for k in range(3):
                member = (f"q{number}", 0 if k == 0 else 39 + k, 40 if k == 0 else 1)
                rows["passes"].append(a_pass(len(rows["passes"]), at, at + length, [member], int(k > 0)))
                ends.append(at + length)
                at += length + 1
            seen = [end + extra for end in ends]
            times[f"q{number}"] = seen
            row = request(f"q{number}", input_tokens=40, cached_tokens=0, output_tokens=3, lane=number % 2)
            rows["requests"].append(
                row
                | ns(dispatched=sent, received=sent + length, first_admit=sent + length, first_visible=seen[0])
                | ns(last_visible=seen[2], end=seen[2], released=ends[2])
            )
            at += 50
        return rows | {"chunks": chunks(**times)}

    first, second = run(left, 3), run(right[: 4 + lag % 5], lag)
    if bare:
        del second["passes"]
    store, measured, replay = pair(tmp_path_factory.mktemp("random"), first, second)
    for found in decompositions(store, measured, replay, Population.parse(population)).values():
        assert found.gap is not None
        assert sum(part.value_ms or 0 for part in found.parts) == pytest.approx(found.gap, abs=1e-9)
    store.close()


@pytest.mark.parametrize("name", ["ample8", "tight8"])
def test_the_samples_are_split_whole(name: str) -> None:
    store = Store([SAMPLES])
    found = decompositions(store, sample_id(name), sample_id(f"{name}-predicted"), HEADLINE)
    for metric in DECOMPOSED:
        one = found[metric]
        assert one.gap is not None
        assert sum(part.value_ms or 0 for part in one.parts) == pytest.approx(one.gap, abs=1e-9)
        assert one.part("unsplit").value_ms == 0
        assert all(part.inside is not None for part in one.parts)


# -- compensating errors ---------------------------------------------------------------------------------------


def made_up(**parts: tuple[float, float]) -> Decomposition:
    """Parts as (value, half width of their noise)."""
    found = tuple(Part(name, value, value - width, value + width) for name, (value, width) in parts.items())
    return Decomposition("ttft", 100.0, 100.0 + sum(v for v, _ in parts.values()), found, (9, 9), 9, "", "")


def mean_row(low: float | None = None, high: float | None = None) -> Row:
    from dashboard.compare.noise import Noise

    spread = None if low is None or high is None else Noise("repeats", low, high, 1)
    return Row(Key("ttft", "mean"), Number(100.0, 9), Number(101.0, 9), 0.01, spread, "worse", "")


@pytest.mark.parametrize(
    ("row", "gates", "ms", "source"),
    [
        (mean_row(), [], 100 * DEFAULT_TOLERANCE, "5% of the measured mean"),
        (mean_row(96, 108), [], 6, "the noise of the measured mean"),
        (mean_row(96, 108), ["ttft.mean<=10%"], 10, "gate ttft.mean<=10%"),
        (mean_row(), ["ttft.mean<=10%", "ttft.mean<=4ms"], 4, "gate ttft.mean<=4ms"),
        (mean_row(), ["ttft.p90<=1%", "e2e.mean<=1%"], 5, "5% of the measured mean"),
        (mean_row(), ["ttft.mean@warmup<=1%", "ttft.mean=90..110"], 5, "5% of the measured mean"),
    ],
)
def test_the_tolerance_is_the_gate_else_the_noise_else_a_default(
    row: Row, gates: list[str], ms: float, source: str
) -> None:
    found = tolerance(row, [Gate.parse(text) for text in gates], HEADLINE)
    assert found is not None
    assert (found.ms, found.source) == (pytest.approx(ms), source)


@pytest.mark.parametrize(
    ("parts", "warned"),
    [
        ({"prefill": (-8, 1), "output": (8, 1), "queueing": (2, 1)}, ("output", "prefill")),
        ({"prefill": (-8, 1), "output": (4.9, 1)}, None),  # one of them is small
        ({"prefill": (8, 1), "output": (8, 1)}, None),  # of one sign
        ({"prefill": (-8, 9), "output": (8, 1)}, None),  # one of them is noise
        ({"prefill": (-30, 1), "output": (8, 1)}, ("output", "prefill")),  # although the total fails as well
    ],
)
def test_two_large_parts_of_opposite_sign(
    parts: dict[str, tuple[float, float]], warned: tuple[str, str] | None
) -> None:
    allowed = tolerance(mean_row(), [], HEADLINE)
    assert allowed is not None
    found = compensating(made_up(**parts), allowed)
    assert (found and tuple(part.name for part in found)) == warned


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, dict[str, tuple[str, str]]]:
    root = tmp_path_factory.mktemp("planted")
    return Store([root]), planted_store(root)


def test_a_delay_that_hides_a_low_prefill_is_found(planted: tuple[Store, dict[str, tuple[str, str]]]) -> None:
    store, pairs = planted
    found = compare(store, *pairs["compensating"], gates=[Gate.parse("ttft.mean<=5%")])
    assert found.passed
    texts = [w.text for w in found.warnings if w.code == "compensating"]
    (ttft,) = [text for text in texts if "mean TTFT" in text]
    assert "output and streaming" in ttft
    assert "GPU: " in ttft
    assert "gate ttft.mean<=5%" in ttft
    parts = next(one for one in found.decompositions if one.metric == "ttft")
    low = (parts.part("prefill").value_ms or 0) + (parts.part("mixed").value_ms or 0)
    assert parts.part("output").value_ms == pytest.approx(-low, rel=0.2)


def test_a_replay_without_a_fault_raises_no_warning(planted: tuple[Store, dict[str, tuple[str, str]]]) -> None:
    store, pairs = planted
    found = compare(store, *pairs["none"])
    assert not [w for w in found.warnings if w.code == "compensating"]
    for one in found.decompositions:
        assert all(part.value_ms == pytest.approx(0, abs=1e-9) for part in one.parts)


def test_a_planted_fault_stands_in_its_part(planted: tuple[Store, dict[str, tuple[str, str]]]) -> None:
    store, pairs = planted
    slow = decompositions(store, *pairs["decode"], HEADLINE)["itl"]
    sizes = {part.name: abs(part.value_ms or 0) for part in slow.parts}
    assert max(sizes, key=lambda name: sizes[name]) == "decode"
    pool = decompositions(store, *pairs["pool"], HEADLINE)["ttft"]
    sizes = {part.name: abs(part.value_ms or 0) for part in pool.parts}
    assert max(sizes, key=lambda name: sizes[name]) == "recompute"
