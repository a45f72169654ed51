"""The worker that is kept ready: real processes, a job in its hands, its death, and the end of its server."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dashboard import jobs
from dashboard.jobs import spare
from engine.bundle import find_bundle, list_bundles
from engine.stores import PROJECT

SAMPLES = PROJECT / "sample_runs"


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process serves pages for the length of a test, and leaves nothing behind."""
    monkeypatch.setattr(spare, "_kept", True)
    monkeypatch.setattr(spare, "_deaths", 0)
    yield
    spare.end()


def until(true: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 120
    while not (found := true()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def started() -> int:
    spare.ready(after_s=0.0)
    return int(until(spare.pid))


def spec(store: Path, lanes: int) -> dict[str, Any]:
    changes = {"duration_s": 4, "warmup_s": 1, "timing": "fixed", "lanes": lanes}
    stores = [str(SAMPLES), str(store.resolve())]
    return {"do": "replay", "base": "ample8", "changes": changes, "fit": [], "title": "short", "stores": stores}


def ended(job: jobs.Job) -> jobs.Job:
    def final() -> jobs.Job | None:
        found = jobs.read(job.folder)
        return found if found and found.final else None

    return until(final)


def test_the_spare_does_one_job_and_ends(tmp_path: Path) -> None:
    own = started()
    spare.ready(after_s=0.0)
    assert spare.pid() == own  # one at most
    first = ended(jobs.submit(tmp_path, spec(tmp_path, 2)))
    assert (first.state, first.message) == ("done", "")
    assert find_bundle([tmp_path], str(first.run_id)).identity.value("client", "lanes") == 2
    worker = jobs.read_json(first.folder / "worker.json") or {}
    assert worker["pid"] == own
    until(lambda: not jobs.is_alive(worker))
    assert spare.pid() is None  # the next page starts another
    second = ended(jobs.submit(tmp_path, spec(tmp_path, 3)))  # which takes a worker of its own before that
    assert second.state == "done"
    assert (jobs.read_json(second.folder / "worker.json") or {})["pid"] != own


def test_a_job_of_the_spare_fails_with_its_sentence(tmp_path: Path) -> None:
    own = started()
    failed = ended(jobs.submit(tmp_path, spec(tmp_path, 2) | {"changes": {"kv_blocks": 10, "timing": "fixed"}}))
    assert (failed.state, "raise kv_blocks" in failed.message) == ("failed", True)
    assert (jobs.read_json(failed.folder / "worker.json") or {})["pid"] == own


def test_a_spare_that_was_killed_is_said_and_its_job_done_by_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = started()
    os.kill(own, signal.SIGKILL)
    with caplog.at_level(logging.WARNING, "gapscope.jobs"):
        until(lambda: spare.pid() is None)
        done = ended(jobs.submit(tmp_path, spec(tmp_path, 2)))
    assert done.state == "done"
    assert "A worker kept ready for the next job died (status -9)" in caplog.text


def test_spares_that_keep_dying_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare, "COMMAND", ("false",))
    for _ in range(spare.MOST_DEATHS):
        spare.ready(after_s=0.0)
        until(lambda: spare._spare is not None)
        until(lambda: spare.pid() is None)
    spare.ready(after_s=0.0)
    assert spare._timer is None


def test_it_is_kept_only_where_pages_are_served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(spare, "_kept", False)
    spare.ready(after_s=0.0)
    assert spare._timer is None
    assert not spare.take(tmp_path)


def test_a_spare_ends_with_its_server(tmp_path: Path) -> None:
    process = subprocess.Popen(spare.COMMAND, stdin=subprocess.PIPE, cwd=PROJECT)
    assert process.stdin is not None
    process.stdin.close()  # as the kernel does when the server is gone
    assert process.wait(timeout=120) == 0
    assert list_bundles(tmp_path) == []


def test_a_spare_that_nobody_asks_for_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare, "IDLE_S", 0.1)
    spare.ready(after_s=0.0)
    found = until(lambda: spare._spare)
    assert until(lambda: found.poll() is not None)
    assert (found.returncode, spare.pid()) == (0, None)
