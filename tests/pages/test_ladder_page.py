"""The Ladder page: no replay, no rungs, some, all; parity with and without differences; candidates and links."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import synthetic
from conftest import Open, run_id
from streamlit.testing.v1 import AppTest
from test_pages import charts, plain, words

from dashboard import jobs
from dashboard.jobs import ladder as ladder_jobs
from engine.bundle import BundleWriter, Phase
from engine.bundle.schema import TABLES

PARITY = {
    "arrival": {"passes": 200, "equal": 200, "share": 1.0, "first": None},
    "dispatch": {"passes": 200, "equal": 198, "share": 0.99, "first": 17, "causes": {"arrival_late": 2}}
    | {"way": {"constant_ms": 3.0, "look": "start of the pass"}, "requests": 30, "on_time": 28}
    | {"stored": 40, "stored_equal": 40, "removed": 8, "removed_equal": 7},
    "loop": {"passes": 200, "equal": 50, "share": 0.25, "first": 3, "way": None, "causes": {}},
}
DIVERGENCES = [
    {
        "check": "dispatch",
        "pass_index": 17,
        "cause": "arrival_late",
        "explanation": "r1-0 came one pass later than recorded.",
        "measured_members": [
            {"request_id": "r0-0", "computed_before": 0, "scheduled_tokens": 64},
            {"request_id": "r1-0", "computed_before": 32, "scheduled_tokens": 10},
        ],
        "replay_members": [{"request_id": "r0-0", "computed_before": 0, "scheduled_tokens": 96}],
        "measured_waiting": ["r2-0"],
        "replay_waiting": ["r1-0", "r2-0"],
        "measured_free_blocks": 12,
        "replay_free_blocks": None,
    }
]


def rung(store: Path, number: int, measured: str, base: str, **extra: Any) -> str:
    """A rung's bundle: the made-up replay, a little nearer to the measured run at each rung."""
    data = synthetic.rows(1.1 - 0.02 * number)
    lineage = {"rung": number, "like": measured, "parent_run": base}
    lineage["ladder"] = {"measured": measured, "base": base, "taken": [], "left": [], **extra}
    with BundleWriter(store, "replay", f"rung{number}", f"rung {number}", synthetic.identity()) as writer:
        for name in ("requests", "passes", "chunks"):
            schema = TABLES[name].schema
            columns = {field.name: [row.get(field.name) for row in data[name]] for field in schema}
            writer.write_table(name, pa.table(columns, schema=schema))
        if number == 4:
            schema = TABLES["divergences"].schema
            writer.write_table("divergences", pa.Table.from_pylist(DIVERGENCES, schema))
        end = max(row["end_ns"] for row in data["requests"])
        phases = [Phase("warmup", -400 * synthetic.MS, 0), Phase("profile", 0, end)]
        return writer.seal(phases=phases, lineage=lineage, never_issued=0)


