"""Import on the Runs page: what is handed over is looked at before anything is written, and ends in links."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import synthetic
from conftest import Open
from streamlit.testing.v1 import AppTest

from dashboard import jobs
from dashboard.charts.records import runs
from dashboard.store import Store
from engine.bundle import list_bundles
from engine.stores import PROJECT
from tests.engine.recording_folder import Folder


@pytest.fixture
def at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers run when the test says so."""
    monkeypatch.setattr(jobs, "_start", lambda folder: None)


def words(app: AppTest) -> str:
    kinds = ("markdown", "caption", "info", "warning", "error")
    return "\n".join(element.value for kind in kinds for element in app.get(kind)).replace("\\", "")


def work(store: Path) -> None:
    for job in jobs.list_jobs(store):
        if not job.final:
            command = [sys.executable, "-m", "dashboard.jobs.worker", str(job.folder)]
            subprocess.run(command, cwd=PROJECT, check=True, capture_output=True)


def look(app: AppTest, path: object) -> AppTest:
    app.text_input(key="import_path").set_value(str(path)).run()
    return app.button(key="look").click().run()


def test_a_path_is_looked_at_then_imported_and_leads_to_its_run(opened: Open, tmp_path: Path, at_rest: None) -> None:
    store = tmp_path / "store"
    synthetic.pair(store)
    recording = Folder().write(tmp_path / "rec")
    (recording / "notes.txt").write_text("by hand")
    app = opened(store, "runs")
    assert app.button(key="look").disabled
    assert app.button(key="import").disabled
    before = list_bundles(store)
    look(app, recording)
    assert not app.exception
    assert "1 run** would be made; nothing is written yet" in words(app)
    files = next(table.value for table in app.dataframe if "What for, or why not" in table.value)
    assert dict(zip(files["File"], files["Use"], strict=True))["requests.jsonl"] == "used"
    assert list_bundles(store) == before
    assert jobs.list_jobs(store) == []

    app.button(key="import").click().run()
    assert [job.state for job in jobs.list_jobs(store)] == ["waiting"]
    work(store)
    app.run()
    (made,) = [path.name for path in list_bundles(store) if path not in before]
    said = words(app)
    assert f"** · {made} · " in said
    assert "checks passed, 1 unknown" in said
    assert "Not used: notes.txt (no importer knows it)" in said
    links = [link.proto.query_string if hasattr(link.proto, "query_string") else "" for link in app.get("page_link")]
    assert any(made in link for link in links)


def test_what_was_looked_at_is_what_is_imported(opened: Open, tmp_path: Path, at_rest: None) -> None:
    app = opened(tmp_path / "store", "runs")
    recording = Folder().write(tmp_path / "rec")
    assert "Look first" not in words(app)
    app.text_input(key="import_path").set_value(str(recording)).run()
    assert app.button(key="import").disabled
    assert "Look first: Import follows what it says." in words(app)
    look(app, recording)
    assert "Look first" not in words(app)
    assert not app.button(key="import").disabled
    app.text_input(key="import_path").set_value(str(tmp_path / "other")).run()
    assert app.button(key="import").disabled  # nobody looked at this one


@pytest.mark.parametrize("name", ["absent", "notes.txt", "."])
def test_what_cannot_be_imported_is_said_in_red(opened: Open, tmp_path: Path, name: str) -> None:
    (tmp_path / "notes.txt").write_text("by hand")
    app = look(opened(tmp_path / "store", "runs"), tmp_path / name if name != "." else name)
    assert not app.exception
    (said,) = [one.value.replace("\\", "") for one in app.error]
    if name != ".":
        assert said.startswith(f"{tmp_path / name} ")  # the path as it was given
    assert {"absent": "does not exist", "notes.txt": "no format", ".": "from the root of this machine"}[name] in said
    assert app.button(key="import").disabled


def test_a_failed_import_is_said_in_red_in_the_words_of_the_page(opened: Open, tmp_path: Path, at_rest: None) -> None:
    recording = Folder().write(tmp_path / "rec")
    file = recording / "requests.jsonl"
    file.write_bytes(file.read_bytes()[:-40])
    app = look(opened(tmp_path / "store", "runs"), recording)
    app.button(key="import").click().run()
    work(tmp_path / "store")
    app.run()
    (said,) = [one.value.replace("\\", "") for one in app.error]
    assert "requests.jsonl line 3" in said
    assert "'Skip bad rows' ticked" in said


def test_a_server_for_others_reads_no_path(opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dashboard.charts.records import importing

    monkeypatch.setattr(importing, "for_others", lambda address: True)
    app = opened(tmp_path, "runs")
    assert not app.exception
    assert "import_path" not in [field.key for field in app.text_input]
    assert "Paths of this machine cannot be given" in words(app)


def test_passes_may_become_part_of_a_run(opened: Open, tmp_path: Path, at_rest: None) -> None:
    store = tmp_path / "store"
    synthetic.write(store, "measured", "thin", tables=("requests",))
    synthetic.write(store, "measured", "whole")
    (thin,) = [path.name for path in list_bundles(store) if path.name.startswith("thin")]
    app = look(opened(store, "runs"), PROJECT / "tests" / "data" / "engine" / "fpm.jsonl.gz")
    assert not app.exception
    chooser = app.selectbox(key="attach_to")
    assert chooser.options == ["a run of its own", f"part of {thin}"]  # the whole run has passes
    chooser.set_value(thin).run()
    assert app.button(key="import").label == "Attach"
    app.text_input(key="attach_clock").set_value("1.5").run()
    app.button(key="import").click().run()
    (job,) = jobs.list_jobs(store)
    assert (job.spec["do"], job.spec["run"], job.spec["clock"]) == ("attach", thin, "1.5")
    assert f"attached to {thin}" in words(app)


def test_a_picked_run_is_exported(tmp_path: Path) -> None:
    synthetic.write(tmp_path, "measured", "ample8")
    store = Store([tmp_path])
    (entry,) = store.catalogue()
    for form in runs.FORMATS:
        with zipfile.ZipFile(io.BytesIO(runs.zipped(store, entry.run_id, form))) as held:
            assert f"{entry.run_id}-{form}/run.json" in held.namelist()
            assert held.testzip() is None
