"""Boundaries of requests by hand: stages, their sum, what is merged, the tail, layers, noise, the words of the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import MS, SAMPLES, request, sample_id, write
from split_runs import CLOCK, measured_rows, pair, replay_rows

from dashboard.charts.requests.boundaries import splits, verdict
from dashboard.compare.boundaries import Boundaries
from dashboard.compare.boundary_rows import BOUNDARIES
from dashboard.compare.decomposition import decompositions
from dashboard.metrics import HEADLINE, Estimator, Population
from dashboard.queries.identity import repeats
from dashboard.queries.stages import mostly
from dashboard.store import Store
from engine.bundle import Check

MS_STAGES = [
    "scheduled to dispatched",
    "dispatched to at the engine",
    "at the engine to received",
    "received to admitted",
    "admitted to first pass",
    "first pass to first token computed",
    "first token computed to first visible",
    "first visible to last token computed",
    "last token computed to last visible",
]


def found(root: Path, left: Any = None, right: Any = None, until: str = "e2e") -> Boundaries:
    store, measured, replay = pair(root, left, right)
    return Boundaries(store, [measured, replay], [HEADLINE, HEADLINE], until)


def test_every_stage_by_hand(tmp_path: Path) -> None:
    both = found(tmp_path / "store")
    assert [stage.label for stage in both.stages] == MS_STAGES
    assert both.merged == []
    # a: scheduled at -2, sent at 4, way 5, no wait, queue 0.5, admitted 9.5, pass to 40 with its first token, seen 42;
    #    last token 114, seen at 118.
    # b: scheduled at -2, sent at 40, way 5, wait 16, queue 0.5, pass 62-92, seen at 97; last token 156, seen at 160.
    a = [6, 5, 0, 0.5, 30.5, 0, 2, 72, 4]
    b = [42, 5, 16, 0.5, 30.5, 0, 5, 59, 4]
    own = both.group(0, both.complete)
    assert own.n == 2
    assert own.means == pytest.approx((np.array(a) + np.array(b)) / 2)
    assert own.means[1:].sum() == pytest.approx((114 + 120) / 2)
    # Replay: x way 6, admitted at once, pass to 30, seen at 35, last 114, seen 119; y way 5.5 and wait 6.5; z alone.
    x = [6, 6, 0, 0, 20, 0, 5, 79, 5]
    y = [42, 5.5, 6.5, 0, 20, 0, 5, 48, 5]
    z = [197, 5, 0, 0, 10, 0, 5, 0, 0]
    assert both.group(1, both.complete).means == pytest.approx(np.mean([x, y, z], axis=0))


def test_stages_end_with_the_metric(tmp_path: Path) -> None:
    both = found(tmp_path / "store", until="ttft")
    assert [stage.label for stage in both.stages] == MS_STAGES[:7]
    assert both.group(0, both.complete).means[1:].sum() == pytest.approx((38 + 57) / 2)


def test_the_tail_holds_the_largest(tmp_path: Path) -> None:
    both = found(tmp_path / "store")
    tail = both.tail(90, Estimator.LINEAR)
    assert list(both.requests.flags(0, tail)) == [False, True]  # 114 and 120: p90 is 119.4
    assert both.group(0, tail).means[1:].sum() == pytest.approx(120)
    assert list(both.requests.flags(1, tail)) == [True, False, False]


def test_layers_sum_to_the_difference(tmp_path: Path) -> None:
    both = found(tmp_path / "store")
    layers = {change.name: change.value for change in both.layers(1, both.complete)}
    assert layers.pop("E2E") == pytest.approx((115 + 90 + 20) / 3 - (114 + 120) / 2)
    assert layers["frontend"] == pytest.approx((6 + 5.5 + 5) / 3 - 5)
    assert layers["queue"] == pytest.approx(6.5 / 3 - (16 + 0.5 + 0.5) / 2)
    assert layers["output"] == pytest.approx((5 + 5 + 5 + 5 + 5) / 3 - (2 + 4 + 5 + 4) / 2)
    assert sum(layers.values()) == pytest.approx((115 + 90 + 20) / 3 - (114 + 120) / 2)


def gone(rows: dict[str, Any], **columns: None) -> dict[str, Any]:
    return rows | {"requests": [row | columns for row in rows["requests"]]}


def without(table: str) -> dict[str, Any]:
    return {name: rows for name, rows in measured_rows().items() if name != table}


@pytest.mark.parametrize(
    ("left", "merged"),
    [
        (gone(measured_rows(), scheduled_ns=None), ["scheduled"]),
        (gone(measured_rows(), received_ns=None), ["arrived", "received", "admitted", "first_pass", "first_token"]),
        (without("passes"), ["arrived", "first_pass", "first_token", "last_token"]),
        (gone(measured_rows(), released_ns=None), ["last_token"]),
    ],
)  # fmt: skip
def test_a_boundary_that_one_side_lacks_merges_its_stages(tmp_path: Path, left: Any, merged: list[str]) -> None:
    both = found(tmp_path / "store", left)
    assert both.merged == merged
    for index, total in ((0, (114 + 120) / 2), (1, (115 + 90 + 20) / 3)):
        means = both.group(index, both.complete).means
        assert means[0 if both.boundaries[0] == "dispatched" else 1 :].sum() == pytest.approx(total)


@pytest.mark.parametrize(("lacking", "left_out"), [(1, 1), (2, 2), (3, 0)])
def test_a_few_requests_without_a_boundary_are_left_out_and_more_merge_it(
    tmp_path: Path, lacking: int, left_out: int
) -> None:
    rows = [request(f"r{n:02}", received_ns=None if n < lacking else 5 * MS) for n in range(40)]
    runs = [write(tmp_path, "real", rows, record=CLOCK)]
    runs.append(write(tmp_path, "told", [request(f"r{n:02}") for n in range(40)], record=CLOCK, kind="replay"))
    both = Boundaries(Store([tmp_path]), runs, [HEADLINE, HEADLINE])
    assert (both.dropped, both.group(0, both.complete).n) == ([left_out, 0], 40 - left_out)
    assert ("received" in both.merged) == (lacking == 3)  # 3 of 40 are more than one in twenty


def test_a_boundary_that_only_a_few_requests_have_is_merged(tmp_path: Path) -> None:
    rows = [request(name, received_ns=5 * MS if name == "a" else None) for name in "abc"]
    runs = [
        write(tmp_path, slug, rows, record=CLOCK, kind=kind)
        for slug, kind in (("real", "measured"), ("told", "replay"))
    ]
    both = Boundaries(Store([tmp_path]), runs, [HEADLINE, HEADLINE])
    assert "received" in both.merged
    assert both.dropped == [0, 0]  # the two that lack it are not left out for the sake of the one
    parts = decompositions(Store([tmp_path]), runs[0], runs[1], HEADLINE)["ttft"].parts
    assert {part.name: part.value_ms for part in parts if part.name in ("client", "queueing", "prefill")} == {
        "client": None,
        "queueing": None,
        "prefill": None,
    }


@pytest.mark.parametrize(("known", "said"), [((1, 1, 0), True), ((1, 0), True), ((1, 0, 0), False), ((), False)])
def test_half_of_the_requests_make_a_moment_recorded(known: tuple[int, ...], said: bool) -> None:
    assert mostly(np.array(known, dtype=bool)) is said


def test_two_clocks_leave_the_engine_out(tmp_path: Path) -> None:
    left, right = measured_rows(), replay_rows()
    root = tmp_path / "store"
    measured = write(root, "m", left.pop("requests"), **left)  # its identity knows no clock
    replay = write(root, "r", right.pop("requests"), kind="replay", **right)
    both = Boundaries(Store([root]), [measured, replay], [HEADLINE, HEADLINE])
    assert "one clock" in both.problem
    assert both.boundaries == ["scheduled", "dispatched", "first_visible", "last_visible"]
    assert both.stages[1].layers == ("frontend", "queue", "GPU", "output")
    words = verdict(both, 1, both.complete, "In the mean,", "the replay")
    assert "Most of it is" in words


@pytest.mark.parametrize(
    ("checks", "together"),
    [
        ([("clocks_aligned", "pass")], True),
        ([("clocks_aligned", "unknown")], False),
        ([("clocks_aligned", "fail")], False),
        ([("one_clock", "pass"), ("clocks_aligned", "unknown")], True),
        ([("one_clock", "pass"), ("clocks_aligned", "fail")], False),
        ([("one_clock", "unknown"), ("clocks_aligned", "pass")], False),
    ],
)
def test_attached_streams_stand_on_the_clients_clock_where_the_requests_bear_it_out(
    tmp_path: Path, checks: list[tuple[str, Any]], together: bool
) -> None:
    rows = measured_rows()
    made = [Check(name, verdict, "by recorded wall times; 2 requests bound the offset") for name, verdict in checks]
    run = write(tmp_path, "m", rows.pop("requests"), qualification=made, **rows)  # its identity knows no clock
    found = Boundaries(Store([tmp_path]), [run], [HEADLINE])
    assert (found.problem == "") is together
    assert ("arrived" in found.boundaries) is together
    words = (
        f"Engine times of {run} were moved onto the client's clock by recorded wall times; 2 requests bound the offset."
    )
    assert found.clocks == (words if together else "")


def test_a_repeat_says_the_noise(tmp_path: Path) -> None:
    root = tmp_path / "store"
    left, again, right = measured_rows(), measured_rows(), replay_rows()
    for row in again["requests"]:
        row["last_visible_ns"] += 2 * MS
        row["end_ns"] += 2 * MS
    measured = write(root, "m", left.pop("requests"), record=CLOCK, **left)
    other = write(root, "m2", again.pop("requests"), record=CLOCK, **again)
    replay = write(root, "r", right.pop("requests"), kind="replay", **right)
    store = Store([root])
    assert repeats(store, measured) == [other]
    both = Boundaries(store, [measured, replay], [HEADLINE, HEADLINE], repeats=[other])
    layers = both.layers(1, both.complete)
    spread = {change.name: change.noise.high for change in layers if change.noise}
    assert spread == pytest.approx({"frontend": 0, "queue": 0, "GPU": 0, "output": 2, "E2E": 2})
    assert all(change.noise and change.noise.low == -change.noise.high for change in layers)


def test_stages_beyond_one_repeat_are_held_against_redrawing_as_well(tmp_path: Path) -> None:
    # Two lanes with an E2E of 114 and 120 ms: drawn again the mean of 117 goes from 114 to 120. The repeat is 1 ms off.
    root = tmp_path / "store"
    left, again = measured_rows(), measured_rows()
    for rows in (left, again):
        for at, row in enumerate(rows["requests"]):
            row["lane"] = at
    for row in again["requests"]:
        row["last_visible_ns"] += MS
        row["end_ns"] += MS
    runs = [write(root, "m", left.pop("requests"), record=CLOCK, **left)]
    other = write(root, "m2", again.pop("requests"), record=CLOCK, **again)
    for late in (2, 4):
        right = measured_rows()
        for row in right["requests"]:
            row["last_visible_ns"] += late * MS
            row["end_ns"] += late * MS
        runs.append(write(root, f"r{late}", right.pop("requests"), kind="replay", record=CLOCK, **right))
    store = Store([root])
    both = Boundaries(store, runs, [HEADLINE] * 3, repeats=[other])
    two, four = (both.layers(at, both.complete)[-1] for at in (1, 2))
    assert (two.name, two.value, four.value) == ("E2E", pytest.approx(2), pytest.approx(4))
    assert two.noise
    assert two.noise.redrawn == pytest.approx((-3, 3))
    assert (two.where, four.where) == ("open", "outside")
    said = verdict(both, 1, both.complete, "In the mean,", "the replay")
    assert "is 2.0 ms longer, which is beyond one repeat, inside redrawing: " in said
    assert "Most of it is" in verdict(both, 2, both.complete, "In the mean,", "the replay")


def test_one_sentence_names_the_layer(tmp_path: Path) -> None:
    words = verdict(both := found(tmp_path / "store"), 1, both.complete, "In the mean,", "the replay")
    assert words.startswith("In the mean, the E2E of the replay is 42.0 ms shorter: frontend +0.5 ms")
    assert words.endswith("Most of it is GPU (noise unknown).")


def test_shared_turns_are_split_by_side(tmp_path: Path) -> None:
    store, measured, replay = pair(tmp_path / "store")
    both = Boundaries(store, [measured, replay], [HEADLINE, HEADLINE])
    turns = both.turns(1, HEADLINE, 10)
    assert turns.measured[:, 1:].sum(axis=1) == pytest.approx([120, 114])  # the larger difference comes first
    assert turns.replay[:, 1:].sum(axis=1) == pytest.approx([90, 115])


@pytest.mark.parametrize("name", ["ample8", "tight8"])
@pytest.mark.parametrize("until", ["ttft", "e2e"])
def test_stages_of_the_samples_sum_and_never_go_back(name: str, until: str) -> None:
    store = Store([SAMPLES])
    ids = [sample_id(name), sample_id(f"{name}-predicted")]
    both = Boundaries(store, ids, [HEADLINE, HEADLINE], until)
    assert both.merged == []
    assert both.dropped == [0, 0]
    for index in (0, 1):
        chosen = both.requests.chosen[index]
        spans = both.requests.spans[index][chosen]
        assert spans.min() >= 0
        assert spans[:, 1:].sum(axis=1) == pytest.approx(both.requests.rows[index][f"{until}_ns"][chosen])


def test_splits_cover_the_population() -> None:
    store = Store([SAMPLES])
    ids = [sample_id("ample8"), sample_id("ample8-predicted")]
    both = Boundaries(store, ids, [HEADLINE, HEADLINE])
    for by in ("input_tokens", "turn_index", "role"):
        counts = [both.group(0, choose).n for _, choose in splits(both, by)]
        assert sum(counts) == both.counts[0]
        assert min(counts) > 0


def test_a_matched_population_holds_shared_turns_only() -> None:
    store = Store([SAMPLES])
    ids = [sample_id("ample8"), sample_id("ample8-predicted")]
    matched = Population("profile", "matched")
    both = Boundaries(store, ids, [matched.for_side(ids[1]), matched.for_side(ids[0])])
    assert both.counts[0] == both.counts[1]


def test_every_boundary_is_named() -> None:
    assert list(BOUNDARIES)[1] == "dispatched"
    assert list(BOUNDARIES)[-1] == "last_visible"
