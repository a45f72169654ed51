"""The Passes page, counted by hand: parts of the gap, errors of a model, composition over time, ranks in lockstep."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import MS, SAMPLES, S, a_pass, request, sample_id, write

from dashboard.charts.passes import pass_gap, pass_model, pass_time, passes
from dashboard.charts.style import ROLES
from dashboard.frame import Frame, Side
from dashboard.metrics import HEADLINE, Estimator, Population, Window
from dashboard.queries import passes as queries
from dashboard.queries.ranges import Span
from dashboard.store import Store
from engine import knobs

FIXED = {knob.name: 0.0 for knob in knobs.KNOBS if knob.name.startswith("fixed_")}
FIXED |= {"timing": "fixed", "fixed_pass_us": 8000.0}
"""Every pass takes 8 ms."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture(scope="module")
def samples() -> Iterator[Store]:
    found = Store([SAMPLES])
    yield found
    found.close()


def frame_of(store: Store, *run_ids: str, population: Population = HEADLINE) -> Frame:
    sides = [Side(role, store.bundle(run_id)) for role, run_id in zip(ROLES, run_ids, strict=False)]
    return Frame(sides[0], tuple(sides[1:]), population, Estimator.LINEAR, Window.FIXED)


def mixed(index: int, **values: Any) -> dict[str, Any]:
    row = {"num_prefill_requests": 1, "sum_prefill_tokens": 64, "sum_prefill_kv_tokens": 32}
    return a_pass(index, **row, **values)


def test_what_each_class_makes_of_the_gap(root: Path) -> None:
    # measured: 4 decode passes of 10 ms, a mixed one of 50; replayed: 2 of 12 ms, one of another geometry of 6 ms
    measured = write(root, "m", [request("a")], passes=[*(a_pass(k) for k in range(4)), mixed(4, duration_ns=50 * MS)])
    short = [a_pass(k, duration_ns=12 * MS) for k in range(2)]
    other = a_pass(2, duration_ns=6 * MS, num_decode_requests=9, sum_decode_kv_tokens=9000)
    replay = write(root, "r", [request("a")], kind="replay", passes=[*short, other])
    again = write(root, "m2", [request("b")], passes=[*(a_pass(k) for k in range(3)), mixed(4, duration_ns=70 * MS)])
    store = Store([root])
    frame = frame_of(store, measured, replay)
    answer, figure, words = pass_gap.gap(frame, store, frame.replays[0])
    rows = {row["class"]: row for row in answer.rows.to_pylist()}
    told = ("gap_ms", "count_ms", "duration_ms", "geometry_ms", "noise_ms", "noise_state")
    # decode: 30 - 40; one pass less at 10 ms; two 2 ms longer; what is left is 6 - 10 of the other geometry
    assert tuple(rows["decode_only"][name] for name in told) == (-10, -10, 4, -4, 10, "~ inside")
    assert tuple(rows["mixed"][name] for name in told) == (-50, -50, 0, 0, 20, "outside")
    assert rows["mixed"]["gap_share"] == pytest.approx(50 / 60)
    assert rows["mixed"]["mean_state"] == "not comparable"
    assert words.startswith("The replay spends -0.06 s in passes (-66.7 % of 0.1 s): more or fewer passes -0.06 s")
    by_part = {trace["name"]: [round(float(x), 4) for x in trace["x"]] for trace in figure["data"]}
    assert by_part["more or fewer passes"] == [-0.05, -0.01]  # from below: mixed, decode only
    assert again in {run.run_id for run in store.catalogue()}


def test_the_parts_of_the_samples_sum_to_their_gap(samples: Store) -> None:
    for name in ("ample8", "tight8"):
        rows = queries.same_geometry(samples, sample_id(name), sample_id(f"{name}-predicted"), HEADLINE).rows()
        for row in rows:
            assert row["count_ns"] + row["geometry_ns"] + row["duration_ns"] == pytest.approx(row["gap_ns"], abs=1)
            assert row["gap_ns"] == row["replay_ns"] - row["measured_ns"]


