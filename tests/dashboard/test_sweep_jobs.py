"""Sweeps as jobs on real small replays: one job, ordinary runs, what is kept and found again; and the commands."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dashboard import jobs
from dashboard.catalogue import Catalogue
from dashboard.charts.records import runs as runs_table
from dashboard.cli import main
from dashboard.jobs import estimate, sweep, what_if
from dashboard.jobs.playing import Player
from dashboard.metrics import Estimator, Population, Window
from dashboard.pairs import comparable, replays_of
from dashboard.store import Store
from dashboard.sweeps.numbers import Scope, played, runs_of
from dashboard.sweeps.plan import Axis, points
from engine.bundle import find_bundle, list_bundles
from engine.replay.again import compared
from engine.stores import PROJECT

SAMPLES = PROJECT / "sample_runs"
SHORT = {"duration_s": 4.0, "warmup_s": 1.0, "timing": "fixed"}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store; the tests run the worker themselves."""
    monkeypatch.setattr(jobs, "_start", lambda folder: None)
    return tmp_path / "runs"


def base() -> str:
    return find_bundle([SAMPLES], "ample8").run_id


def spec(store: Path, *lanes: int) -> dict[str, Any]:
    now = what_if.base_values(find_bundle([SAMPLES], "ample8"))
    plan = points([Axis("lanes", lanes)], now, SHORT)
    return sweep.spec(base(), plan, [], [SAMPLES, store], "short sweep")


def work(job: jobs.Job) -> jobs.Job:
    command = [sys.executable, "-m", "dashboard.jobs.worker", str(job.folder)]
    subprocess.run(command, cwd=PROJECT, check=True, capture_output=True)
    after = jobs.read(job.folder)
    assert after is not None
    return after


def test_a_sweep_is_one_job_of_ordinary_runs_that_are_found_again(store: Path, tmp_path: Path) -> None:
    asked = jobs.submit(store, spec(store, 2, 3))
    done = work(asked)
    assert (done.state, done.message) == ("done", "2 of 2 points.")
    assert done.run_id is None
    assert done.result["took_s"] > 0
    progress = jobs.read_json(done.folder / "progress.json") or {}
    assert (progress["done"], progress["of"]) == (1, 2)
    bundles = [find_bundle([store], run_id) for run_id in done.run_ids]
    assert [bundle.identity.value("client", "lanes") for bundle in bundles] == [2, 3]
    assert not any(bundle.verify() for bundle in bundles)
    assert jobs.submit(store, spec(store, 2, 3)).state == "done"
    assert len(jobs.list_jobs(store)) == 1

    entries = Catalogue([SAMPLES, store]).entries()
    assert sorted(runs_of(entries).values()) == sorted(done.run_ids)
    listed = {entry.run_id for entry in runs_table.filtered(entries, "", (), points=False)}
    assert not listed & set(done.run_ids)
    assert set(done.run_ids) <= {entry.run_id for entry in runs_table.filtered(entries, "a point of a sweep", ())}
    whole = Store([SAMPLES, store])
    assert not set(replays_of(whole, base(), entries)) & set(done.run_ids)
    assert {entry.run_id for entry in comparable(entries)[-2:]} == set(done.run_ids)

    # the same points elsewhere have the same ids, and a wider sweep plays only what is missing
    again = tmp_path / "again"
    (other,) = [one["run_id"] for one in sweep.play(base(), [spec(store, 2)["points"][0]], [], [SAMPLES], again, said)]
    assert other == done.run_ids[0]
    heard: list[str] = []
    wider = sweep.play(
        base(), spec(store, 2, 3, 4)["points"], [], [SAMPLES, store], store, lambda _, words, __: heard.append(words)
    )
    assert [one["run_id"] for one in wider][:2] == done.run_ids
    assert [words for words in heard if "simulated" in words] == [w for w in heard if "point 3 of 3" in w and ":" in w]

    scope = Scope(base(), Population(), Estimator.LINEAR, Window.FIXED)
    plan = points([Axis("lanes", (2, 9))], what_if.base_values(find_bundle([SAMPLES], "ample8")), SHORT)
    first, missing = played(whole, runs_of(entries), base(), [], plan, scope, ["ttft.p90"])
    assert first.run_id == done.run_ids[0]
    assert first.value("ttft.p90") is not None
    assert (missing.run_id, missing.value("ttft.p90"), missing.holds) == (None, None, None)


