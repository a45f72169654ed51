"""Several candidates: which is nearer, only where the noise leaves no doubt; and the same rows on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_runs import MS, S, identity, request, write

from dashboard.cli import main
from dashboard.compare.nearest import APART, OTHER_MEMBERS, TIED, UNKNOWN, nearest, nearest_claim
from dashboard.compare.noise import Noise
from dashboard.compare.numbers import Key, Number
from dashboard.compare.rows import Row

TTFT = Key("ttft", "mean")
AROUND = Noise("repeats", 96.0, 104.0, 1)  # 100 give or take 4


def row(value: float | None, noise: Noise | None = AROUND, measured: float = 100.0) -> Row:
    state: Any = "differs" if value is not None else "not comparable"
    return Row(TTFT, Number(measured, 9), Number(value, 9), None, noise, state, "")


def test_the_nearest_is_nearer_to_every_value_inside_the_noise() -> None:
    # of 96, 100 and 104 the first is 7, 3 and 1 away, the second 14, 10 and 6
    assert nearest([row(103.0), row(110.0)]).at == 0
    assert nearest([row(110.0), row(103.0), row(120.0)]).at == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (97.0, 106.0),  # 3 and 6 away: the difference of 3 is no more than half the width of the noise
        (105.0, 91.0),  # 5 and 9 away: exactly half the width
        (105.0, 90.0),  # 5 and 10 away, but the second is nearer to 96
        (103.0, 103.0),
    ],
)
def test_none_is_nearer_where_the_noise_allows_either(first: float, second: float) -> None:
    found = nearest([row(first), row(second)])
    assert (found.at, found.why) == (None, TIED)


def test_what_cannot_be_said_has_its_reason() -> None:
    assert nearest([row(103.0, None), row(110.0, None)]).why == UNKNOWN
    assert nearest([row(103.0), row(None)]).why == APART
    assert nearest([row(103.0), row(110.0, measured=101.0)]).why == OTHER_MEMBERS


def test_the_claim_names_numbers_and_counts_the_others() -> None:
    found = [
        nearest([row(103.0), row(110.0)]),
        nearest([row(97.0), row(106.0)]),
        nearest([row(1.0, None), row(2.0, None)]),
    ]
    said = nearest_claim(["replay", "candidate 2"], found)
    assert said[0] == "Nearer to the measured run, outside the noise, replay is in TTFT mean."
    assert "for 1 no candidate is nearer outside the noise" in said[1]
    assert "for 1 the noise is unknown" in said[1]
    assert not any("candidate 2 is in" in sentence for sentence in said)


def stretched(factor: float) -> list[dict[str, Any]]:
    """Four requests whose TTFT is 100 ms times a factor."""
    return [
        request(
            f"r{k}",
            at=k * S,
            lane=k % 2,
            first_visible_ns=k * S + round(100 * factor * MS),
            last_visible_ns=k * S + round(180 * factor * MS),
        )
        for k in range(4)
    ]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write(tmp_path, "m", stretched(1.0))
    write(tmp_path, "m_again", stretched(1.02), record=identity(hardware__load=[3.0]))
    write(tmp_path, "near", stretched(1.05), kind="replay")
    write(tmp_path, "far", stretched(1.5), kind="replay")
    return tmp_path


def test_the_command_compares_with_several(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["compare", "m", "near", "far", "m_again", "--store", str(store)]
    assert main([*asked, "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    gaps = []
    for pair in told["replays"]:
        assert [(one["metric"], one["statistic"]) for one in pair["rows"]] == [
            (one["metric"], one["statistic"]) for one in told["replays"][0]["rows"]
        ]
        gaps.append(next(one["gap"] for one in pair["rows"] if (one["metric"], one["statistic"]) == ("ttft", "mean")))
    assert gaps == pytest.approx([0.05, 0.5, 0.02], abs=1e-12)
    closest = next(one for one in told["nearest"] if (one["metric"], one["statistic"]) == ("ttft", "mean"))
    assert closest["replay"].startswith("near-")  # the repeat is nearer still, and competes with nobody
    assert told["command"].count(" ") > 6
    assert main([*asked, "--format", "markdown"]) == 0
    text = capsys.readouterr().out
    assert "| metric | statistic | unit | better | measured | noise | near | gap |" in text
    assert "Nearer to the measured run, outside the noise, near is in TTFT mean" in text
    assert main(asked) == 0


def test_one_replay_is_printed_as_ever(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "m", "near", "--store", str(store), "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["replay"].startswith("near-")
    assert "replays" not in told


def test_more_than_fit_side_by_side_are_refused(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = [write(store, f"x{k}", stretched(2.0 + k), kind="replay") for k in range(3)]
    assert main(["compare", "m", "near", "far", *more, "--store", str(store)]) == 2
    assert "at most 4" in capsys.readouterr().err
