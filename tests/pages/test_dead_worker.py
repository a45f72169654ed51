"""A worker that is killed outright is told on the page, and the next job has its turn."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import Open

from dashboard import jobs
from dashboard.jobs import importing
from engine.stores import PROJECT

CLIENT = PROJECT / "tests" / "data" / "aiperf" / "cancellation"


def test_a_killed_worker_is_told_and_the_queue_goes_on(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_start", lambda folder: None)  # workers are started below
    dead = jobs.submit(tmp_path, importing.spec("the first", [tmp_path], path="/nowhere"))
    victim = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    jobs.write_json(dead.folder / "worker.json", {"pid": victim.pid, "start": jobs.start_ticks(victim.pid)})
    jobs.write_json(dead.folder / "progress.json", {"words": "reading", "share": 0.5})
    files = [(one.name, one.read_bytes()) for one in sorted(CLIENT.iterdir())]
    behind = jobs.submit(tmp_path, importing.spec("the second", [tmp_path]), files)
    worker = subprocess.Popen([sys.executable, "-m", "dashboard.jobs.worker", str(behind.folder)], cwd=PROJECT)
    try:
        deadline = time.monotonic() + 60
        while not (behind.folder / "worker.json").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert worker.poll() is None, "the second job did not wait for the first"
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait()
        assert worker.wait(timeout=60) == 0
    finally:
        victim.kill()
        worker.kill()
    page = opened(tmp_path, "runs")
    assert not page.exception
    words = "\n".join(one.value for one in page.markdown)
    assert "worker died · import of the first" in words.replace("\\", "")
    assert "done · import of the second" in words.replace("\\", "")
    assert any("The worker ended without a word" in one.value for one in page.error)
    assert any(button.label == "Forget" for button in page.button)
