"""The Boundaries page and the waterfall of the Verdict page: what they say in words, without a browser."""

from __future__ import annotations

from pathlib import Path

import pytest
import synthetic
from conftest import Open, run_id
from streamlit.testing.v1 import AppTest

SAMPLES = Path(__file__).parents[2] / "sample_runs"


def words(app: AppTest) -> str:
    texts = [element.value for kind in ("markdown", "info", "caption", "warning") for element in app.get(kind)]
    return "\n".join(texts).replace("\\", "")


@pytest.mark.parametrize(("until", "label"), [("e2e", "E2E"), ("ttft", "TTFT")])
def test_one_sentence_in_the_mean_and_one_in_the_tail(opened: Open, until: str, label: str) -> None:
    app = opened(SAMPLES, "boundaries")
    next(one for one in app.get("button_group") if one.key == "bnd_until").set_value(until).run()
    assert not app.exception
    told = words(app)
    assert f"In the mean, the {label} of the replay is" in told
    assert f"In the tail from p90 on, the {label} of the replay is" in told
    for layer in ("frontend", "queue", "GPU", "output"):
        assert f"{layer} " in told
    assert "merged" not in told


def test_clocks_that_are_not_one_are_said(opened: Open, paired: Path) -> None:
    app = opened(paired, "boundaries", m=run_id(paired, "ample8"), r=[run_id(paired, "ample8-replay")])
    assert not app.exception
    assert "not known to stand on one clock" in words(app)


def test_boundaries_that_a_run_lacks_are_named(opened: Open, tmp_path: Path) -> None:
    clock = {"telemetry__clock": "one clock"}
    measured = synthetic.write(tmp_path, "measured", "bare", tables=("requests",), **clock)
    replay = synthetic.write(tmp_path, "replay", "full", speed=1.1, **clock)
    app = opened(tmp_path, "boundaries", m=measured, r=[replay])
    assert not app.exception
    assert "Not recorded on every side, so their stages are merged: at the engine, first pass" in words(app)


def test_gaps_are_withheld_from_an_unlike_pair(opened: Open, paired: Path) -> None:
    app = opened(paired, "boundaries", m=run_id(paired, "ample8"), r=[run_id(paired, "other-part")])
    assert not app.exception
    assert "In the mean" not in words(app)
    opened_verdict = opened(paired, "verdict", m=run_id(paired, "ample8"), r=[run_id(paired, "other-part")])
    assert "is made of" not in words(opened_verdict)


@pytest.mark.parametrize(("split", "label"), [("ttft", "TTFT"), ("ITL", "ITL")])
def test_the_verdict_takes_a_mean_apart(opened: Open, split: str, label: str) -> None:
    app = opened(SAMPLES, "verdict", split=split)
    assert not app.exception
    assert f"What the gap of the mean {label} is made of" in words(app)
