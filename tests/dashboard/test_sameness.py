"""Identity records of several runs: what differs, what is unknown, and when it is one configuration."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dashboard.compare.sameness import NOT_GIVEN, WINDOWS, Line, lines, sameness
from engine.bundle.manifest import Phase
from engine.identity import GROUPS, Identity

BASE: dict[tuple[str, str], Any] = {
    ("source", "engine"): "vllm",
    ("source", "launch"): {"dtype": "bf16", "max_num_seqs": 16},
    ("model", "name"): "toy",
    ("client", "version"): "1.0",
    ("definitions", "tpot"): "one rule",
    ("hardware", "load"): "idle",
}


def run(changed: dict[tuple[str, str], Any] | None = None, *, without: tuple[tuple[str, str], ...] = ()) -> Any:
    identity = Identity()
    for (group, field), value in (BASE | (changed or {})).items():
        if (group, field) not in without:
            identity.set(group, field, value, "a test")
    return SimpleNamespace(identity=identity, phases=[Phase("profile", 0, 150_000_000_000)])


def by_label(found: list[Line]) -> dict[str, Line]:
    return {line.label: line for line in found}


def test_equal_records_are_one_configuration() -> None:
    found = lines(run(), [run()])
    told = sameness(found, 0)
    assert told.state == "same"
    assert told.same == 6  # engine, two launch arguments, model, client version, TPOT; the load decides nothing
    assert "the same configuration as far as recorded: 6 settings are equal" in told.words


@pytest.mark.parametrize(
    ("field", "value", "label"),
    [
        (("source", "launch"), {"dtype": "bf16", "max_num_seqs": 8}, "launch arguments: max_num_seqs"),
        (("source", "launch"), {"dtype": "bf16", "max_num_seqs": 16, "eager": True}, "launch arguments: eager"),
        (("client", "version"), "1.1", "load generator version"),
        (("definitions", "tpot"), "another rule", "TPOT"),
        (("source", "engine"), "sglang", "engine"),
    ],
)
def test_one_difference_refuses_the_same_configuration(field: tuple[str, str], value: Any, label: str) -> None:
    found = lines(run(), [run(), run({field: value})])
    assert sameness(found, 0).state == "same"
    refused = sameness(found, 1)
    assert refused.state == "refused"
    assert [line.label for line in refused.differing] == [label]
    assert f"1 setting differs ({label})" in refused.words


def test_every_definition_of_a_number_is_a_field() -> None:
    """Engine flags, client version, token source, rules, denominators and windows are part of the record."""
    labels = {(line.group, line.label) for line in lines(run(), [run()])}
    for name in ("first-token rule", "source of token counts", "TPOT", "percentile rule", "throughput denominator"):
        assert (GROUPS["definitions"], name) in labels
    assert (GROUPS["client"], "load generator version") in labels
    assert (GROUPS["source"], "launch arguments: dtype") in labels
    assert (WINDOWS, "profile") in labels


def test_what_only_one_side_knows_leaves_it_open() -> None:
    told = sameness(lines(run(), [run(without=(("client", "version"),))]), 0)
    assert (told.state, told.unknown) == ("not shown", 1)
    assert (
        sameness(lines(run(without=(("client", "version"),)), [run(without=(("client", "version"),))]), 0).state
        == "same"
    )


def test_a_launch_that_nobody_recorded_is_unknown_and_no_difference() -> None:
    found = by_label(lines(run(), [run(without=(("source", "launch"),))]))
    assert found["launch arguments: dtype"].states == ("unknown",)
    assert found["launch arguments: dtype"].said(1) == "unknown"


def test_five_runs_stand_side_by_side_marked_by_a_word() -> None:
    others = [
        run(),
        run({("model", "name"): "big"}),
        run(without=(("model", "name"),)),
        run({("model", "name"): "small"}),
    ]
    line = by_label(lines(run(), others))["model"]
    assert line.states == ("same", "differs", "unknown", "differs")
    assert [line.said(place) for place in range(5)] == ["toy", "toy", "differs: big", "unknown", "differs: small"]
    assert line.state == "differs"
    assert line.kind == "regime"


def test_what_a_run_shows_is_told_and_decides_nothing() -> None:
    other = run({("hardware", "load"): "busy"})
    other.phases = [Phase("profile", 0, 149_500_000_000)]
    found = lines(run(), [other])
    assert by_label(found)["profile"].said(1) == "differs: 0.000 to 149.500 s"
    assert by_label(found)["other load on the machine"].kind == "observed"
    assert sameness(found, 0).state == "same"


def test_search_looks_at_fields_and_values() -> None:
    found = lines(run(), [run({("model", "name"): "Big"})])
    assert [line.label for line in found if line.holds(["big"])] == ["model"]
    assert [line.label for line in found if line.holds(["launch", "dtype"])] == ["launch arguments: dtype"]


def test_a_setting_of_one_launch_only_is_said() -> None:
    found = by_label(lines(run(), [run({("source", "launch"): {"dtype": "bf16"}})]))
    assert found["launch arguments: max_num_seqs"].said(1) == f"differs: {NOT_GIVEN}"
