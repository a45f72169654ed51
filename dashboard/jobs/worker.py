"""One job in a process of its own: ``python -m dashboard.jobs.worker FOLDER``, where the folder holds ``spec.json``.

With ``--spare`` in place of a folder it reads its libraries first, and is told the folder then
(:mod:`dashboard.jobs.spare`).

Jobs take turns: a worker waits until every job asked for before it has ended. What it is told to do is

* ``{"do": "replay", "base": RUN, "changes": {KNOB: VALUE}, "fit": ["RUN[:PHASE,...]"]}``: replay a run with changes,
* ``{"do": "import", "path": PATH, "skip_bad_rows": BOOL}``: import the files in ``upload/``, or those at the path,
* ``{"do": "attach", "run": RUN, "path": PATH, "clock": CLOCK}``: lay an engine's passes and KV events under a run,
* ``{"do": "ladder", "measured": RUN, "base": RUN}``: build the rungs between a prediction and a measured run,
* ``{"do": "sweep", "base": RUN, "points": [{KNOB: VALUE}], "fit": [...]}``: replay it with each of several changes,
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
from dashboard.jobs.bounds import bound_memory
from engine.errors import GapscopeError

WALL_LIMIT_S = 3600
LOOK_EVERY_S = 0.2
NICE = 5
"""Pages stay responsive."""


class _Stopped(BaseException):
    """A signal asked the worker to end. Not an Exception, so that nothing on the way handles it as an error."""


def main(folder: Path) -> int:
    """Do the job; exactly one of result, error and canceled is written."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
        signal.signal(number, _stop)
    os.setpriority(os.PRIO_PROCESS, 0, NICE)
    most_gb = bound_memory()
    made: dict[str, Any] = {}
    head = jobs.read_json(folder / "spec.json")
    assert head is not None, f"{folder} holds no job"
    worker: dict[str, Any] = {"pid": os.getpid(), "start": jobs.start_ticks(os.getpid())}
    try:
        jobs.write_json(folder / "worker.json", worker)
        if (folder / "cancel.json").exists():  # from before there was a process to signal
            raise _Stopped
        _wait_for_turn(folder, float(head["created_s"]))
        signal.alarm(WALL_LIMIT_S)
        begun_s = time.time()
        jobs.write_json(folder / "worker.json", worker | {"begun_s": begun_s})
        jobs.write_json(folder / "progress.json", {"words": "starting", "share": None})
        made = DOING[head["spec"]["do"]](folder, head["spec"], Path(head["store"]))
        jobs.write_json(folder / "result.json", made | {"took_s": time.time() - begun_s})
    except GapscopeError as error:
        from dashboard.jobs.importing import in_page_words

        jobs.write_json(folder / "error.json", {"message": in_page_words(str(error))})
    except _Stopped as stopped:
        if stopped.args == (signal.SIGALRM,):
            jobs.write_json(folder / "error.json", {"message": f"Stopped after the limit of {WALL_LIMIT_S} s."})
        else:
            jobs.write_json(folder / "canceled.json", {})
    except MemoryError:
        words = f"Stopped: the job needs more than {most_gb:.0f} GB of memory, which is its limit on this machine."
        jobs.write_json(folder / "error.json", {"message": words})
    except Exception as error:
        traceback.print_exc()
        jobs.write_json(folder / "error.json", {"message": f"A defect of gapscope: {type(error).__name__}: {error}"})
    finally:
        signal.alarm(0)
        _forget_upload(folder)
    _prepare([made["run_id"]] if made.get("run_id") else made.get("run_ids", ()), head)
    return 0


def spare() -> Path | None:
    """Read the libraries that most jobs need, and wait for the folder of one; None where the server ended.

    What is printed from then on goes into the log of the job.
    """
    os.setpriority(os.PRIO_PROCESS, 0, NICE)
    import dashboard.jobs.playing  # noqa: F401

    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        return None
    folder = Path(line[:-1].decode())
    with (folder / "worker.log").open("wb") as log:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(log.fileno(), stream.fileno())
    return folder