def test_a_sweep_through_an_existing_replay_plays_one_fewer(store: Path, tmp_path: Path) -> None:
    stores = [SAMPLES, store]
    made = Player(base(), [], stores, store).play({**SHORT, "lanes": 3}, "by hand", lambda *_: None)
    other = Player(base(), [], stores, store).play({**SHORT, "lanes": 3, "kv_blocks": 900}, "other", lambda *_: None)
    asked = spec(store, 2, 3)["points"]
    found = sweep.play(base(), asked, [], stores, store, said)
    assert [(one["run_id"] == made, one["found"]) for one in found] == [(False, False), (True, True)]
    assert {path.name for path in list_bundles(store)} == {made, other, found[0]["run_id"]}
    # what it would have been is the same, table by table
    (again,) = sweep.play(base(), asked[1:], [], [SAMPLES], tmp_path / "again", said)
    assert compared(find_bundle([store], made), find_bundle([tmp_path / "again"], again["run_id"])).equal
    done = work(jobs.submit(store, spec(store, 2, 3, 4)))
    assert done.message == "3 of 3 points, 2 of them in the store before."
    for name in ("requests.parquet", "passes.parquet"):  # one that is altered stands for nothing
        (store / made / name).write_bytes((store / made / name).read_bytes() + b"x")
    (last,) = sweep.play(base(), asked[1:], [], stores, store, said)
    assert (last["found"], last["run_id"] != made) == (False, True)


def test_the_base_point_is_the_run_that_is_swept(store: Path) -> None:
    replay = find_bundle([SAMPLES], "ample8-predicted").run_id
    (found,) = sweep.play(replay, [{}], [], [SAMPLES, store], store, said)
    assert (found["run_id"], found["found"], store.exists()) == (replay, True, False)


def test_a_replay_of_a_model_fitted_on_other_passes_is_played(store: Path) -> None:
    stores, changes = [SAMPLES, store], {"duration_s": 4.0, "warmup_s": 1.0}
    fit = [f"{base()}:warmup"]
    made = Player(base(), fit, stores, store).play(changes, "by hand", lambda *_: None)
    (same,) = sweep.play(base(), [changes], fit, stores, store, said)
    assert (same["run_id"], same["found"]) == (made, True)
    (other,) = sweep.play(base(), [changes], [f"{base()}:warmup,profile"], stores, store, said)
    assert (other["run_id"] != made, other["found"]) == (True, False)


def said(done: int, words: str, share: float) -> None:
    assert 0 <= share <= 1


def test_a_point_that_fails_leaves_the_others_and_may_be_asked_again(store: Path) -> None:
    asked = jobs.submit(store, spec(store, 2) | {"points": [{**SHORT, "kv_blocks": 10}, {**SHORT, "lanes": 2}]})
    done = work(asked)
    assert done.state == "done"
    assert done.message.startswith("1 of 2 points. ")
    assert "raise kv_blocks" in done.message
    assert [bool(one["run_id"]) for one in done.result["points"]] == [False, True]
    assert jobs.submit(store, asked.spec).state == "waiting"


def begun(store: Path, *lanes: int) -> tuple[jobs.Job, subprocess.Popen[bytes]]:
    """A sweep of which a point is complete and the next one is begun."""
    asked = jobs.submit(store, spec(store, *lanes))
    process = subprocess.Popen([sys.executable, "-m", "dashboard.jobs.worker", str(asked.folder)], cwd=PROJECT)
    deadline = time.monotonic() + 120
    while not (asked.folder / "made.json").exists():
        assert time.monotonic() < deadline, "no point was made"
        time.sleep(0.005)
    running = jobs.read(asked.folder)
    assert running is not None
    return running, process


def test_a_sweep_that_is_canceled_keeps_whole_points(store: Path) -> None:
    running, process = begun(store, *range(2, 40))
    jobs.cancel(running)
    assert process.wait(timeout=120) == 0
    after = jobs.read(running.folder)
    assert after is not None
    assert after.state == "canceled"
    made = [path.name for path in list_bundles(store)]
    assert f"{len(made)} of 38 points were complete and stay" in after.message
    assert 0 < len(made) < 38
    assert not any(find_bundle([store], name).verify() for name in made)
    assert {path.name for path in store.iterdir() if path.name.startswith(".")} <= {".jobs", ".traces"}


def test_a_worker_that_dies_is_reported_with_what_it_last_said(store: Path) -> None:
    running, process = begun(store, *range(2, 40))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    after = jobs.read(running.folder)
    assert after is not None
    assert after.state == "lost"
    assert "It last said: point " in after.message
    assert after.repeatable
    assert jobs.submit(store, after.spec).state == "waiting"


def test_a_job_of_before_is_still_read(store: Path) -> None:
    folder = store / ".jobs" / "0123456789abcdef"
    folder.mkdir(parents=True)
    head = {"spec": {"do": "import", "title": "old"}, "store": str(store), "created_s": 0}
    (folder / "spec.json").write_text(json.dumps(head))
    (folder / "error.json").write_text(json.dumps({"message": "made up"}))
    job = jobs.read(folder)
    assert job is not None
    assert (job.state, job.estimate, job.begun_s, job.repeatable) == ("failed", None, None, False)