def ladder(store: Path, *numbers: int) -> tuple[str, str]:
    measured, base = synthetic.pair(store)
    for number in numbers:
        rung(store, number, measured, base, **({"parity": PARITY} if number == 4 else {}))
    return measured, base


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ladder with all its rungs."""
    store = tmp_path_factory.mktemp("whole")
    ladder(store, 1, 2, 3, 4, 5)
    return store


def sound(app: AppTest) -> AppTest:
    assert not app.exception
    assert not app.error
    return app


def test_swapped_sides_make_no_ladder(opened: Open, whole: Path) -> None:
    measured, base = run_id(whole, "ample8"), run_id(whole, "ample8-replay")
    assert "A ladder leads from a replay to a recording" in words(sound(opened(whole, "ladder", m=base, r=measured)))


def test_without_a_replay_it_says_what_a_ladder_needs(opened: Open, tmp_path: Path) -> None:
    synthetic.write(tmp_path, "measured", "ample8")
    assert "A ladder leads from a replay to a recording" in words(sound(opened(tmp_path, "ladder")))


def test_without_rungs_it_offers_to_build_them(opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured, base = ladder(tmp_path)
    app = sound(opened(tmp_path, "ladder"))
    assert "build the ladder first" in words(app)
    assert list(app.dataframe[0].value["why"].fillna("")) == ["", *["not built yet"] * 5, ""]
    monkeypatch.setattr(jobs, "_start", lambda folder: None)
    app.button(key="build").click().run()
    (job,) = jobs.list_jobs(tmp_path)
    assert (job.spec["do"], job.spec["measured"], job.spec["base"]) == ("ladder", measured, base)
    assert "waiting" in words(sound(app))
    assert app.button(key="build").disabled


def test_a_rung_that_could_not_be_built_says_why(opened: Open, tmp_path: Path) -> None:
    measured, base = ladder(tmp_path, 1, 2, 4, 5)
    folder = jobs.jobs_folder(tmp_path) / "0123456789abcdef"
    folder.mkdir(parents=True)
    spec = ladder_jobs.spec(measured, base, [tmp_path])
    why = {"rung": 3, "run_id": None, "why": "The recording has no cached tokens."}
    jobs.write_json(folder / "spec.json", {"spec": spec, "store": str(tmp_path), "created_s": 0})
    jobs.write_json(folder / "result.json", {"run_ids": [], "rungs": [why], "again": True, "message": "4 of 5 rungs."})
    app = sound(opened(tmp_path, "ladder"))
    assert app.dataframe[0].value["why"][3] == "The recording has no cached tokens."
    assert not app.button(key="build").disabled
    steps = [x for trace in charts(app)[0]["data"] if trace["type"] == "bar" for x in trace["x"]]
    assert {step.rpartition("<br>")[2] for step in steps} == {"0 → 1", "1 → 2", "2 → 4", "4 → 5", "5 → 6"}


def test_a_whole_ladder_names_the_layer_and_shows_every_number(opened: Open, whole: Path) -> None:
    app = sound(opened(whole, "ladder"))
    said = plain(words(app))
    assert "The largest part of the TTFT mean gap is the " in said
    assert app.button(key="build").disabled
    waterfall, heat = charts(app)
    named = {trace["name"] for trace in waterfall["data"]}
    assert {"prediction", "measured", "lowers it"} <= named
    assert len(heat["data"][0]["y"]) == 19


def test_a_link_restores_number_check_and_pass(opened: Open, whole: Path) -> None:
    query = {"ladder_number": "E2E p99", "ladder_check": "dispatch", "ladder_pass": "17"}
    app = opened(whole, "ladder", **query)
    assert (app.session_state["ladder_number"], app.session_state["ladder_pass"]) == ("e2e.p99", 17)
    said = plain(words(sound(app)))
    assert "the E2E p99 gap" in said
    assert "r1-0 came one pass later than recorded." in said
    assert "Free blocks: 12 measured, not recorded replayed." in said
    batches, queues = app.dataframe[-2].value, app.dataframe[-1].value
    assert list(batches["difference"]) == ["other tokens", "only measured"]
    assert list(batches["measured_tokens"]) == [64, 10]
    assert list(queues["request_id"]) == ["r2-0", "r1-0"]
    assert list(queues["replay_place"]) == [2, 1]


def test_checks_are_summed_up(opened: Open, whole: Path) -> None:
    app = sound(opened(whole, "ladder"))
    table = next(d.value for d in app.dataframe if "share" in d.value.columns and "causes" in d.value.columns)
    assert list(table["share"]) == [100.0, 99.0, 25.0]
    assert list(table["removed"].fillna("")) == ["", "7 of 8", ""]
    assert list(table["on_time"].fillna("")) == ["", "28 of 30", ""]
    assert "3.00 ms" in table["way"][1]
    assert list(table["causes"]) == ["", "arrival_late 2", ""]


def test_a_rung_joins_the_pair_with_one_click_and_leads_to_its_ladder(opened: Open, whole: Path) -> None:
    app = opened(whole, "ladder")
    base = app.session_state["r"][0]
    app.button(key="add-3").click().run()
    joined = app.session_state["r"]
    assert joined[0] == base
    assert joined[1].startswith("rung3-")
    app = sound(opened(whole, "ladder", m=app.session_state["m"], r=joined[1]))
    assert f"rung 3 of ladder ample8 / ample8-replay; shown is the ladder of its base, {base}" in plain(words(app))
    assert "The largest part of the TTFT mean gap" in words(app)


def test_runs_list_rungs_only_when_asked(opened: Open, whole: Path) -> None:
    app = opened(whole, "runs")
    assert len(app.dataframe[0].value) == 2
    app.checkbox(key="rungs").check().run()
    places = set(app.dataframe[0].value["place"].dropna())
    assert places == {f"rung {number} of ladder ample8 / ample8-replay" for number in range(1, 6)}


def test_unlike_runs_have_no_steps_until_that_is_acknowledged(opened: Open, tmp_path: Path) -> None:
    synthetic.write(tmp_path, "measured", "ample8")
    base = synthetic.write(tmp_path, "replay", "other", speed=1.2, hardware__part="H200")
    measured = next(path.name for path in tmp_path.iterdir() if path.name.startswith("ample8"))
    rung(tmp_path, 1, measured, base)
    app = opened(tmp_path, "ladder", m=measured, r=base)
    assert "withheld" in words(app)
    assert not charts(app)
    assert charts(opened(tmp_path, "ladder", m=measured, r=base, ack="true"))


def test_the_what_if_says_that_its_base_is_a_rung(opened: Open, whole: Path) -> None:
    base = next(path.name for path in whole.iterdir() if path.name.startswith("rung2"))
    assert "rung 2 of ladder ample8 / ample8-replay" in plain(words(opened(whole, "what_if", base=base)))