def test_a_map_per_class_and_a_sentence_for_a_class_without_one(root: Path) -> None:
    measured = write(root, "m", [request("a")], passes=[a_pass(0), a_pass(1), mixed(2, duration_ns=20 * MS)])
    replay = write(root, "r", [request("a")], kind="replay", passes=[a_pass(0, duration_ns=11 * MS)])
    store = Store([root])
    frame = frame_of(store, measured, replay)
    _, figure, words = passes.geometry(frame, store, frame.replays[0])
    assert words == " Mixed: no cell that both sides hold."
    heat, dots, cells = figure["data"]
    assert heat["z"].tolist() == [[pytest.approx(0.1)]]
    assert cells["customdata"] == ["decode_only:13.1"]  # 100 tokens: 2 * log2(100) = 13.3
    assert "error +10.0 %, worth +1 ms" in cells["text"][0]
    assert "2 measured, 1 replay passes" in cells["text"][0]
    assert "50.0 % of measured time" in cells["text"][0]
    assert "noise unknown" in cells["text"][0]
    assert float(dots["marker"]["size"][0]) == 14


def test_the_noise_of_a_cell_is_the_error_of_a_repeat(root: Path) -> None:
    big = {"num_decode_requests": 2, "sum_decode_kv_tokens": 900}
    measured = write(root, "m", [request("a")], passes=[a_pass(0), a_pass(1, **big)])
    # in the repeat the first cell is 20 % longer, the second 5 % shorter; the replay is 10 % longer in both
    again = [a_pass(0, duration_ns=12 * MS), a_pass(1, duration_ns=9_500_000, **big)]
    write(root, "m2", [request("b")], passes=again)
    replayed = [a_pass(0, duration_ns=11 * MS), a_pass(1, duration_ns=11 * MS, **big)]
    replay = write(root, "r", [request("a")], kind="replay", passes=replayed)
    store = Store([root])
    frame = frame_of(store, measured, replay)
    answer, figure, _ = passes.geometry(frame, store, frame.replays[0])
    found = [(row["y_cell"], row["noise"], row["against"]) for row in answer.rows.to_pylist()]
    assert found == [(1, pytest.approx(0.2), "~ inside"), (2, pytest.approx(0.05), "outside")]
    assert figure["data"][1]["marker"]["symbol"] == ["circle-open", "circle"]
    assert "outside the noise of ±5.0 %" in figure["data"][2]["text"][1]


def test_a_cell_says_who_was_in_its_passes(root: Path) -> None:
    members = [
        {"request_id": "r2", "computed_before": 100, "scheduled_tokens": 1},
        {"request_id": "r1", "computed_before": 32, "scheduled_tokens": 64},
        {"request_id": "ghost", "computed_before": 0, "scheduled_tokens": 1},
    ]
    rows = [request("r1", conversation_id="c", turn_index=3), request("r2", conversation_id="d", at=MS)]
    run = write(root, "m", rows, passes=[mixed(0, members=members), a_pass(1)])
    store = Store([root])
    answer = passes.in_cell(frame_of(store, run), store, "mixed", queries.Cell(new_cell=12, decode_kv_cell=13))
    (row,) = answer.rows.to_pylist()
    assert row["who"] == "d/0, c/3 (64), =ghost"
    assert passes.turns_in(answer, 0) == ["d/0", "c/3", "=ghost"]
    assert passes.turns_in(answer, 7) == []


def test_the_level_of_the_error_by_phase_and_over_time(root: Path) -> None:
    # a timing of 8 ms for every pass against 10 ms in warm-up and 5 ms in profile
    config = knobs.resolve(FIXED)
    warm = [a_pass(k, phase="warmup", start_ns=-S + k * 20 * MS) for k in range(6)]
    profile = [a_pass(k, duration_ns=5 * MS) for k in range(6, 12)]
    measured = write(root, "m", [request("a")], passes=[*warm, *profile])
    lineage = {"config": config, "timing": {"kind": "fixed"}}
    replay = write(root, "r", [request("a")], kind="replay", passes=[a_pass(0)], lineage=lineage)
    store = Store([root])
    frame = frame_of(store, measured, replay)
    answer, figure, words = pass_model.drift(frame, store)
    told = answer.rows.to_pylist()
    rows = [(row["phase"], row["passes"], row["error"], row["p10"]) for row in told if row["phase"]]
    assert rows == [
        ("warmup", 6, pytest.approx(-0.2), pytest.approx(-0.2)),
        ("profile", 6, pytest.approx(0.6), pytest.approx(0.6)),
    ]
    assert (
        words == "Replay: the model's total is -20.0 % in warm-up, +60.0 % in profile; the level moves by +80.0 points."
    )
    level = figure["data"][1]
    assert {round(float(y), 6) for y in level["y"]} == {-0.2, 0.6}
    binned = [(row["time_s"], row["error"]) for row in told if not row["phase"]]  # the points of the lines
    assert binned == [
        (pytest.approx(float(x)), pytest.approx(float(y))) for x, y in zip(level["x"], level["y"], strict=True)
    ]
    answer, figure = pass_model.durations(frame, store, "decode_only", "decode_kv_tokens", False)
    errors = {trace["name"]: trace for trace in figure["data"] if "error" in trace["name"]}
    assert list(errors["replay error p50"]["y"]) == [pytest.approx(0.6)]  # of the profile alone


