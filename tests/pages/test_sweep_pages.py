"""What-if, Sweep and Sensitivity on a store in which points were played: what is shown, asked for, stale, refused."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Open, run_id
from streamlit.testing.v1 import AppTest
from test_pages import plain, words

from dashboard import jobs
from dashboard.charts.replays import joblist
from dashboard.jobs import sweep, what_if
from dashboard.jobs.playing import Player
from dashboard.sweeps.plan import Axis, point, points
from dashboard.sweeps.steps import steps
from engine.bundle import find_bundle

SAMPLES = Path(__file__).parents[2] / "sample_runs"
SHORT = {"duration_s": 30.0}
WITH = "duration_s=30"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample, its replay, a what-if, the points of two sweeps and those of a sensitivity."""
    root = tmp_path_factory.mktemp("swept")
    for name in ("ample8", "ample8-predicted"):
        run = find_bundle([SAMPLES], name)
        shutil.copytree(SAMPLES / run.run_id, root / run.run_id)
    shutil.copytree(SAMPLES / "traces", root / "traces")
    base = find_bundle([root], "ample8-predicted")
    now = what_if.base_values(base)
    plan = points([Axis("lanes", (4, 8)), Axis("max_num_batched_tokens", (256, 512))], now, SHORT)
    plan += [point((), SHORT, now), *(one.point for one in steps(["lanes", "pass_scale"], now, SHORT).steps)]
    asked = sweep.spec(base.run_id, plan, [], [root], "")["points"]
    sweep.play(base.run_id, asked, [], [root], root, lambda done, words, share: None)
    Player(base.run_id, [], [root], root).play({"lanes": 6, **SHORT}, "made up with lanes=6", lambda *_: None)
    return root