def test_an_estimate_rests_on_the_replays_and_jobs_of_the_store(store: Path) -> None:
    asked = jobs.submit(
        store, {"do": "replay", "base": "ample8", "changes": SHORT, "fit": [], "title": "x", "stores": [str(SAMPLES)]}
    )
    done = work(asked)
    cpu_s = find_bundle([store], str(done.run_id)).manifest["host"]["cpu_s"]
    (besides,) = estimate.besides(store)
    assert besides == pytest.approx(done.result["took_s"] - cpu_s)
    whole, replay = Store([SAMPLES]), find_bundle([SAMPLES], "ample8-predicted")
    now = what_if.base_values(replay)
    found = estimate.of_run(whole, store, Catalogue([SAMPLES]).entries(), replay, now, now)
    assert found is not None
    rates = [
        bundle.manifest["host"]["cpu_s"] / bundle.rows("passes")
        for bundle in (replay, find_bundle([SAMPLES], "tight8-predicted"))
    ]
    passes = replay.rows("passes")
    assert found.low_s == pytest.approx(min(rates) * passes + besides)
    assert found.high_s == pytest.approx(max(rates) * passes + besides)
    assert "2 earlier replays of this trace" in found.rests_on


def test_the_knobs_of_a_replay_are_what_it_changed(store: Path) -> None:
    run = find_bundle([SAMPLES], "ample8-predicted")
    now = what_if.base_values(run)
    made = Player(run.run_id, [], [SAMPLES], store).play({"lanes": 3, "duration_s": 4.0}, "x", lambda *_: None)
    assert what_if.changed_by(find_bundle([store], made), now, {}) == {"lanes": 3, "duration_s": 4.0}
    assert what_if.changed_by(run, now, {}) == {}


GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the sample and what the commands below play."""
    root = tmp_path_factory.mktemp("swept")
    for name in ("ample8", "ample8-predicted"):
        run = find_bundle([SAMPLES], name)
        shutil.copytree(SAMPLES / run.run_id, root / run.run_id)
    shutil.copytree(SAMPLES / "traces", root / "traces")
    return root


@pytest.mark.parametrize(("form", "name"), [("table", "txt"), ("markdown", "md"), ("json", "json")])
def test_a_sweep_on_the_command_line(capsys: pytest.CaptureFixture[str], swept: Path, form: str, name: str) -> None:
    arguments = ["sweep", "ample8-predicted", "--knob", "lanes=4,8", "--knob", "max_num_batched_tokens=4,512"]
    arguments += ["--set", "duration_s=40", "--gate", "tpot.mean<=20%", "--store", str(swept), "--format", form]
    assert main(arguments) == 0
    told = capsys.readouterr().out
    golden(GOLDEN / f"sweep.{name}", told)
    if form == "json":
        point = json.loads(told)["points"][1]
        rows = find_bundle([swept], point["run_id"]).table("requests").to_pylist()
        ttft_ms = [
            (row["first_visible_ns"] - row["dispatched_ns"]) / 1e6
            for row in rows
            if row["phase"] == "profile" and row["status"] == "ok" and row["first_visible_ns"] is not None
        ]
        assert point["values"]["ttft.p90"] == pytest.approx(np.percentile(ttft_ms, 90))


@pytest.mark.parametrize(("form", "name"), [("table", "txt"), ("markdown", "md"), ("json", "json")])
def test_a_sensitivity_on_the_command_line(
    capsys: pytest.CaptureFixture[str], swept: Path, form: str, name: str
) -> None:
    arguments = ["sensitivity", "ample8-predicted", "--knob", "lanes", "--knob", "pass_scale", "--knob", "router"]
    arguments += ["--set", "duration_s=40", "--number", "tpot.mean", "--store", str(swept), "--format", form]
    assert main(arguments) == 0
    golden(GOLDEN / f"sensitivity.{name}", capsys.readouterr().out)


def golden(path: Path, told: str) -> None:
    told = re.sub(r"-[0-9a-f]{12}\b", "-DIGEST", told)  # of the contents, which name the version of this program
    if os.environ.get("GAPSCOPE_WRITE_GOLDEN"):
        path.write_text(told, encoding="utf-8")
    assert told == path.read_text(encoding="utf-8")


def test_bad_sweeps_are_one_sentence(capsys: pytest.CaptureFixture[str], swept: Path) -> None:
    for arguments, words in (
        (["sweep", "ample8-predicted", "--knob", "lanez=4"], "cannot be swept"),
        (["sweep", "ample8-predicted", "--knob", "max_num_batched_tokens=4"], "No point can be played"),
        (["sensitivity", "ample8-predicted", "--knob", "lanez"], "There is no knob"),
    ):
        assert main([*arguments, "--store", str(swept)]) == 2
        assert words in capsys.readouterr().err