def test_a_replay_without_a_model_is_said(root: Path) -> None:
    measured = write(root, "m", [request("a")], passes=[a_pass(0)])
    replay = write(root, "r", [request("a")], kind="replay", passes=[a_pass(0)])
    store = Store([root])
    answer, figure, words = pass_model.drift(frame_of(store, measured, replay), store)
    assert (figure["data"], words, answer.rows.num_rows) == ([], "", 0)
    assert "timing of its own" in answer.empty


def test_composition_pass_by_pass_and_in_bins(root: Path) -> None:
    held = [mixed(0, num_waiting=3), a_pass(1, num_decode_requests=4), a_pass(100)]
    measured = write(root, "m", [request("a")], passes=held)
    replay = write(root, "r", [request("a")], kind="replay", passes=[a_pass(k) for k in range(600)], profile_s=20)
    store = Store([root])
    answer, figure, words = pass_time.timeline(frame_of(store, measured), store, 0.0, 1.0)
    new, decodes, duration, waiting = figure["data"]
    assert "as wide as it lasts" in words
    assert list(new["y"]) == [64, 0]
    assert (list(new["x"]), list(new["width"])) == (pytest.approx([0.005, 0.025]), pytest.approx([0.01, 0.01]))
    assert (list(duration["y"]), list(waiting["y"]), list(decodes["y"])) == ([10, 10], [3, 0], [1, 4])
    assert answer.n == {measured: 2}
    answer, figure, words = pass_time.timeline(frame_of(store, measured, replay), store, 0.0, 20.0)
    assert words.startswith("More than 500 passes")
    assert answer.n == {measured: 3, replay: 600}
    assert {len(trace["x"]) for trace in figure["data"]} <= set(range(201))


def test_ranks_of_a_step_by_hand(root: Path) -> None:
    def step(index: int, at: int, durations: tuple[int | None, int | None]) -> list[dict[str, Any]]:
        ranks = []
        for rank, ms in enumerate(durations):
            values = {
                "step": index,
                "worker_id": "w",
                "dp_rank": rank,
                "start_ns": at * MS,
                "duration_ns": ms and ms * MS,
            }
            ranks.append(a_pass(2 * index + rank, **values))
        return ranks

    rows = [*step(0, 0, (10, 14)), *step(1, 20, (12, 12)), *step(2, 40, (20, 10)), *step(3, 60, (8, 16))]
    alone = a_pass(8, step=4, worker_id="w", dp_rank=0, duration_ns=30 * MS)
    run = write(root, "m", [request("a")], passes=[*rows, alone])
    store = Store([root])
    frame = frame_of(store, run)
    assert pass_time.ranks(frame, store) == ["w/0", "w/1"]
    answer = pass_time.balance(frame, store)
    told = ("dp_rank", "passes", "steps", "slowest_steps", "slowest_share", "waited_ms")
    assert [tuple(row[name] for name in told) for row in answer.rows.to_pylist()] == [
        (0, 5, 4, 2, 0.5, 12.0),  # waits 4 ms in step 0 and 8 in step 3
        (1, 4, 4, 3, 0.75, 10.0),  # waits in step 2; step 1 is a tie
    ]
    steps = queries.rank_steps(store, run, HEADLINE, Span(0, 80 * MS), bins=2).rows()
    assert [(row["steps"], row["longest_ns"] / MS, row["spread_ns"] / MS, row["widest_ns"] / MS) for row in steps] == [
        (2, 13, 2, 4),
        (2, 18, 9, 10),
    ]
    answer, _, words = pass_time.spread(frame, store)
    # slowest: 14 + 12 + 20 + 16 = 62 ms; means: 12 + 12 + 15 + 12 = 51 ms
    assert words == "Measured: 4 steps of several ranks; the slowest takes 15.50 ms, 17.7 % of it above the mean rank."
    assert answer.n == {run: 4}


