"""Several candidates: which is nearer, only where the noise leaves no doubt; and the same rows on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from small_runs import MS, S, identity, request, write

from dashboard.charts.comparison.verdict import gaps
from dashboard.charts.style import NOISE_WORDS, ROLES
from dashboard.cli import main
from dashboard.compare.nearest import APART, FEW, OTHER_MEMBERS, TIED, UNKNOWN, nearest, nearest_claim, short_names
from dashboard.compare.noise import Noise, open_words, place
from dashboard.compare.numbers import Key, Number
from dashboard.compare.rows import Row

TTFT = Key("ttft", "mean")
AROUND = Noise("repeats", 96.0, 104.0, 3)  # 100 give or take 4


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


@pytest.mark.parametrize(
    ("repeats", "redrawn", "value", "where"),
    [
        (3, None, 105.0, "outside"),  # three repeats decide alone
        (3, (80.0, 130.0), 105.0, "outside"),
        (1, (80.0, 130.0), 104.0, "inside"),
        (1, (80.0, 130.0), 105.0, "open"),
        (2, (80.0, 130.0), 79.0, "outside"),
        (2, (99.0, 101.0), 105.0, "outside"),  # beyond both, though redrawing is the narrower one
        (1, (101.0, 110.0), 95.0, "outside"),
        (1, None, 500.0, "open"),  # one repeat, and nothing to draw again
    ],
)
def test_only_what_is_beyond_few_repeats_and_redrawing_is_outside(
    repeats: int, redrawn: tuple[float, float] | None, value: float, where: str
) -> None:
    assert place(Noise("repeats", 96.0, 104.0, repeats, redrawn=redrawn), value) == where


def test_an_open_value_is_said_in_words() -> None:
    assert open_words(Noise("repeats", 96.0, 104.0, 1, redrawn=(80.0, 130.0))) == "beyond one repeat, inside redrawing"
    assert open_words(Noise("repeats", 6.0, 6.0, 2)) == "beyond two repeats, no redrawing"
    assert place(None, 1.0) == "unknown"
    assert place(Noise("lanes", 96.0, 104.0, 200, 8), 105.0) == "outside"  # a bootstrap without any repeat


def test_few_repeats_name_the_nearest_only_beyond_redrawing() -> None:
    wide = Noise("repeats", 96.0, 104.0, 1, redrawn=(90.0, 112.0))  # half its width is 11
    assert nearest([row(103.0, wide), row(110.0, wide)]).why == TIED  # 7 nearer
    assert nearest([row(103.0, wide), row(130.0, wide)]).at == 0  # 27 nearer, and nearer to 112 as well
    alone = Noise("repeats", 96.0, 104.0, 1)
    assert nearest([row(103.0, alone), row(500.0, alone)]).why == FEW


def test_the_claim_names_numbers_and_counts_the_others() -> None:
    found = [
        nearest([row(103.0), row(110.0)]),
        nearest([row(97.0), row(106.0)]),
        nearest([row(1.0, None), row(2.0, None)]),
    ]
    assert nearest_claim({0: "replay", 2: "candidate 3"}, found) == [
        "replay is nearer in 1 of 3 headline numbers: TTFT mean.",
        "candidate 3 is nearer in 0 of 3 headline numbers.",
        "Undecided in 1 of 3 headline numbers: no candidate is nearer outside the noise.",
        "Undecided in 1 of 3 headline numbers: the noise is unknown.",
        "Nearer in these numbers is not nearer in others, and says nothing of why.",
    ]


def test_runs_of_one_name_are_told_apart() -> None:
    assert short_names(["a-b-12ab", "c-34cd"]) == ["a-b", "c"]
    assert short_names(["a-12ab", "a-34cd"]) == ["a-12ab", "a-34cd"]


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
    for name, factor in (("m_again", 1.02), ("m_third", 1.01), ("m_fourth", 0.99)):
        write(tmp_path, name, stretched(factor), record=identity(hardware__load=[3.0]))
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
    assert "- near is nearer in 12 of 17 headline numbers: TTFT mean, p50, p90, p99; " in text
    assert "- m_again is nearer" not in text
    (mean,) = [line.split(" | ") for line in text.splitlines() if line.startswith("| TTFT | mean |")]
    assert (mean[5], mean[8], mean[12], mean[16]) == ("±2.0%", "worse", "worse", "a repeat: it is the noise")
    assert "No repeat of the measured run" not in text
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


def test_one_repeat_that_equals_the_run_makes_nothing_certain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four requests of one TTFT cannot be drawn otherwise, so one repeat is all that is known."""
    write(tmp_path, "m", stretched(1.0))
    write(tmp_path, "m_again", stretched(1.0001), record=identity(hardware__load=[3.0]))
    write(tmp_path, "off", stretched(1.01), kind="replay")
    assert main(["compare", "m", "off", "--store", str(tmp_path), "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    mean = next(one for one in told["rows"] if (one["metric"], one["statistic"]) == ("ttft", "mean"))
    assert (mean["state"], mean["noise"]["n"], mean["noise"]["redrawn"]) == ("open", 1, None)
    assert "beyond one repeat, no redrawing" in mean["reason"]
    assert any("a difference in ttft.mean" in one and one.startswith("Not shown: ") for one in told["claim"])
    assert not any("outside the noise" in one for one in told["claim"])


def test_the_grey_of_the_gap_chart_shows_what_gaps_are_judged_by() -> None:
    """One repeat at 96 to 104 and redrawing from 90 to 112 of a measured 100: two bands; three repeats: one."""
    few, many = (Noise("repeats", 96.0, 104.0, n, redrawn=(90.0, 112.0)) for n in (1, 3))
    frame = SimpleNamespace(dark=False)
    for noise, spans in (
        (few, {NOISE_WORDS[0]: (-4, 4), NOISE_WORDS[1]: (-10, 12)}),
        (many, {NOISE_WORDS[0]: (-4, 4)}),
    ):
        told = row(108.0, noise)
        found = SimpleNamespace(row={"ttft.mean": told}.get)
        side = SimpleNamespace(role=ROLES[1], name="replay")
        figure = gaps(frame, [(side, found)], ["ttft.mean"])
        bands = {one["name"]: (one["base"][0], one["base"][0] + one["y"][0]) for one in figure["data"] if "base" in one}
        assert bands == {name: pytest.approx(span) for name, span in spans.items()}
