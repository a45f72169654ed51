"""docs/replay.md says what the code says."""

from __future__ import annotations

from pathlib import Path

from engine.cli.terminal import text_of
from engine.knobs import GROUPS, KNOBS
from engine.ladder import RUNGS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "replay.md").read_text(encoding="utf-8")


def knob_table() -> str:
    lines = []
    for group, title in GROUPS.items():
        lines += ["", f"### {title}", "", "| knob | default | value | meaning |", "|---|---|---|---|"]
        for knob in (k for k in KNOBS if k.group == group):
            lines.append(f"| `{knob.name}` | `{text_of(knob.default)}` | {knob.expectation()} | {knob.help} |")
    return "\n".join(lines) + "\n"


def test_the_knob_table_is_that_of_the_code() -> None:
    assert knob_table() in PAGE, f"docs/replay.md: the knob tables must read\n{knob_table()}"


def test_the_rungs_are_those_of_the_code() -> None:
    lines = ["| rung | name | taken from the measurement, besides | the step to it isolates |", "|---|---|---|---|"]
    lines += [f"| {r.number} | {r.name} | {r.taken} | {r.isolates} |".replace("  ", " ") for r in RUNGS]
    assert "\n".join(lines) in PAGE, "docs/replay.md: the rungs must read\n" + "\n".join(lines)


def test_every_knob_has_a_group_and_words() -> None:
    for knob in KNOBS:
        assert knob.group in GROUPS
        assert knob.help
        assert knob.parse(knob.default) == knob.default
        if knob.type in (int, float):
            assert knob.low is not None
            assert knob.high is not None


def test_the_life_of_a_request_has_eight_steps() -> None:
    assert all(f"\n{n}. **" in PAGE for n in range(1, 9))
    assert "\n9. **" not in PAGE
