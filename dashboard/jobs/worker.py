"""One job in a process of its own: ``python -m dashboard.jobs.worker FOLDER``, where the folder holds ``spec.json``.

Jobs take turns: a worker waits until every job asked for before it has ended. What it is told to do is

* ``{"do": "replay", "base": RUN, "changes": {KNOB: VALUE}, "fit": ["RUN[:PHASE,...]"]}``: replay a run with changes,
* ``{"do": "import", "path": PATH, "skip_bad_rows": BOOL}``: import the files in ``upload/``, or those at the path,
* ``{"do": "attach", "run": RUN, "path": PATH, "clock": CLOCK}``: lay an engine's passes and KV events under a run,
* ``{"do": "ladder", "measured": RUN, "base": RUN}``: build the rungs between a prediction and a measured run,
* ``{"do": "again", "replay": RUN}``: play a replay again and compare, which writes no run,

each with a ``title`` and the folders of the ``stores``.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from dashboard import jobs
from dashboard.jobs import again, importing
from dashboard.jobs.models import model_of
from engine import knobs as knob_table
from engine.bundle import Bundle, find_bundle, measured_runs, slugify
from engine.deployment import preset_folders
from engine.errors import GapscopeError
from engine.ladder import build_ladder
from engine.replay import Canceled, knobs_from_run, played_trace, replay
from engine.traces.cache import TraceCache

WALL_LIMIT_S = 3600
LOOK_EVERY_S = 0.2


class _Stopped(BaseException):
    """A signal asked the worker to end. Not an Exception, so that nothing on the way handles it as an error."""


def main(folder: Path) -> int:
    """Do the job; exactly one of result, error and canceled is written."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
        signal.signal(number, _stop)
    os.nice(5)  # pages stay responsive
    head = jobs.read_json(folder / "spec.json")
    assert head is not None, f"{folder} holds no job"
    try:
        jobs.write_json(folder / "worker.json", {"pid": os.getpid(), "start": jobs.start_ticks(os.getpid())})
        if (folder / "cancel.json").exists():  # from before there was a process to signal
            raise _Stopped
        _wait_for_turn(folder, float(head["created_s"]))
        signal.alarm(WALL_LIMIT_S)
        jobs.write_json(folder / "progress.json", {"words": "starting", "share": None})
        jobs.write_json(folder / "result.json", DOING[head["spec"]["do"]](folder, head["spec"], Path(head["store"])))
    except GapscopeError as error:
        jobs.write_json(folder / "error.json", {"message": importing.in_page_words(str(error))})
    except (_Stopped, Canceled) as stopped:
        if stopped.args == (signal.SIGALRM,):
            jobs.write_json(folder / "error.json", {"message": f"Stopped after the limit of {WALL_LIMIT_S} s."})
        else:
            jobs.write_json(folder / "canceled.json", {})
    except Exception as error:
        traceback.print_exc()
        jobs.write_json(folder / "error.json", {"message": f"A defect of gapscope: {type(error).__name__}: {error}"})
    finally:
        signal.alarm(0)
        _forget_upload(folder)
    return 0


def _stop(number: int, frame: FrameType | None) -> None:
    raise _Stopped(number)


def _wait_for_turn(folder: Path, created_s: float) -> None:
    while True:
        ahead = [
            job
            for job in jobs.list_jobs(folder.parents[1])
            if not job.final and (job.created_s, job.id) < (created_s, folder.name)
        ]
        if len(ahead) < jobs.MAX_RUNNING:
            return
        time.sleep(LOOK_EVERY_S)


def _replay(folder: Path, spec: Mapping[str, Any], store: Path) -> dict[str, Any]:
    stores = [Path(text) for text in spec["stores"]]
    base = find_bundle(stores, spec["base"])
    base.require_intact()
    values = knob_table.resolve(spec["changes"], knobs_from_run(base))
    like = base if base.kind == "measured" else (_found(stores, base.lineage.get("like")) or base)
    model = model_of(base, stores, spec.get("fit") or (), values)
    trace = played_trace(base, stores, TraceCache(store))
    span_s = values["duration_s"] and values["warmup_s"] + values["duration_s"] + values["grace_s"]
    turns = sum(len(conversation.turns) for play in trace.plays for conversation in play.conversations)

    def progress(now_ns: int, wall_s: float, passes: int, requests: int) -> None:
        share = (now_ns / 1e9 + values["warmup_s"]) / span_s if span_s else requests / max(turns, 1)
        words = f"{now_ns / 1e9:,.0f} s simulated in {wall_s:.0f} s, {passes:,} passes, {requests:,} requests"
        jobs.write_json(folder / "progress.json", {"words": words, "share": share})

    slug = f"{base.run_id.rpartition('-')[0]}-what-if"[:60]
    run_id = replay(
        trace,
        values,
        model,
        store=store,
        presets=preset_folders(stores, base.lineage.get("timing")),
        title=spec["title"],
        slug=slugify(slug),
        like=like,
        held=measured_runs(stores),
        parent_run=base.run_id if base.kind == "replay" else None,
        progress=progress,
    )
    return {"run_id": run_id}


def _found(stores: Sequence[Path], run_id: str | None) -> Bundle | None:
    try:
        return find_bundle(stores, run_id) if run_id else None
    except GapscopeError:
        return None  # the run that the base stands for lies elsewhere


def _ladder(folder: Path, spec: Mapping[str, Any], store: Path) -> dict[str, Any]:
    """Every rung with its run, or with the reason why it could not be built; the latter is worth another try."""
    stores = [Path(text) for text in spec["stores"]]
    measured, base = (find_bundle(stores, spec[name]) for name in ("measured", "base"))
    for bundle in (measured, base):
        bundle.require_intact()

    def progress(share: float, words: str) -> None:
        jobs.write_json(folder / "progress.json", {"words": words, "share": share})

    found = build_ladder(measured, base, stores=stores, store=store, progress=progress, cancel=None)
    rungs = [{"rung": rung.number, "run_id": rung.run_id, "why": rung.why} for rung in found.rungs]
    lacking = [rung for rung in rungs if not rung["run_id"]]
    built = f"{len(rungs) - len(lacking)} of {len(rungs)} rungs"
    why = " ".join(f"Rung {rung['rung']}: {rung['why']}" for rung in lacking)
    return {
        "run_ids": [rung["run_id"] for rung in rungs if rung["run_id"]],
        "rungs": rungs,
        "again": bool(lacking),
        "message": f"{built}. {why}".strip(),
    }


def _forget_upload(folder: Path) -> None:
    shutil.rmtree(folder / "upload", ignore_errors=True)


DOING = {
    "replay": _replay,
    "import": importing.run,
    "attach": importing.run_attach,
    "ladder": _ladder,
    "again": again.run,
}

if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
