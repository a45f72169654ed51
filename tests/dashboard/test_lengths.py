"""Errors by input and output length, the far end, limits, outcomes and histories: counted by hand on small runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_runs import MS, S, identity, request, write

from dashboard.charts.comparison.outcome_bar import markup, tally
from dashboard.charts.style import ROLES
from dashboard.compare.history import history, in_line
from dashboard.compare.limits import parse_limits, within
from dashboard.compare.noise import Noise
from dashboard.compare.numbers import Key
from dashboard.metrics import HEADLINE, METRICS, Estimator
from dashboard.queries.history import kept_out
from dashboard.queries.lengths import pair_errors, pair_turns
from dashboard.queries.outcomes import not_ok, outcomes
from dashboard.queries.percentiles import slowest
from dashboard.store import Store
from engine.bundle import Check
from engine.errors import GapscopeError

TTFT = METRICS["ttft"]


def at_ttft(
    turn: int, ttft_ms: float, input_tokens: int = 300, output_tokens: int = 5, **values: Any
) -> dict[str, Any]:
    """The request of a turn of one conversation with this TTFT."""
    at = turn * S
    first = at + round(ttft_ms * MS)
    own = {"conversation_id": "c", "turn_index": turn, "first_visible_ns": first, "last_visible_ns": first + 80 * MS}
    return request(f"q{turn}", at=at, input_tokens=input_tokens, output_tokens=output_tokens, **(own | values))


def pair(folder: Path) -> tuple[Store, str, str]:
    """Three turns of one cell (+10, -10 and +50 %), one of another (-20 %), and one on either side alone."""
    left = [at_ttft(0, 100), at_ttft(1, 200), at_ttft(2, 100), at_ttft(3, 100, 2000, 40), at_ttft(4, 100)]
    right = [at_ttft(0, 110), at_ttft(1, 180), at_ttft(2, 150), at_ttft(3, 80, 2000, 41), at_ttft(5, 100)]
    return Store([folder]), write(folder, "m", left), write(folder, "r", right, kind="replay")


def test_errors_by_length_of_shared_turns(tmp_path: Path) -> None:
    store, measured, replay = pair(tmp_path)
    rows = pair_errors(store, measured, replay, TTFT, HEADLINE).rows()
    # 300 tokens lie from 256 on (2 edges), 5 from 5 on (4); 2,000 from 1,024 on (4), 40 from 33 on (7)
    assert [(row["input_bucket"], row["output_bucket"], row["turns"]) for row in rows] == [(2, 4, 3), (4, 7, 1)]
    assert [row["median_gap"] for row in rows] == pytest.approx([0.10, -0.20])
    assert [row["gap_of_means"] for row in rows] == pytest.approx([440 / 400 - 1, -0.20])
    assert rows[0]["measured"] == pytest.approx(400 / 3 * MS)


def test_the_turns_of_a_cell_have_names_for_links(tmp_path: Path) -> None:
    store, measured, replay = pair(tmp_path)
    rows = pair_turns(store, measured, replay, TTFT, HEADLINE, (2, 4)).rows()
    assert [row["turn"] for row in rows] == ["c/2", "c/1", "c/0"]  # 50, 20 and 10 ms apart
    assert [row["gap"] for row in rows] == pytest.approx([0.5, -0.1, 0.1])


def test_runs_that_cannot_be_joined_have_a_sentence(tmp_path: Path) -> None:
    left = write(tmp_path, "m", [request("a")])
    right = write(tmp_path, "r", [request("b")], kind="replay")
    assert "Cannot be joined" in str(pair_errors(Store([tmp_path]), left, right, TTFT, HEADLINE).not_recorded)


def test_the_largest_requests_have_their_place_in_the_trace(tmp_path: Path) -> None:
    rows = [at_ttft(0, 100), at_ttft(1, 300, agent_depth=2, cached_tokens=75), at_ttft(2, 200, cached_tokens=None)]
    found = slowest(Store([tmp_path]), write(tmp_path, "m", rows), TTFT, HEADLINE, 2).rows()
    assert [(row["turn"], row["agent_depth"], row["cached_share"]) for row in found] == [
        ("c/1", 2, 0.25),
        ("c/2", 0, None),
    ]
    assert found[0]["queue_time_ns"] == 5 * MS  # received after 5 ms, admitted after 10


def test_limits_hold_a_share_of_either_side(tmp_path: Path) -> None:
    def run(slug: str, values: list[float], **options: Any) -> str:
        return write(tmp_path, slug, [at_ttft(k, value) for k, value in enumerate(values)], **options)

    measured = run("m", [80, 100, 120, 140])
    repeat = run("again", [81, 101, 121, 141], record=identity(hardware__load=[3.0]))
    replay = run("r", [110, 120, 130, 150], kind="replay")
    asked = parse_limits("ttft<=100; ttft<=0.12s")
    tight, loose = within(Store([tmp_path]), (measured, replay), asked, HEADLINE, [repeat])
    assert (tight.measured, tight.replay, tight.n) == (0.5, 0.0, (4, 4))
    assert (tight.difference, tight.noise) == (
        -0.5,
        Noise("repeats", -0.25, 0.25, 1),
    )  # the repeat has one of four within 100 ms
    assert (loose.measured, loose.replay, loose.noise) == (0.75, 0.5, Noise("repeats", -0.25, 0.25, 1))


@pytest.mark.parametrize("text", ["ttft", "ttft<=", "ttft<=5m", "input_tokens<=5", "ttft>=5"])
def test_a_limit_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(GapscopeError, match="expected a metric, <= and a time"):
        parse_limits(text)


def test_requests_that_are_no_plain_successes_are_listed(tmp_path: Path) -> None:
    rows = [
        request("fine"),
        request("late", at=3 * S, status="canceled", end_ns=4 * S),
        request("empty", at=2 * S, output_tokens=0),
        request("warm", at=-S, phase="warmup", status="error", error_type="429"),
    ]
    store, run = Store([tmp_path]), write(tmp_path, "m", rows)
    found = not_ok(store, run, "profile").rows()
    assert [(row["turn"], row["outcome"]) for row in found] == [("empty/0", "zero_output"), ("late/0", "canceled")]
    assert found[1]["took_ns"] == S
    assert [row["error_type"] for row in not_ok(store, run, "all").rows()] == ["429", None, None]
    assert len(not_ok(store, run, "all", most=1)) == 1


def test_the_outcome_bar_counts_the_phase_and_marks_what_failed(tmp_path: Path) -> None:
    rows = [request(f"r{k}") for k in range(7)]
    rows += [request("bad", status="error"), request("gone", status="canceled"), request("open", status="in_flight")]
    rows.append(request("warm", at=-S, phase="warmup", status="error"))
    found = outcomes(Store([tmp_path]), write(tmp_path, "m", rows))
    told = tally(found, "profile", ["<b>ledger</b>"])
    assert told.attempted == 10
    assert told.said == ["7 ok", "0 zero output", "▲ 1 error", "▲ 1 canceled", "▲ 1 in flight or unknown"]
    assert tally(found, "all").attempted == 11
    assert tally(found, "grace").attempted == 0
    shown = markup([(ROLES[0], told), (ROLES[1], None)], "profile", False)
    assert "10 attempted" in shown
    assert "no requests recorded" in shown
    assert "<b>ledger</b>" not in shown  # a name of a run is text


def test_a_run_out_of_line_with_its_repeats() -> None:
    others = [100.0, 104.0]  # a range of 4: beyond 96 and 108 a run is out of line
    assert in_line(107.9, others, None) == "in line"
    assert in_line(108.1, others, None) == "out of line"
    assert in_line(95.9, others, Noise("lanes", 95.0, 99.0, 200)) == "out of line"
    assert in_line(95.9, others, Noise("lanes", 90.0, 101.0, 200)) == "in line"  # its own bootstrap reaches them
    assert in_line(200.0, others[:1], None) == "too few others"
    assert in_line(None, others, None) == "unknown"


def test_a_history_holds_runs_of_one_identity_only(tmp_path: Path) -> None:
    def run(slug: str, ttft: float, **options: Any) -> str:
        return write(tmp_path, slug, [at_ttft(k, ttft + k) for k in range(3)], **options)

    own = run("a", 100)
    run("b", 102, record=identity(hardware__load=[2.0]))
    run("c", 101, record=identity(hardware__load=[3.0]))
    run("d", 150, record=identity(hardware__load=[4.0]), qualification=[Check("ledger", "fail", "no")])
    run("lanes", 100, record=identity(client__lanes=3))
    run("both", 100, record=identity(client__lanes=4, hardware__part="GPU"))
    run("r", 100, kind="replay")
    store = Store([tmp_path])
    points = history(store, own, Key("ttft", "mean"), HEADLINE, Estimator.LINEAR)
    values = {one.member.run_id.rpartition("-")[0]: (one.value.value, one.line) for one in points}
    # TTFTs of t, t + 1 and t + 2 ms; a sound run stands beside two others, and the one that failed beside three
    assert values == {
        "a": (pytest.approx(101.0), "in line"),
        "b": (pytest.approx(103.0), "in line"),
        "c": (pytest.approx(102.0), "in line"),
        "d": (pytest.approx(151.0), "out of line"),
    }
    times = [one.member.created_unix_ns for one in points]
    assert times == sorted(times)
    by_field = {label: (count, alone) for label, count, alone in kept_out(store, own)}
    assert sorted(by_field.values()) == [(1, 0), (2, 1)]  # the part keeps one out, the lanes two and one of them alone