def test_what_a_rank_waited_for_the_others_is_not_its_own_time(root: Path) -> None:
    # A replay writes how long the step lasts and what of that the rank waited: 10 and 14 ms first, then 20 and 12.
    ranks = [
        a_pass(2 * k + rank, step=k, dp_rank=rank, start_ns=k * 40 * MS, duration_ns=longest * MS, wait_ns=wait * MS)
        for k, (longest, waits) in enumerate([(14, (4, 0)), (20, (0, 8))])
        for rank, wait in enumerate(waits)
    ]
    run = write(root, "m", [request("a")], passes=ranks)
    store = Store([root])
    balance = queries.rank_balance(store, run, HEADLINE).rows()
    assert [(row["time_ns"] / MS, row["slowest_steps"], row["waited_ns"] / MS) for row in balance] == [
        (30, 1, 4),
        (26, 1, 8),
    ]
    (steps,) = queries.rank_steps(store, run, HEADLINE, Span(0, 80 * MS), bins=1).rows()
    assert (steps["longest_ns"] / MS, steps["spread_ns"] / MS, steps["above_mean_ns"] / MS) == (17, 6, 3)
    # Neither does it count as time in passes: 10 + 14 + 20 + 12 ms.
    assert sum(row["time_ns"] for row in queries.classes(store, run, HEADLINE).rows()) == 56 * MS


def test_passes_of_several_workers_are_not_drawn_as_if_they_followed_each_other(root: Path) -> None:
    # Two replicas at the same time: one with 4 requests per pass and 1 waiting, the other with 8 and 3.
    pair = [
        a_pass(
            2 * k + worker,
            step=2 * k + worker,
            worker_id=f"vllm-{worker}",
            dp_rank=0,
            start_ns=k * 20 * MS + worker * MS,
            num_decode_requests=(4, 8)[worker],
            num_waiting=(1, 3)[worker],
        )
        for k in range(10)
        for worker in (0, 1)
    ]
    run = write(root, "m", [request("a")], passes=pair)
    store = Store([root])
    frame = frame_of(store, run)
    assert pass_time.ranks(frame, store) == ["vllm-0/0", "vllm-1/0"]
    for rank, requests, waiting in (("vllm-0/0", 4, 1), ("vllm-1/0", 8, 3)):
        answer, figure, words = pass_time.timeline(frame, store, 0.0, 1.0, rank)
        assert "as wide as it lasts" in words
        assert set(figure["data"][1]["y"]) == {requests}
        assert set(figure["data"][3]["y"]) == {waiting}
        assert answer.n == {run: 10}
    answer, figure, words = pass_time.timeline(frame, store, 0.0, 1.0)
    assert words.startswith("Means over the passes of all ranks")
    assert answer.n == {run: 20}
    assert {float(y) for y in figure["data"][1]["y"] if np.isfinite(y)} == {6.0}  # both start in one bin of 5 ms
    assert pass_time.spread(frame, store)[2] == ""  # they take no steps together


def test_one_rank_has_no_steps_with_others(samples: Store) -> None:
    run = sample_id("ample8-predicted")
    assert len(queries.ranks(samples, run)) == 1
    (row,) = queries.rank_balance(samples, run, HEADLINE).rows()
    assert (row["steps"], row["slowest_share"], row["waited_ns"]) == (0, None, None)
    assert len(queries.rank_steps(samples, run, HEADLINE, Span(0, S))) == 0


def test_the_model_of_a_sample_drifts_and_that_can_be_read(samples: Store) -> None:
    found = pass_model.priced(samples, sample_id("ample8"), sample_id("ample8-predicted"))
    assert found is not None
    assert len(found.error) == 5 + 693 + 4091
    warm, profile = (found.level(found.phases == phase) for phase in ("warmup", "profile"))
    assert warm is not None
    assert profile is not None
    assert abs(warm) < 0.01  # it was fitted there
    assert profile - warm > 0.05
    assert np.isfinite(found.error).all()
