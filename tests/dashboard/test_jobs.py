"""Jobs: files are the only state, the worker is a process of its own, and nothing half is left."""

from __future__ import annotations

import gzip
import io
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dashboard import jobs
from dashboard.jobs import importing
from dashboard.jobs import ladder as ladder_jobs
from dashboard.jobs.uploads import place
from engine.bundle import find_bundle, list_bundles
from engine.errors import GapscopeError
from engine.stores import PROJECT
from tests.engine.recording_folder import Folder

SAMPLES = PROJECT / "sample_runs"
DATA = PROJECT / "tests" / "data"
SHORT = {"duration_s": 4, "warmup_s": 1, "timing": "fixed"}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store; the tests run the worker themselves."""
    monkeypatch.setattr(jobs, "_start", lambda folder: None)
    return tmp_path / "runs"


def spec(store: Path, **changes: Any) -> dict[str, Any]:
    stores = [str(SAMPLES), str(store.resolve())]
    return {
        "do": "replay",
        "base": "ample8",
        "changes": {**SHORT, **changes},
        "fit": [],
        "title": "short",
        "stores": stores,
    }


def work(job: jobs.Job) -> jobs.Job:
    """Run the worker to its end, and read the job again."""
    command = [sys.executable, "-m", "dashboard.jobs.worker", str(job.folder)]
    subprocess.run(command, cwd=PROJECT, check=True, capture_output=True)
    after = jobs.read(job.folder)
    assert after is not None
    return after


def test_a_replay_becomes_a_run_and_asking_again_is_the_same_job(store: Path) -> None:
    asked = jobs.submit(store, spec(store, lanes=2))
    assert asked.state == "waiting"
    done = work(asked)
    assert (done.state, done.message) == ("done", "")
    bundle = find_bundle([store], str(done.run_id))
    assert bundle.verify() == []
    assert bundle.identity.value("client", "lanes") == 2
    assert bundle.lineage["knobs_changed"]["lanes"] == {"from": 8, "to": 2}
    assert jobs.submit(store, spec(store, lanes=2)).run_id == done.run_id
    assert len(jobs.list_jobs(store)) == 1


def test_a_replay_takes_the_recorded_passes_of_the_run_it_starts_from(store: Path) -> None:
    done = work(jobs.submit(store, spec(store, timing="measured")))
    assert (done.state, done.message) == ("done", "")
    timing = find_bundle([store], str(done.run_id)).lineage["timing"]
    assert (timing["kind"], timing["run_id"]) == ("measured", find_bundle([SAMPLES], "ample8").run_id)


def test_a_done_job_whose_run_is_gone_is_done_again(store: Path) -> None:
    done = work(jobs.submit(store, spec(store)))
    for file in (store / str(done.run_id)).iterdir():
        file.unlink()
    assert jobs.submit(store, spec(store)).state == "waiting"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kv_blocks": 10}, "raise kv_blocks"),
        ({"lanez": 3}, "Did you mean lanes"),
        ({"timing": "fpm"}, "holds no timing model"),
    ],
)
def test_bad_input_fails_with_its_sentence_and_leaves_nothing(store: Path, changes: dict[str, Any], words: str) -> None:
    failed = work(jobs.submit(store, spec(store, **changes)))
    assert failed.state == "failed"
    assert words in failed.message
    assert list_bundles(store) == []


@pytest.fixture
def waiting(store: Path) -> Iterator[tuple[jobs.Job, subprocess.Popen[bytes]]]:
    """A worker that waits for its turn behind a job whose worker is this very process."""
    first = jobs.submit(store, spec(store, lanes=1))
    jobs.write_json(first.folder / "worker.json", {"pid": os.getpid(), "start": jobs.start_ticks(os.getpid())})
    second = jobs.submit(store, spec(store, lanes=2))
    process = subprocess.Popen([sys.executable, "-m", "dashboard.jobs.worker", str(second.folder)], cwd=PROJECT)
    deadline = time.monotonic() + 60
    while not (second.folder / "worker.json").exists():
        assert time.monotonic() < deadline, "the worker did not start"
        time.sleep(0.02)
    yield second, process
    process.kill()
    process.wait()


def test_a_job_waits_for_its_turn_and_can_be_canceled(
    store: Path, waiting: tuple[jobs.Job, subprocess.Popen[bytes]]
) -> None:
    job, process = waiting
    seen = jobs.read(job.folder)
    assert seen is not None
    assert seen.state == "waiting"
    jobs.cancel(seen)
    assert process.wait(timeout=60) == 0
    after = jobs.read(job.folder)
    assert after is not None
    assert after.state == "canceled"
    assert list_bundles(store) == []


def test_a_worker_that_was_killed_is_lost_and_can_be_asked_again(
    store: Path, waiting: tuple[jobs.Job, subprocess.Popen[bytes]]
) -> None:
    job, process = waiting
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    after = jobs.read(job.folder)
    assert after is not None
    assert after.state == "lost"
    assert jobs.submit(store, job.spec).state == "waiting"


def test_a_pid_of_another_process_is_not_taken_for_the_worker() -> None:
    own = jobs.start_ticks(os.getpid())
    assert jobs.is_alive({"pid": os.getpid(), "start": own})
    assert not jobs.is_alive({"pid": os.getpid(), "start": "1"})


def test_the_queue_has_an_end(store: Path) -> None:
    for lanes in range(1, jobs.MAX_RUNNING + jobs.MAX_WAITING + 1):
        jobs.submit(store, spec(store, lanes=lanes))
    with pytest.raises(GapscopeError, match="which is the limit"):
        jobs.submit(store, spec(store, lanes=100))


def test_old_jobs_are_forgotten_and_live_ones_are_not(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "KEPT", 2)
    for lanes in range(1, 5):
        job = jobs.submit(store, spec(store, lanes=lanes))
        jobs.write_json(job.folder / "error.json", {"message": "made up"})
    last = jobs.submit(store, spec(store, lanes=9))
    assert len(jobs.list_jobs(store)) == 3
    assert jobs.find(store, last.id) is not None
    assert jobs.find(store, "../../etc") is None


def test_a_store_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(GapscopeError, match="cannot be written"):
        jobs.submit(tmp_path / "file", {"do": "import", "title": "x", "stores": []})


def ladder_spec(store: Path, base: str = "ample8-predicted") -> dict[str, Any]:
    names = [find_bundle([SAMPLES], name).run_id for name in ("ample8", base)]
    return ladder_jobs.spec(*names, [SAMPLES, store])


def test_a_ladder_becomes_its_rungs_and_asking_again_is_the_same_job(store: Path) -> None:
    asked = jobs.submit(store, ladder_spec(store))
    assert asked.title == "ladder ample8 / ample8-predicted"
    done = work(asked)
    assert (done.state, done.message) == ("done", "5 of 5 rungs.")
    assert ladder_jobs.reasons(done) == {}
    assert done.run_id is None
    rungs = [find_bundle([store], run_id) for run_id in done.run_ids]
    assert [rung.lineage["rung"] for rung in rungs] == [1, 2, 3, 4, 5]
    assert not any(rung.verify() for rung in rungs)
    assert jobs.submit(store, ladder_spec(store)).state == "done"
    assert jobs.read_json(done.folder / "progress.json")
    found = ladder_jobs.latest(store, asked.spec["measured"], asked.spec["base"])
    assert found is not None
    assert found.id == asked.id
    assert ladder_jobs.latest(store, asked.spec["measured"], "other-0123456789ab") is None
    for file in (store / done.run_ids[2]).iterdir():
        file.unlink()
    asked = jobs.submit(store, ladder_spec(store))
    assert asked.state == "waiting"  # a rung is gone
    table = store / done.run_ids[1] / "requests.parquet"
    table.write_bytes(table.read_bytes() + b"x")  # and one is altered
    kept = [done.run_ids[at] for at in (0, 3, 4)]
    sealed = [(store / run_id / "run.json").stat().st_mtime_ns for run_id in kept]
    again = work(asked)
    assert again.message == "5 of 5 rungs, 3 of them in the store before."
    assert [find_bundle([store], run_id).verify() for run_id in again.run_ids] == [[]] * 5
    assert [again.run_ids[at] for at in (0, 3, 4)] == kept
    assert [(store / run_id / "run.json").stat().st_mtime_ns for run_id in kept] == sealed


def test_a_ladder_that_is_canceled_leaves_whole_rungs_only(store: Path) -> None:
    asked = jobs.submit(store, ladder_spec(store))
    process = subprocess.Popen([sys.executable, "-m", "dashboard.jobs.worker", str(asked.folder)], cwd=PROJECT)
    deadline = time.monotonic() + 120
    while not str((jobs.read_json(asked.folder / "progress.json") or {}).get("words")).startswith("rung"):
        assert time.monotonic() < deadline, "the ladder was not begun"
        time.sleep(0.02)
    running = jobs.read(asked.folder)
    assert running is not None
    assert set(ladder_jobs.reasons(running).values()) == {"being built"}
    jobs.cancel(running)
    assert process.wait(timeout=120) == 0
    after = jobs.read(asked.folder)
    assert after is not None
    assert (after.state, after.message) == ("canceled", "Canceled; rungs that were complete stay.")
    assert not [rung for rung in list_bundles(store) if find_bundle([store], rung.name).verify()]
    assert [path.name for path in store.iterdir() if path.name.startswith(".")] == [".jobs"]


def test_runs_that_make_no_ladder_are_said(store: Path) -> None:
    failed = work(jobs.submit(store, ladder_spec(store, "ample8_repeat")))
    assert failed.state == "failed"
    assert "a ladder starts from a replay" in failed.message
    assert list_bundles(store) == []


def test_a_ladder_with_a_rung_that_could_not_be_built_may_be_asked_again(store: Path) -> None:
    asked = jobs.submit(store, ladder_spec(store))
    rungs = [{"rung": 3, "run_id": None, "why": "No cached tokens."}]
    jobs.write_json(asked.folder / "result.json", {"run_ids": [], "rungs": rungs, "again": True, "message": "4 of 5."})
    done = jobs.read(asked.folder)
    assert (done.state, done.message) == ("done", "4 of 5.")
    assert ladder_jobs.reasons(done) == {3: "No cached tokens."}
    assert jobs.submit(store, ladder_spec(store)).state == "waiting"


def import_spec(store: Path, **changes: Any) -> dict[str, Any]:
    return importing.spec("x", [store]) | changes


def test_an_upload_that_nobody_knows_fails_and_is_removed(store: Path) -> None:
    asked = jobs.submit(store, import_spec(store), [("notes.zip", b"plain text")])
    failed = work(asked)
    assert failed.message.startswith("notes.zip is in no format that can be imported")
    assert not (asked.folder / "upload").exists()


def test_a_tar_of_something_else_says_what_can_be_imported(store: Path) -> None:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w:gz") as archive:
        info = tarfile.TarInfo("run/readme.txt")
        info.size = 2
        archive.addfile(info, io.BytesIO(b"hi"))
    failed = work(jobs.submit(store, import_spec(store), [("run.tgz", sink.getvalue())]))
    assert "no format that can be imported" in failed.message


def test_a_recording_with_a_bad_row_is_refused_in_the_words_of_the_page_and_imported_without_it(
    store: Path, tmp_path: Path
) -> None:
    path = Folder().write(tmp_path / "rec")
    (path / "requests.jsonl").write_bytes((path / "requests.jsonl").read_bytes()[:-40])
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        archive.add(path, "rec")
    upload = [("rec.tar", sink.getvalue())]
    failed = work(jobs.submit(store, import_spec(store), upload))
    assert "requests.jsonl line 3" in failed.message
    assert "import with 'Skip bad rows' ticked" in failed.message
    assert "--" not in failed.message
    done = work(jobs.submit(store, import_spec(store, skip_bad_rows=True), upload))
    assert done.state == "done"
    checks = {check.check: check.verdict for check in find_bundle([store], done.run_ids[0]).qualification}
    assert checks["rows_used"] == "fail"


@pytest.mark.parametrize("said", importing.PAGE_WORDS)
def test_advice_of_the_engine_is_given_in_the_words_of_the_page(said: str) -> None:
    spoken = [path for path in (PROJECT / "engine").rglob("*.py") if said in path.read_text(encoding="utf-8")]
    assert spoken  # the engine says so
    assert "--" not in importing.in_page_words(f"Do this: {said}, please.")


def packed(path: Path) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w:gz") as archive:
        archive.add(path, "rec")
    return sink.getvalue()


def test_files_that_are_uploaded_together_belong_together(store: Path, tmp_path: Path) -> None:
    path = Folder().write(tmp_path / "rec")
    uploads = [(file.name, file.read_bytes()) for file in path.iterdir()]
    planned = importing.look([*uploads, ("notes.txt", b"by hand")])
    assert [run.kind for run in planned.runs] == ["measured"]
    assert {name for name, used, _ in planned.runs[0].files if used} >= {"identity.json", "requests.jsonl"}
    assert ("notes.txt", "no importer knows it") in planned.ignored
    assert not store.exists()  # looking writes nothing
    done = work(jobs.submit(store, import_spec(store, run_title="By hand"), uploads))
    assert (done.state, done.message) == ("done", "")
    bundle = find_bundle([store], done.run_ids[0])
    assert (bundle.kind, bundle.title) == ("measured", "By hand")
    assert not (done.folder / "upload").exists()
    assert not (done.folder / "unpacked").exists()


def test_a_path_on_this_machine_is_read_again_when_it_is_asked_for_again(store: Path, tmp_path: Path) -> None:
    path = Folder().write(tmp_path / "rec")
    assert [run.name for run in importing.look(path=f"'{path}'").runs] == ["rec"]
    asked = import_spec(store, path=str(path))
    done = work(jobs.submit(store, asked))
    assert (done.state, len(done.run_ids)) == ("done", 1)
    assert jobs.submit(store, asked).state == "waiting"  # its files may be others by now
    with pytest.raises(GapscopeError, match="from the root of this machine"):
        importing.look(path="rec")


def test_a_part_that_is_refused_is_told_beside_the_runs(store: Path, tmp_path: Path) -> None:
    good, bad = Folder().write(tmp_path / "all" / "good"), Folder().write(tmp_path / "all" / "bad")
    (bad / "requests.jsonl").write_bytes((good / "requests.jsonl").read_bytes()[:-40])
    done = work(jobs.submit(store, import_spec(store), [("all.tgz", packed(tmp_path / "all"))]))
    assert (done.state, len(done.run_ids)) == ("done", 1)
    assert done.message.startswith("1 of 2 runs. bad: ")
    assert "import with 'Skip bad rows' ticked" in done.message
    assert [bool(part["run_id"]) for part in done.result["parts"]] == [False, True]
    assert jobs.submit(store, import_spec(store), [("all.tgz", packed(tmp_path / "all"))]).state == "waiting"


@pytest.mark.parametrize("name", ["../outside.txt", "/gapscope-outside.txt", "a/../../outside.txt"])
def test_an_archive_does_not_reach_outside_its_folder(store: Path, tmp_path: Path, name: str) -> None:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as zipped:
        zipped.writestr(name, "x")
    with pytest.raises(GapscopeError, match="outside its own folder"):
        importing.look([("bad.zip", sink.getvalue())])
    asked = jobs.submit(store, import_spec(store), [("bad.zip", sink.getvalue())])
    assert "bad.zip names" in work(asked).message
    assert not list(tmp_path.rglob("*outside.txt"))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_a_tar_holds_plain_files(store: Path, kind: bytes) -> None:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        info = tarfile.TarInfo("rec/link")
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)
    with pytest.raises(GapscopeError, match=r"no plain file|holds no file"):
        importing.look([("rec.tar", sink.getvalue())])


@pytest.mark.parametrize("name", ["../outside.json", "..\\outside.json", "/outside.json", "...", ""])
def test_the_name_of_an_upload_is_only_a_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "job" / "upload"
    assert place([(name, b"{}"), (name, b"[]")], folder) == folder
    assert len(list(folder.iterdir())) == 2
    assert not (tmp_path / "job" / "outside.json").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["job"]


def test_uploads_of_other_names_or_contents_are_other_jobs(store: Path) -> None:
    uploads = [("a", b"12"), ("b", b"3")], [("a", b"1"), ("b", b"23")], [("a", b"12"), ("c", b"3")]
    assert len({jobs.submit(store, import_spec(store), one).id for one in uploads}) == 3


def test_passes_are_attached_to_the_run_of_their_client(store: Path) -> None:
    data = PROJECT / "tests" / "data"
    client = work(jobs.submit(store, import_spec(store, path=str(data / "aiperf" / "native"))))
    passes = [("fpm.jsonl.gz", (data / "engine" / "fpm.jsonl.gz").read_bytes())]
    (planned,) = importing.look(passes).runs
    assert planned.attachable
    assert not importing.look(path=str(data / "aiperf" / "native")).runs[0].attachable
    asked = importing.spec("fpm.jsonl.gz", [store], to=client.run_ids[0], clock="wall")
    assert asked["title"] == f"fpm.jsonl.gz, attached to {client.run_ids[0]}"
    done = work(jobs.submit(store, asked, passes))
    assert (done.state, done.message) == ("done", "")
    before, after = (find_bundle([store], job.run_ids[0]) for job in (client, done))
    assert before.verify() == []  # stays as it is
    assert after.rows("requests") == before.rows("requests")
    assert after.rows("passes")
    assert {check.check for check in after.qualification} >= {"clocks_aligned"}
    refused = work(jobs.submit(store, asked | {"run": done.run_ids[0]}, passes))
    assert refused.state == "failed"


def test_a_canceled_import_says_what_stays(store: Path) -> None:
    asked = jobs.submit(store, import_spec(store), [("a", b"")])
    jobs.write_json(asked.folder / "canceled.json", {})
    assert jobs.read(asked.folder).message == "Canceled; nothing was written."
    jobs.write_json(asked.folder / "made.json", {"run_ids": ["a-0123456789ab", "b-0123456789ab"]})
    assert jobs.read(asked.folder).message == "Canceled; what was complete stays: a-0123456789ab, b-0123456789ab."


def test_an_import_that_is_canceled_leaves_whole_runs_only(store: Path, tmp_path: Path) -> None:
    """Of two runs one is complete when the second begins; rows of the second are written by then."""
    source = tmp_path / "in"
    Folder().write(source / "a")
    (source / "b").mkdir()
    rows = gzip.decompress((DATA / "aiperf" / "cancellation" / "profile_export.jsonl.gz").read_bytes())
    (source / "b" / "profile_export.jsonl").write_bytes(many(rows, 400))
    asked = jobs.submit(store, import_spec(store, path=str(source)))
    process = subprocess.Popen([sys.executable, "-m", "dashboard.jobs.worker", str(asked.folder)], cwd=PROJECT)
    deadline = time.monotonic() + 120
    while "records" not in str((jobs.read_json(asked.folder / "progress.json") or {}).get("words")):
        assert time.monotonic() < deadline, "the second run was not begun"
        time.sleep(0.02)
    jobs.cancel(jobs.read(asked.folder))
    assert process.wait(timeout=120) == 0
    (made,) = list_bundles(store)
    assert find_bundle([store], made.name).verify() == []
    after = jobs.read(asked.folder)
    assert (after.state, after.message) == ("canceled", f"Canceled; what was complete stays: {made.name}.")
    assert [path.name for path in store.iterdir() if path.name.startswith(".")] == [".jobs"]


def many(rows: bytes, times: int) -> bytes:
    """Rows of AIPerf so many times over, each with an id of its own."""
    return b"".join(re.sub(rb'("x_request_id": ?")', rb"\g<1>%d-" % number, rows) for number in range(times))


def test_a_job_that_is_canceled_before_its_worker_lives_never_begins(store: Path) -> None:
    asked = jobs.submit(store, import_spec(store), [("a", b"")])
    jobs.cancel(asked)
    ended = work(asked)
    assert (ended.state, ended.message) == ("canceled", "Canceled; nothing was written.")
    assert list_bundles(store) == []
    assert jobs.submit(store, import_spec(store), [("a", b"")]).state == "waiting"  # it may be asked for again