@pytest.fixture
def store(whole: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The store without jobs; none of its workers is started."""
    monkeypatch.setattr(jobs, "_start", lambda folder: None)
    yield whole
    shutil.rmtree(whole / ".jobs", ignore_errors=True)


def chart(app: AppTest, title: str) -> dict[str, Any]:
    (found,) = [one for one in app.get("plotly_chart") if one.proto.alt.startswith(title)]
    return json.loads(found.proto.spec)


def trace(figure: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in figure["data"] if one.get("name") == name)


def values(field: Any) -> list[float]:
    """Numbers of a trace, as they travel: base64 of float32, or plain."""
    import base64

    if isinstance(field, dict):
        return np.frombuffer(base64.b64decode(field["bdata"]), dtype=field["dtype"]).tolist()
    return list(field)


def ttft_p90_ms(store: Path, run: str) -> float:
    rows = find_bundle([store], run).table("requests").to_pylist()
    ok = [row for row in rows if row["phase"] == "profile" and row["status"] == "ok"]
    return float(np.percentile([(row["first_visible_ns"] - row["dispatched_ns"]) / 1e6 for row in ok], 90))


def test_one_knob_is_a_curve_with_the_measured_run(opened: Open, store: Path) -> None:
    app = opened(store, "sweep", swp_with=WITH, swp_x="lanes", swp_x_at="4,8", gates="ttft.p90<=15%")
    assert not app.exception
    assert not app.error
    assert "2 points: 2 in the store, 0 to play." in plain(words(app))
    assert app.button(key="run-sweep").disabled
    figure = chart(app, "TTFT p90 along lanes")
    drawn = trace(figure, "points of the sweep")
    assert drawn["x"] == [4, 8]
    assert values(drawn["y"]) == pytest.approx([ttft_p90_ms(store, run) for run in drawn["customdata"]])
    mark = trace(figure, "measured")
    assert mark["x"] == [8]
    measured = ttft_p90_ms(store, run_id(store, "ample8"))
    assert values(mark["y"]) == pytest.approx([measured])
    held = [abs(value / measured - 1) <= 0.15 for value in values(drawn["y"])]
    assert drawn["marker"]["symbol"] == ["diamond" if holds else "diamond-open" for holds in held]
    assert f"{sum(held)} of 2 played points hold the contract." in words(app)
    on = trace(chart(app, "Throughput against TTFT p90"), "on the front")
    assert len(on["customdata"]) == 2  # fewer lanes: less throughput at less latency
    table = app.dataframe[-1].value
    assert list(table["run"]) == drawn["customdata"]


def test_two_knobs_are_a_grid(opened: Open, store: Path) -> None:
    knobs = {"swp_x": "lanes", "swp_x_at": "4,8", "swp_y": "max_num_batched_tokens", "swp_y_at": "256,512"}
    app = opened(store, "sweep", swp_with=WITH, **knobs)
    assert not app.exception
    cells = chart(app, "TTFT p90 over lanes x max_num_batched_tokens")["data"][0]
    assert (cells["x"], cells["y"]) == (["4", "8"], ["256", "512"])
    table = app.dataframe[-1].value
    assert len(table) == 4
    by_cell = {(row["lanes"], row["max_num_batched_tokens"]): row["run"] for _, row in table.iterrows()}
    shown = {(x, y): cells["text"][j][i] for i, x in enumerate(cells["x"]) for j, y in enumerate(cells["y"])}
    assert shown == {cell: f"{ttft_p90_ms(store, run):,.4g}" for cell, run in by_cell.items()}


def test_what_is_missing_is_played_as_one_job_with_an_estimate(opened: Open, store: Path) -> None:
    query = {"swp_with": WITH, "swp_x": "lanes", "swp_x_at": "4,5,6,7"}
    app = opened(store, "sweep", **query)
    stood = "4 points: 3 in the store (1 as a replay with the same knobs, trace and timing), 1 to play."
    assert stood in plain(words(app))  # lanes=4 is a point, lanes=7 one of a sensitivity, lanes=6 a what-if
    beside = {row["lanes"]: row["why"] for _, row in app.dataframe[-1].value.iterrows()}
    again = "a replay of the store with the same knobs, trace and timing"
    assert beside == {"4": "", "5": "not played yet", "6": again, "7": ""}
    query["swp_x_at"] = "4,5,3"
    app = opened(store, "sweep", **query)
    told = plain(words(app))
    assert "3 points: 1 in the store, 2 to play. Run time: about" in told
    assert "for the passes alone." in told
    app.button(key="run-sweep").click().run()
    (job,) = jobs.jobs_about(store, do="sweep")
    assert [one["lanes"] for one in job.spec["points"]] == [4, 5, 3]
    assert "2 points" in job.estimate["rests_on"]
    again = opened(store, "sweep", **query)  # a reload
    told = plain(" ".join(bar.proto.text for bar in again.get("progress")))
    assert "waiting for its turn · next, no estimate" in told  # what comes on top of the passes no job has shown yet
    again.button(key=f"cancel-{job.id}").click().run()
    assert (job.folder / "cancel.json").exists()


def test_points_of_a_running_sweep_are_drawn_as_they_end(opened: Open, store: Path) -> None:
    query = {"swp_with": WITH, "swp_x": "lanes", "swp_x_at": "4,8,9,2"}
    app = opened(store, "sweep", **query)
    app.button(key="run-sweep").click().run()
    (job,) = jobs.jobs_about(store, do="sweep")
    progress = {"words": "point 4 of 4, lanes=2: 9 s simulated", "share": 0.8, "done": 3, "of": 4}
    jobs.write_json(job.folder / "progress.json", progress)
    jobs.write_json(job.folder / "worker.json", {"pid": os.getpid(), "start": jobs.start_ticks(os.getpid())})
    assert joblist.complete(store, "sweep", base=job.spec["base"]) == 3
    again = opened(store, "sweep", **query)  # a reload in the middle
    assert not again.exception
    assert trace(chart(again, "TTFT p90 along lanes"), "points of the sweep")["x"] == [4, 8, 9]
    assert "point 4 of 4, lanes=2: 9 s simulated" in plain(" ".join(bar.proto.text for bar in again.get("progress")))
    assert again.button(key="run-sweep").disabled  # it is being played
    assert again.button(key=f"cancel-{job.id}")
    jobs.write_json(job.folder / "made.json", {"run_ids": ["a", "b", "c"]})
    jobs.write_json(job.folder / "canceled.json", {})
    ended = opened(store, "sweep", **query)
    assert "3 of 4 points were complete and stay" in plain(words(ended))
    assert not ended.button(key="run-sweep").disabled


def test_another_window_than_the_measured_one_is_said(opened: Open, store: Path) -> None:
    query = {"swp_x": "duration_s", "swp_x_at": "30,150", "swp_with": ""}
    said = plain(opened(store, "sweep", **query).warning[0].value)
    assert "duration_s 30 at some points (measured run: 150)" in said
    app = opened(store, "sensitivity", swp_with=WITH, sens_knobs=["lanes"])
    assert "duration_s 30 (measured run: 150)" in plain(app.warning[0].value)
    assert not opened(store, "sweep", swp_x="lanes", swp_x_at="4,8").warning


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"swp_x": "lanes", "swp_x_at": "0"}, "out of range"),
        ({"swp_x": "host_kv_blocks"}, "has no values to take"),
        ({"swp_x": "lanes", "swp_y": "lanes"}, "two different ones"),
        ({"swp_with": "lanez=3"}, "Did you mean lanes"),
    ],
)
def test_a_sweep_that_cannot_be_says_so(opened: Open, store: Path, query: dict[str, str], said: str) -> None:
    app = opened(store, "sweep", **query)
    assert not app.exception
    assert said in plain(app.error[0].value)


def test_a_sensitivity_tells_which_knob_moves_the_gap(opened: Open, store: Path) -> None:
    app = opened(store, "sensitivity", swp_with=WITH, sens_knobs=["lanes", "pass_scale", "router"])
    assert not app.exception
    assert "5 points: 5 in the store, 0 to play." in plain(words(app))
    assert "what two knobs do together is not in it" in words(app)
    table = app.dataframe[-1].value
    rows = {row["step"]: row for _, row in table.iterrows()}
    base = find_bundle([store], "ample8-predicted")
    record = sweep.record_of(base.run_id, SHORT, [])
    origin = ttft_p90_ms(store, sweep.in_stores([store])[sweep.key_of(record)])
    measured = ttft_p90_ms(store, run_id(store, "ample8"))
    for step in ("lanes=7", "lanes=9", "pass_scale=0.8", "pass_scale=1.25"):
        value = ttft_p90_ms(store, rows[step]["run"])
        assert rows[step]["change"] == pytest.approx(value - origin)
        closer = abs(value - measured) < abs(origin - measured)
        assert rows[step]["gap"] in (("closes", "passes") if closer else ("widens", "widens, past it"))
    last = table.iloc[-1]
    assert (last["knob"], last["step"]) == ("router", "")
    assert "expected replicas above 1" in last["why"]
    bars = chart(app, "What one step of each knob does to TTFT p90")
    assert {one["name"] for one in bars["data"]} == {"one step down", "one step up"}


def test_a_candidate_of_other_knobs_is_marked_stale(opened: Open, store: Path) -> None:
    base, made = run_id(store, "ample8-predicted"), run_id(store, "ample8-predicted-what-if")
    query = {"base": base, "r": [made], "k_duration_s": "30"}
    app = opened(store, "what_if", **query, k_lanes="6")
    assert not app.exception
    assert "Shown: replay is the replay with the knobs on screen." in plain(words(app))
    assert "Candidates beside the measured run" in words(app)
    app.number_input(key="k_lanes").set_value(7).run()
    stale = "Stale. Shown: the replay with lanes=6, duration_s=30.0 (replay); the knobs on screen were not run yet."
    assert stale in plain(words(app))
    assert "Run time: about" in words(app)


def test_a_knob_is_found_by_a_word_and_changed_ones_stay(opened: Open, store: Path) -> None:
    app = opened(store, "what_if", base=run_id(store, "ample8-predicted"), k_lanes="6", knob_find="kv blocks")
    assert not app.exception
    keys = {one.key for one in app.number_input}
    assert {"k_kv_blocks", "k_host_kv_blocks", "k_lanes"} <= keys
    assert "k_duration_s" not in keys
    assert all(one.proto.expanded for one in app.expander if "changed" in one.label or "KV" in one.label)
    app.text_input(key="knob_find").set_value("no such word").run()
    assert {one.key for one in app.number_input if one.key.startswith("k_")} == {"k_lanes"}
    app.text_input(key="knob_find").set_value("").run()
    assert app.number_input(key="k_lanes").value == 6


def test_the_contract_is_judged_for_every_candidate(opened: Open, store: Path) -> None:
    app = opened(store, "what_if", base=run_id(store, "ample8-predicted"), gates="ttft.p90<=90% tpot.mean<=0.01%")
    (table,) = [one.value for one in app.dataframe if "gate" in one.value.columns]
    assert [verdict.partition(":")[0] for verdict in table["verdict_0"]] == ["pass", "fail"]
    bad = opened(store, "what_if", base=run_id(store, "ample8-predicted"), gates="fast")
    assert "expected metric.statistic" in plain(bad.error[0].value)
    assert "Candidates beside the measured run" in words(bad)


def test_several_jobs_are_followed_and_a_dead_one_can_be_asked_again(opened: Open, store: Path) -> None:
    base = find_bundle([store], "ample8-predicted")
    asked = [jobs.submit(store, what_if.spec(base, {"lanes": lanes}, [], [store])) for lanes in (2, 3)]
    made = run_id(store, "ample8-predicted-what-if")
    jobs.write_json(asked[0].folder / "result.json", {"run_id": made})
    jobs.write_json(asked[1].folder / "progress.json", {"words": "9 s simulated", "share": 0.3})
    jobs.write_json(asked[1].folder / "worker.json", {"pid": 2**22, "start": "1"})
    app = opened(store, "what_if", base=base.run_id, r=[base.run_id], job=[job.id for job in asked])
    assert not app.exception
    assert app.session_state["r"] == [base.run_id, made]
    assert "The worker ended without a word. It last said: 9 s simulated." in plain(app.error[0].value)
    app.button(key=f"retry-{asked[1].id}").click().run()
    assert app.session_state["_jobs"] == [asked[1].id]
    again = jobs.find(store, asked[1].id)
    assert again is not None
    assert again.state == "waiting"


def test_points_are_listed_where_they_are_asked_for(opened: Open, store: Path) -> None:
    app = opened(store, "runs")
    assert not any("point" in run for run in app.dataframe[0].value["run"])
    app.checkbox(key="points").check().run()
    assert sum("point" in run for run in app.dataframe[0].value["run"]) == 8


def test_links_lead_on_with_the_changed_knobs(opened: Open, store: Path) -> None:
    app = opened(store, "what_if", base=run_id(store, "ample8-predicted"), k_lanes="6", k_think_scale="0.5")
    links = [one.proto for one in app.get("page_link")]
    (found,) = [one for one in links if one.label == "Sweep a knob from here"]
    assert "swp_with=lanes%3D6+think_scale%3D0.5" in found.query_string


def test_a_timing_that_two_replays_share_is_drawn_once(opened: Open, store: Path) -> None:
    """A what-if of other lanes has the model of its base: one line for both, one regime, one hold-out."""
    pair = [run_id(store, "ample8-predicted"), run_id(store, "ample8-predicted-what-if")]
    app = opened(store, "passes", r=pair)
    assert not app.exception
    lines = {one["name"] for one in chart(app, "Duration of")["data"] if one.get("name", "").endswith("model")}
    assert lines == {"replay and candidate 2 model"}
    assert "Replay and candidate 2: the model's total is" in plain(words(app))
    assert "Candidate 2: the model's total" not in plain(words(app))
    app = opened(store, "timing", r=pair)
    assert not app.exception
    told = plain(words(app))
    assert "Hold-out error of the timing of the replay and candidate 2, by class" in told
    drawn = {one.get("name") for one in chart(app, "Decode passes over KV")["data"]}
    assert any(name and name.startswith("replay and candidate 2: the same model") for name in drawn)
    app = opened(store, "identity", r=pair, ack="true")
    assert not app.exception
    assert sum("rule" in one.value for one in app.dataframe) == 1
    assert "Regime of the timing of the replay and candidate 2: fpm" in plain(words(app))
    # another scale is another timing
    base = find_bundle([store], "ample8-predicted").run_id
    key = sweep.key_of(sweep.record_of(base, {**SHORT, "pass_scale": 1.25}, []))
    scaled = sweep.in_stores([store])[key]
    app = opened(store, "passes", r=[pair[0], scaled])
    lines = {one["name"] for one in chart(app, "Duration of")["data"] if one.get("name", "").endswith("model")}
    assert lines == {"replay model", "candidate 2 model"}
