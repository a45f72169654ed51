"""The Runs page says how far large runs are prepared in the background."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from conftest import Open

from dashboard import jobs, preparing
from dashboard.kept.derived import FOLDER


def test_the_runs_page_says_how_far_it_is(opened: Open, paired: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(paired, store)
    worker = {"pid": os.getpid(), "start": jobs.start_ticks(os.getpid())}
    (store / FOLDER).mkdir()
    told = {"worker": worker, "done": 1, "runs": 4, "run_id": "big-0123456789ab", "words": "table stages"}
    jobs.write_json(store / FOLDER / preparing.STATE, told)
    app = opened(store, "runs")
    assert not app.exception
    (said,) = [one.value for one in app.caption if "prepared in the background" in one.value]
    assert "1 of 4 done, now big" in said
    (store / FOLDER / preparing.STATE).unlink()
    assert not [one for one in opened(store, "runs").caption if "prepared in the background" in one.value]
