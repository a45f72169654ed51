"""The Alignment page: what it needs, rungs of a real pair, what is not to be read yet, playing again, links."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
import synthetic
from conftest import Open, run_id
from streamlit.testing.v1 import AppTest
from test_pages import SAMPLES, charts, plain, words

from dashboard import jobs
from dashboard.jobs import again as again_jobs
from engine.replay.again import Again, TableAgain

NAMES = ["Reproduce", "Consistency arithmetic", "Memory ledger", "Per-role benches", "End to end"]


def sound(app: AppTest) -> AppTest:
    assert not app.exception
    assert not app.error
    return app


def on_samples(opened: Open, store: Path, **query: str) -> AppTest:
    """The page on the sample pair; jobs go into a folder of the test."""
    (store / ".jobs").mkdir(exist_ok=True)
    both = Path(f"{SAMPLES}:{store}")
    pair = {"m": run_id(SAMPLES, "ample8"), "r": run_id(SAMPLES, "ample8-predicted")}
    return sound(opened(both, "alignment", **pair, **query))


def played(store: Path, same: bool) -> None:
    """A finished job that played the sample replay again."""
    replay = run_id(SAMPLES, "ample8-predicted")
    folder = jobs.jobs_folder(store) / "0123456789abcdef"
    folder.mkdir(parents=True)
    digests = ("a" * 64, "a" * 64 if same else "b" * 64)
    found = Again(replay, "gapscope 1", "gapscope 1", (TableAgain("passes", *digests, "" if same else "row 7"),))
    spec = again_jobs.spec(replay, [SAMPLES, store])
    jobs.write_json(folder / "spec.json", {"spec": spec, "store": str(store), "created_s": 0})
    jobs.write_json(folder / "result.json", {"played": asdict(found), "message": "done"})


def test_it_says_what_it_needs(opened: Open, tmp_path: Path) -> None:
    synthetic.write(tmp_path, "measured", "ample8")
    assert "An alignment holds a replay against a recording" in words(sound(opened(tmp_path, "alignment")))


def test_the_rungs_of_a_real_pair(opened: Open, tmp_path: Path) -> None:
    app = on_samples(opened, tmp_path)
    table = app.dataframe[0].value
    assert list(table["name"]) == NAMES
    assert list(table["verdict"]) == ["cannot be judged", "passes", "cannot be judged", "cannot be judged", "fails"]
    # there is one repeat: what lies beyond it alone is open, and the means lie beyond redrawing as well
    assert "May not be claimed: agreement in TTFT mean" in plain(words(app))
    assert "The rungs below that could be judged do not hold the cause." in plain(words(app))
    assert "Not shown to differ, and not to agree: TPOT p99, E2E p50" in plain(words(app))
    assert "Rung 1: Reproduce" in [header.value for header in app.header]  # nobody played it again yet


def test_playing_it_again_is_a_job(opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = on_samples(opened, tmp_path)
    monkeypatch.setattr(jobs, "_start", lambda folder: None)
    app.button(key="again").click().run()
    (job,) = jobs.list_jobs(tmp_path)
    assert (job.spec["do"], job.spec["replay"]) == ("again", run_id(SAMPLES, "ample8-predicted"))
    assert "waiting" in words(sound(app))


def test_a_replay_that_comes_out_the_same(opened: Open, tmp_path: Path) -> None:
    played(tmp_path, same=True)
    app = on_samples(opened, tmp_path)
    assert app.dataframe[0].value["verdict"][0] == "passes"
    assert "Rung 5: End to end" in [header.value for header in app.header]
    (figure,) = charts(app)
    open_ = next(trace for trace in figure["data"] if trace["name"] == "cannot be judged")
    assert set(open_["y"]) == {"TPOT p99", "E2E p50"}


def test_nothing_is_read_above_a_replay_that_does_not_reproduce(opened: Open, tmp_path: Path) -> None:
    played(tmp_path, same=False)
    app = on_samples(opened, tmp_path, align_rung="2 Arithmetic")
    assert list(app.dataframe[0].value["verdict"]) == ["fails", *["not to be read yet"] * 4]
    assert "Not to be read yet. Rung 1 (Reproduce) fails" in plain(words(app))
    assert len(app.dataframe) == 1
    app.checkbox(key="align_ahead").check().run()
    assert len(sound(app).dataframe) == 2


def test_a_link_restores_rung_and_tolerance(opened: Open, tmp_path: Path) -> None:
    app = on_samples(opened, tmp_path, align_rung="5 End to end", align_tol="12")
    assert list(app.dataframe[0].value["verdict"])[3:] == ["passes", "passes"]
    assert "TTFT mean" in list(app.dataframe[1].value["check"])
    assert "May be claimed of this pair: agreement in TTFT mean" in plain(words(app))


def test_part_and_model_are_named_by_their_presets(opened: Open, tmp_path: Path) -> None:
    query = {"align_rung": "3 Memory", "align_part": "h100-sxm", "align_model": "llama-3.1-8b"}
    table = on_samples(opened, tmp_path, **query).dataframe[1].value
    kv = table[table["check"] == "KV per token"].iloc[0]
    # recorded 6,144 bytes; 2 x 32 layers x 8 heads x 128 x 4 bytes predicted: another model, and it shows
    assert (kv["expected"], kv["found"], kv["verdict"]) == ("6,144", "262,144", "fails")
