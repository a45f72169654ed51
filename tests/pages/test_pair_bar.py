"""What one click in the pair bar does beyond choosing runs."""

from __future__ import annotations

from pathlib import Path

from conftest import Open, run_id


def test_pinned_replays_stay_when_another_measured_run_is_chosen(opened: Open, paired: Path) -> None:
    kept = [run_id(paired, "other-part"), run_id(paired, "ample8-replay")]
    app = opened(paired, "cohort", r=kept)
    app.checkbox(key="_pin").check().run()
    app.selectbox(key="m").set_value(run_id(paired, "ample8_repeat")).run()
    assert app.session_state["r"] == kept
    app.checkbox(key="_pin").uncheck().run()
    app.selectbox(key="m").set_value(run_id(paired, "ample8")).run()
    assert len(app.session_state["r"]) == 1  # it brings its own
    assert not app.exception


def test_a_pinned_run_does_not_stand_against_itself(opened: Open, paired: Path) -> None:
    repeat, replay = run_id(paired, "ample8_repeat"), run_id(paired, "ample8-replay")
    app = opened(paired, "cohort", r=[repeat, replay])
    app.checkbox(key="_pin").check().run()
    app.selectbox(key="m").set_value(repeat).run()
    assert app.session_state["r"] == [replay]


def test_without_a_replay_there_is_nothing_to_pin_or_swap(opened: Open, paired: Path) -> None:
    app = opened(paired, "cohort", r=[""])
    assert app.checkbox(key="_pin").disabled
    assert app.button(key="swap").disabled
