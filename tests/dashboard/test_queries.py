"""Questions of the pages, counted by hand on small runs and checked for totals on the samples."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_runs import MS, SAMPLES, S, a_pass, request, sample_id, write

from dashboard.charts.comparison import cohort as charts
from dashboard.charts.style import ROLES
from dashboard.frame import Frame, Side
from dashboard.metrics import HEADLINE, METRICS, PASS_CLASSES, Estimator, Population, Window
from dashboard.queries import cohort, coverage, passes, percentiles
from dashboard.queries.ranges import Span, capture_span
from dashboard.store import QUERIES, WORKED_OUT, Store
from engine.bundle.schema import RESOLUTIONS
from engine.errors import GapscopeError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture(scope="module")
def samples() -> Iterator[Store]:
    found = Store([SAMPLES])
    yield found
    found.close()


def test_every_query_begins_with_what_it_answers() -> None:
    for path in QUERIES.glob("*.sql"):
        assert path.read_text().startswith("-- "), path.name


def test_every_query_file_is_asked_by_name() -> None:
    code = "\n".join(p.read_text() for p in Path("dashboard").rglob("*.py"))
    parts = set(WORKED_OUT) | {
        name for path in QUERIES.glob("*.sql") for name in re.findall(r"\{part\.(\w+)\}", path.read_text())
    }
    for path in QUERIES.glob("*.sql"):
        name = path.stem
        generic = re.match(r"sample_|capture_", name)
        assert generic or f'"{name}"' in code or name in ("_requests", "_passes") or name[1:] in parts, name


def test_in_flight_by_hand(root: Path) -> None:
    rows = [
        request("a", at=-S, phase="warmup", end_ns=3 * S, first_admit_ns=0),
        request("b", at=S, end_ns=2 * S),
        request("c", at=5 * S, end_ns=None, status="in_flight"),
        request("d", at=6 * S, end_ns=7 * S, status="canceled"),
    ]
    store = Store([root])
    found = cohort.in_flight(store, write(root, "m", rows), Span(0, 10 * S), bins=10).rows()
    assert [row["in_flight"] for row in found] == [1, 1, 2, 1, 0, 0, 1, 2, 1, 1]
    assert [row["dispatched"] for row in found] == [0, 1, 0, 0, 0, 1, 1, 0, 0, 0]
    assert [row["completed"] for row in found] == [0, 0, 1, 1, 0, 0, 0, 0, 0, 0]
    assert [row["ended_otherwise"] for row in found] == [0, 0, 0, 0, 0, 0, 0, 1, 0, 0]
    assert [row["time_ns"] for row in found] == [k * S for k in range(10)]


def test_an_unknown_end_is_no_request_in_flight(root: Path) -> None:
    rows = [
        request("a", at=S, end_ns=3 * S),
        request("b", at=S, end_ns=None, status="error"),
        request("c", at=3 * S, end_ns=None, status="in_flight"),
    ]
    store = Store([root])
    run_id = write(root, "m", rows)
    found = cohort.in_flight(store, run_id, Span(0, 5 * S), bins=5).rows()
    assert [row["in_flight"] for row in found] == [0, 0, 1, 1, 1]
    assert [row["dispatched"] for row in found] == [0, 2, 0, 1, 0]
    assert [row["without_end"] for row in found] == [0, 1, 0, 0, 0]
    answer, figure = charts.over_time(alone(store, run_id), store)
    assert answer.partly == "measured: 1 request without a recorded end left out; the curve is a lower bound."
    assert len(figure["data"]) == 3


def test_of_few_known_ends_there_is_no_curve(root: Path) -> None:
    rows = [request("a"), *(request(name, at=S, end_ns=None, status="error") for name in "bc")]
    store = Store([root])
    run_id = write(root, "m", rows)
    found = cohort.in_flight(store, run_id, Span(0, 5 * S), bins=5).rows()
    assert {row["in_flight"] for row in found} == {None}
    assert sum(row["dispatched"] for row in found) == 3
    answer, figure = charts.over_time(alone(store, run_id), store)
    assert answer.partly == "measured: Not recorded: 2 of 3 requests have no recorded end."
    assert len(figure["data"]) == 2  # dispatches and completions


def alone(store: Store, run_id: str) -> Frame:
    return Frame(Side(ROLES[0], store.bundle(run_id)), (), HEADLINE, Estimator.LINEAR, Window.FIXED)


def test_a_lane_is_not_busy_after_an_unknown_end(root: Path) -> None:
    rows = [
        request("a", end_ns=None, status="error"),
        request("b", at=2 * S, end_ns=3 * S),
        request("c", at=4 * S, end_ns=None, status="in_flight"),
    ]
    found = cohort.lanes(Store([root]), write(root, "m", rows), Span(0, 10 * S)).rows()
    assert [row["until_ns"] for row in found] == [0, 3 * S, 10 * S]
    assert [row["idle_before_ns"] for row in found] == [None, None, None]


def test_flow_adds_up_on_the_samples(samples: Store) -> None:
    run_id = sample_id("tight8")
    found = cohort.in_flight(samples, run_id)
    assert found.array("dispatched").sum() == 611
    assert found.array("completed").sum() + found.array("ended_otherwise").sum() == 611
    assert found.array("in_flight").max() <= 16


def test_lanes_show_idle_time(root: Path) -> None:
    rows = [request("a", at=0, end_ns=S), request("b", at=3 * S, end_ns=4 * S), request("c", at=0, lane=1, end_ns=S)]
    found = cohort.lanes(Store([root]), write(root, "m", rows), Span(0, 10 * S)).rows()
    assert [(r["lane"], r["request_id"], r["idle_before_ns"]) for r in found] == [
        (0, "a", None),
        (0, "b", 2 * S),
        (1, "c", None),
    ]


def test_one_sided_turns_say_what_happened_on_the_other_side(root: Path) -> None:
    store = Store([root])
    measured = write(root, "m", [request("a"), request("b"), request("c", status="canceled")])
    replay = write(root, "r", [request("a"), request("c"), request("d")], kind="replay")
    found = cohort.one_sided(store, measured, replay, HEADLINE).rows()
    assert {(r["conversation_id"], r["finished_on"], r["measured_status"], r["replay_status"]) for r in found} == {
        ("b", "measured", "ok", "never sent"),
        ("c", "replay", "canceled", "ok"),
        ("d", "replay", "never sent", "ok"),
    }


def test_success_in_another_phase_is_one_sided(root: Path) -> None:
    store = Store([root])
    early = {"at": -S, "phase": "warmup"}
    measured = write(root, "m", [request("a", **early), request("b", **early), request("c")])
    replay = write(root, "r", [request("a"), request("c"), request("c2", conversation_id="c", status="error")])
    told = ("conversation_id", "finished_on", "measured_status", "measured_phase", "replay_status", "replay_phase")
    found = cohort.one_sided(store, measured, replay, Population("warmup")).rows()
    assert [tuple(row[name] for name in told) for row in found] == [
        ("a", "measured", "ok", "warmup", "ok", "profile"),
        ("b", "measured", "ok", "warmup", "never sent", None),
    ]
    assert cohort.matched_subset(store, measured, replay, Population("warmup")).measured_remainder == 2
    found = cohort.one_sided(store, measured, replay, HEADLINE).rows()
    assert [(row["conversation_id"], row["finished_on"], row["requests"]) for row in found] == [("a", "replay", 1)]


@pytest.mark.parametrize("name", ["ample8", "tight8"])
@pytest.mark.parametrize("phase", ["warmup", "profile", "all"])
def test_one_sided_turns_are_what_the_matched_subset_leaves(samples: Store, name: str, phase: str) -> None:
    pair = sample_id(name), sample_id(f"{name}-predicted")
    left = cohort.matched_subset(samples, *pair, Population(phase))
    found = cohort.one_sided(samples, *pair, Population(phase)).rows()
    sides = [row["finished_on"] for row in found]
    assert (sides.count("measured"), sides.count("replay")) == (left.measured_remainder, left.replay_remainder)


def test_what_makes_no_pair_is_told_apart_from_what_one_side_finished(root: Path) -> None:
    store = Store([root])
    measured = write(root, "m", [request("a"), request("a2", conversation_id="a"), request("b")])
    replay = write(root, "r", [request("a"), request("c")], kind="replay")
    left, right = (Side(role, store.bundle(run_id)) for role, run_id in zip(ROLES, (measured, replay), strict=False))
    frame = Frame(left, (right,), HEADLINE, Estimator.LINEAR, Window.FIXED)
    lone = charts.one_sided(frame, store, replay)
    said = charts.shared(frame, store, right, lone)
    assert lone.n == {measured: 1, replay: 1}  # b and c
    assert "Measured: 0.0 % of 3 successes of 3 attempted, 3 remain." in said
    assert "Replay: 0.0 % of 2 successes of 2 attempted, 2 remain." in said
    assert "Not in the table below are 2 measured and 1 replay" in said


@pytest.mark.parametrize("by", percentiles.PROPERTIES)
def test_buckets_partition_the_sample(samples: Store, by: str) -> None:
    run_id = sample_id("ample8")
    buckets, _ = percentiles.by_bucket(samples, run_id, METRICS["tpot"], HEADLINE, by)
    assert sum(b.n for b in buckets) == 580
    assert sum(b.share for b in buckets) == pytest.approx(1)
    assert sum(b.contribution for b in buckets) == pytest.approx(34.650, abs=5e-4)
    assert len({b.label for b in buckets}) == len(buckets)


def test_one_token_outputs_have_their_own_bucket(samples: Store) -> None:
    buckets, _ = percentiles.by_bucket(samples, sample_id("ample8"), METRICS["ttft"], HEADLINE, "output_tokens")
    assert (buckets[0].label, buckets[0].n) == ("1", 82)


def test_pooled_metrics_have_no_buckets(samples: Store) -> None:
    with pytest.raises(GapscopeError, match="not a number of a request"):
        percentiles.by_bucket(samples, sample_id("ample8"), METRICS["itl"], HEADLINE, "turn_index")


def test_classes_and_time_shares_on_the_samples(samples: Store) -> None:
    rows = {row["class"]: row for row in passes.classes(samples, sample_id("ample8"), Population("all")).rows()}
    worked = [rows[name] for name in PASS_CLASSES[:3]]
    assert [round(row["time_ns"] / S, 1) for row in worked] == [0.4, 78.8, 89.2]
    assert sum(row["time_share"] for row in worked) == pytest.approx(1)


def test_same_geometry_by_hand(root: Path) -> None:
    left = [a_pass(k, duration_ns=d * MS) for k, d in enumerate((10, 20))]
    left.append(a_pass(2, num_decode_requests=8, sum_decode_kv_tokens=5000, duration_ns=70 * MS))
    right = [a_pass(k, duration_ns=18 * MS) for k in range(5)]
    measured = write(root, "m", [request("a")], passes=left)
    replay = write(root, "r", [request("a")], kind="replay", passes=right)
    store = Store([root])
    shared, own = passes.geometry_map(store, measured, replay, HEADLINE).rows()
    assert (shared["class"], own["error"], own["measured_passes"], own["replay_passes"]) == ("decode_only", None, 1, 0)
    assert (shared["measured_passes"], shared["replay_passes"]) == (2, 5)
    assert shared["error"] == pytest.approx(18 / 15 - 1)
    assert shared["duration_ns"] == 5 * 3 * MS  # five replayed passes, each 3 ms above the measured mean of 15
    assert (shared["measured_time_share"], shared["replay_time_share"]) == (pytest.approx(0.3), 1)
    summary = passes.same_geometry(store, measured, replay, HEADLINE).one()
    assert summary["measured_time_shared"] == pytest.approx(0.3)
    assert summary["replay_time_shared"] == pytest.approx(1)
    assert summary["error"] == pytest.approx(0.2)
    # 90 ms against 100: two passes more at the mean of 33.3, five of them 3 ms longer than measured, and the rest
    parts = [summary[f"{name}_ns"] / MS for name in ("gap", "count", "duration", "geometry")]
    assert parts == pytest.approx([-10, 2 * 100 / 3, 15, -10 - 200 / 3 - 15])
    inside = passes.cell_passes(
        store, measured, HEADLINE, "decode_only", passes.Cell(decode_requests=1, decode_kv_cell=shared["x_cell"])
    )
    assert [row["pass_index"] for row in inside.rows()] == [0, 1]
    low, high = passes.cell_bounds(shared["x_cell"])
    assert low <= 100 < high


def test_a_run_against_itself_has_no_geometry_error(samples: Store) -> None:
    run_id = sample_id("tight8")
    rows = passes.geometry_map(samples, run_id, run_id, HEADLINE).rows()
    assert {row["class"] for row in rows} == set(PASS_CLASSES[:3])
    assert [row["error"] for row in rows] == pytest.approx([0.0] * len(rows), abs=1e-12)
    assert sum(row["measured_time_share"] for row in rows) == pytest.approx(1)
    for row in passes.same_geometry(samples, run_id, run_id, HEADLINE).rows():
        parts = [row[f"{name}_ns"] for name in ("gap", "count", "duration", "geometry")]
        assert parts == pytest.approx([0, 0, 0, 0], abs=1)


def test_duration_curve_counts_every_pass(samples: Store) -> None:
    run_id = sample_id("ample8")
    for name, (axis, _) in passes.CLASS_AXES.items():
        limit = passes.axis_limit(samples, (run_id,), HEADLINE, name, axis)
        curve = passes.duration_curve(samples, run_id, HEADLINE, name, axis, limit)
        counts = {row["class"]: row["passes"] for row in passes.classes(samples, run_id, HEADLINE).rows()}
        assert curve.array("passes").sum() == counts[name]
        assert curve.array("bin").max() <= 39


def test_timeline_holds_every_pass_and_its_time(samples: Store) -> None:
    run_id = sample_id("ample8")
    found = passes.timeline(samples, run_id, capture_span(samples, run_id))
    assert found.array("passes").sum() == 5 + 693 + 4091
    total = sum(found.array(f"{name}_ns").sum() for name in PASS_CLASSES[:3])
    assert total / S == pytest.approx(0.4 + 89.2 + 78.8, abs=0.15)
    single = passes.between(samples, run_id, Span(0, S))
    assert all(0 <= row["start_ns"] < S for row in single.rows())


def test_coverage_by_hand(root: Path) -> None:
    decode = {"class": "decode_only"}
    cells = [
        decode | {"decode_requests": 1, "decode_kv_tokens": 100, "resolution": "exact", "count": 6, "modelled_ns": 60},
        decode
        | {"decode_requests": 9, "decode_kv_tokens": 900, "resolution": "clamped", "count": 2, "modelled_ns": 40},
        {"class": "mixed", "new_tokens": 64, "resolution": "refused", "count": 2, "modelled_ns": 100},
    ]
    member = {"computed_before": 0, "scheduled_tokens": 1}
    rows = [
        a_pass(0, resolution="exact", members=[{"request_id": "a", **member}]),
        a_pass(1, resolution="clamped", members=[{"request_id": "a", **member}, {"request_id": "b", **member}]),
    ]
    replay = write(root, "r", [request("a"), request("b"), request("c")], kind="replay", coverage=cells, passes=rows)
    store = Store([root])
    found = coverage.shares(store, replay)
    assert found.queries is not None
    assert found.time is not None
    assert found.queries["exact"] == pytest.approx(0.6)
    assert found.time["refused"] == pytest.approx(0.5)
    assert found.inside("time") == pytest.approx(0.3)
    outside = coverage.cells_outside(store, replay).rows()
    assert [(r["class"], r["time_share"]) for r in outside] == [("mixed", 0.5), ("decode_only", 0.2)]
    touched = coverage.requests_touched(store, replay).rows()
    assert [(r["request_id"], r["passes"], r["requests_touched"]) for r in touched] == [("a", 1, 2), ("b", 1, 2)]
    assert [
        (r["resolution"], r["requests"], r["of_requests"], r["passes"]) for r in coverage.touched(store, replay).rows()
    ] == [
        (None, 2, 2, 1),
        ("clamped", 2, 2, 1),
    ]
    marks = coverage.query_map(store, replay, "decode_only", "decode").rows()
    # 100 tokens of one request; 900 of nine, which are 100 each
    assert [(m["resolution"], m["x"], m["y"], m["queries"], m["time_share"]) for m in marks] == [
        ("exact", 100, 1, 6, 0.6),
        ("clamped", 100, 9, 2, 0.4),
    ]
    assert coverage.domain(store, replay, "decode_only", "decode", ("profile",)).one()["passes"] == 2
    cells = coverage.cells(store, replay).rows()
    assert [(c["class"], c["query_share"], c["time_share"], c["inside_share"], c["cells"]) for c in cells] == [
        ("mixed", 0.2, 0.5, 0.0, 3),
        ("decode_only", 0.6, 0.3, 1.0, 3),
        ("decode_only", 0.2, 0.2, 0.0, 3),
    ]
    assert found.geometries == {r: (1 / 3 if r in ("exact", "clamped", "refused") else 0.0) for r in RESOLUTIONS}
    sources = coverage.sources(store, replay).rows()
    assert [(s["class"], s["time_share"]) for s in sources] == [
        ("mixed", 0.5),
        ("decode_only", 0.3),
        ("decode_only", 0.2),
    ]
    assert {r["passes"] for r in coverage.by_rank(store, replay).rows()} == {1}


def test_who_was_in_a_pass_may_be_unknown(root: Path) -> None:
    passes = [a_pass(0, resolution="clamped", members=None)]
    replay = write(root, "r", [request("a")], kind="replay", passes=passes)
    told = coverage.touched(Store([root]), replay).rows()
    assert [(row["requests"], row["request_share"], row["passes"]) for row in told] == [
        (None, None, 1),
        (None, None, 1),
    ]


def test_a_measured_run_has_no_coverage(samples: Store) -> None:
    found = coverage.shares(samples, sample_id("ample8"))
    assert found.inside("time") is None
    assert found.not_recorded