def _prepare(run_ids: Sequence[str], head: Mapping[str, Any]) -> None:
    """Work out what pages make of large runs at their first use: the job has ended, nobody waits for this."""
    try:
        signal.alarm(WALL_LIMIT_S)
        roots = [*map(Path, head["spec"].get("stores", ())), Path(head["store"])]
        large = [run_id for run_id in run_ids if _is_large(run_id, roots)]
        if not large:  # the libraries of the pages would be read for nothing, while a page is being drawn
            return
        from dashboard.prepare import prepare
        from dashboard.store import Store

        store = Store(roots, preparing=True)
        for run_id in large:
            prepare(store, run_id)
    except (_Stopped, Exception):  # the first page that shows the run says what is wrong with it, or makes it itself
        traceback.print_exc()
    finally:
        signal.alarm(0)


def _is_large(run_id: str, roots: Sequence[Path]) -> bool:
    from dashboard.kept.derived import is_large
    from engine.bundle import find_bundle
    from engine.bundle.schema import TABLES

    bundle = find_bundle(roots, run_id)
    return is_large(bundle.rows(one) for one in TABLES)


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
    from dashboard.jobs.playing import Player
    from engine.bundle import open_bundle

    stores = [Path(text) for text in spec["stores"]]

    def told(words: str, share: float | None) -> None:
        jobs.write_json(folder / "progress.json", {"words": words, "share": share})

    player = Player(spec["base"], spec.get("fit") or (), stores, store)
    run_id = player.play(spec["changes"], spec["title"], told)
    return {"run_id": run_id, "cpu_s": open_bundle(store / run_id).manifest["host"]["cpu_s"]}


def _ladder(folder: Path, spec: Mapping[str, Any], store: Path) -> dict[str, Any]:
    """Every rung with its run, or with the reason why it could not be built; the latter is worth another try."""
    from engine.bundle import find_bundle
    from engine.ladder import build_ladder

    stores = [Path(text) for text in spec["stores"]]
    measured, base = (find_bundle(stores, spec[name]) for name in ("measured", "base"))
    for bundle in (measured, base):
        bundle.require_intact()

    def progress(share: float, words: str) -> None:
        jobs.write_json(folder / "progress.json", {"words": words, "share": share})

    found = build_ladder(measured, base, stores=stores, store=store, progress=progress, cancel=None)
    rungs = [{"rung": rung.number, "run_id": rung.run_id, "why": rung.why, "found": rung.found} for rung in found.rungs]
    return jobs.several("rungs", rungs, [f"Rung {rung.number}" for rung in found.rungs], rungs=rungs)


def _forget_upload(folder: Path) -> None:
    shutil.rmtree(folder / "upload", ignore_errors=True)


def _import(folder: Path, spec: Mapping[str, Any], store: Path) -> dict[str, Any]:
    from dashboard.jobs import importing

    return importing.run(folder, spec, store)


def _attach(folder: Path, spec: Mapping[str, Any], store: Path) -> dict[str, Any]:
    from dashboard.jobs import importing

    return importing.run_attach(folder, spec, store)


def _again(folder: Path, spec: Mapping[str, Any], store: Path) -> dict[str, Any]:
    from dashboard.jobs import again

    return again.run(folder, spec, store)


def _sweep(folder: Path, spec: Mapping[str, Any], store: Path) -> dict[str, Any]:
    from dashboard.jobs import sweep

    return sweep.run(folder, spec, store)


DOING = {
    "replay": _replay,
    "sweep": _sweep,
    "import": _import,
    "attach": _attach,
    "ladder": _ladder,
    "again": _again,
}
"""Each imports what it needs: half of the time of a short replay would go into the libraries of the others."""

if __name__ == "__main__":
    asked = spare() if sys.argv[1] == "--spare" else Path(sys.argv[1])
    sys.exit(0 if asked is None else main(asked))
