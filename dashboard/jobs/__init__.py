"""Replays, sweeps, imports and ladders in processes of their own; everything known about a job lies in files.

A job is a folder ``<store>/.jobs/<id>/``. Its id is a digest of what is asked for, so asking twice is one job.
``spec.json`` says what to do and how long it may take, the worker (:mod:`dashboard.jobs.worker`) writes ``worker.json``
(pid, start time and when its turn came), ``progress.json`` while it runs, ``made.json`` (the complete ones of several
runs) and exactly one of ``result.json``, ``error.json`` and ``canceled.json`` at its end; ``cancel.json`` asks it to
stop. Nothing else holds state: a page reload or a new server reads the same files, and the worker needs neither.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dashboard.jobs import spare
from dashboard.jobs.uploads import Uploads, place
from engine.errors import GapscopeError

MAX_RUNNING = 1
MAX_WAITING = 8
KEPT = 40
"""Finished jobs that are remembered; older ones are forgotten, their runs stay."""
FINAL = ("done", "failed", "canceled", "lost")
STARTUP_S = 20.0
"""A job without a worker for this long after it was asked for is lost."""


@dataclass(frozen=True)
class Job:
    """A job as its files tell it."""

    id: str
    folder: Path
    spec: Mapping[str, Any]
    state: str  # waiting | running | done | failed | canceled | lost
    created_s: float
    progress: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    message: str = ""
    estimate: Mapping[str, Any] | None = None  # as dashboard.jobs.estimate made it before the job was asked for
    begun_s: float | None = None  # when its turn came

    @property
    def title(self) -> str:
        """What the job does, in the words of who asked for it."""
        return str(self.spec.get("title") or self.id)

    @property
    def run_id(self) -> str | None:
        """The run that it made; None of a job that makes several."""
        return self.result.get("run_id")

    @property
    def run_ids(self) -> list[str]:
        """Every run that it made or found."""
        return [self.run_id] if self.run_id else list(self.result.get("run_ids") or ())

    @property
    def final(self) -> bool:
        """Whether the job has ended."""
        return self.state in FINAL

    @property
    def repeatable(self) -> bool:
        """Whether it can be asked for again as it stands: files that were uploaded for it are gone."""
        return self.spec.get("do") not in ("import", "attach") or bool(self.spec.get("path"))

    @property
    def share(self) -> float | None:
        """Share of the work that is done, where that is known."""
        share = self.progress.get("share")
        return None if share is None else min(max(float(share), 0.0), 1.0)


def jobs_folder(store: Path) -> Path:
    """Where the jobs of a store lie."""
    return store / ".jobs"


def submit(
    store: Path, spec: Mapping[str, Any], uploads: Uploads = (), estimate: Mapping[str, Any] | None = None
) -> Job:
    """Ask for a job: the one that exists already, or a new worker.

    Args:
        store: the folder into which the resulting run is written.
        spec: what to do, as :mod:`dashboard.jobs.worker` reads it.
        uploads: names and contents of files that the job reads and then forgets.
        estimate: how long it may take, which is shown and is no part of what is asked for.

    Raises:
        GapscopeError: too many jobs wait already, or the store cannot be written.
    """
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode())
    for name, content in uploads:
        digest.update(f"\0{name}\0{memoryview(content).nbytes}\0".encode())
        digest.update(content)
    folder = jobs_folder(store) / digest.hexdigest()[:16]
    known = read(folder)
    if known and (known.state in ("waiting", "running") or _stands(store, known)):
        return known
    waiting = [job for job in list_jobs(store) if not job.final]
    if len(waiting) >= MAX_RUNNING + MAX_WAITING:
        raise GapscopeError(
            f"{len(waiting)} jobs are waiting or running already, which is the limit: cancel one, or try again later."
        )
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if uploads:
            place(uploads, folder / "upload")
        head = {"spec": dict(spec), "store": str(store.resolve()), "created_s": time.time()}
        write_json(folder / "spec.json", head | ({"estimate": dict(estimate)} if estimate else {}))
        _start(folder)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise GapscopeError(
            f"The store {store} cannot be written ({error.strerror}): start gapscope with --store FOLDER of your own."
        ) from None
    _forget_old(store)
    job = read(folder)
    assert job is not None
    return job


def _start(folder: Path) -> None:
    """Hand the job to the worker that is kept ready, or start one, in a session of its own to outlive this server."""
    if spare.take(folder):
        return
    with (folder / "worker.log").open("wb") as log:
        subprocess.Popen(
            [sys.executable, "-m", "dashboard.jobs.worker", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=Path(__file__).resolve().parents[1],
            start_new_session=True,
        )


def list_jobs(store: Path) -> list[Job]:
    """All jobs of a store, the newest first."""
    folder = jobs_folder(store)
    if not folder.is_dir():
        return []
    found = [job for path in folder.iterdir() if path.is_dir() and (job := read(path))]
    return sorted(found, key=lambda job: (-job.created_s, job.id))


def jobs_about(store: Path, **about: str) -> list[Job]:
    """The jobs of a store that were asked for with these values, the newest first."""
    return [job for job in list_jobs(store) if all(job.spec.get(name) == value for name, value in about.items())]


def find(store: Path, job_id: str) -> Job | None:
    """The job of an id, if the store knows it."""
    if not job_id or not job_id.isalnum():
        return None
    return read(jobs_folder(store) / job_id)


def cancel(job: Job) -> None:
    """Ask the worker to stop; it removes what it had begun to write. One that is about to start finds the request."""
    if job.final:
        return
    write_json(job.folder / "cancel.json", {})
    worker = read_json(job.folder / "worker.json")
    if worker and is_alive(worker):
        os.kill(int(worker["pid"]), signal.SIGTERM)


def forget(job: Job) -> None:
    """Remove an ended job from the list; its run stays."""
    if job.final:
        shutil.rmtree(job.folder, ignore_errors=True)


def read(folder: Path) -> Job | None:
    """The job in a folder; None where there is none."""
    head = read_json(folder / "spec.json")
    if head is None:
        return None
    created = float(head["created_s"])
    worker = read_json(folder / "worker.json")  # before the ends: a worker that ends in between is seen as ended
    alive = is_alive(worker) if worker else time.time() - created < STARTUP_S
    progress = read_json(folder / "progress.json") or {}
    state, message = ("running" if progress else "waiting"), ""
    if (result := read_json(folder / "result.json")) is not None:
        state, message = "done", str(result.get("message") or "")
    elif (error := read_json(folder / "error.json")) is not None:
        state, message = "failed", str(error["message"])
    elif (folder / "canceled.json").exists():
        state, message = "canceled", f"Canceled; {_kept(folder, head['spec'])}."
    elif not alive:
        state, message = "lost", _lost(folder, progress)
    begun = (worker or {}).get("begun_s")
    return Job(
        folder.name, folder, head["spec"], state, created, progress, result or {}, message, head.get("estimate"), begun
    )


def _lost(folder: Path, progress: Mapping[str, Any]) -> str:
    """That a worker is gone, with what it last said and printed."""
    said = f" It last said: {progress['words']}." if progress.get("words") else ""
    printed = log_tail(folder)
    return f"The worker ended without a word.{said}" + (f" It printed: {printed}" if printed else "")


def _kept(folder: Path, spec: Mapping[str, Any]) -> str:
    """What a canceled job leaves: of those that make several runs, the complete ones."""
    if spec.get("do") == "ladder":
        return "rungs that were complete stay"
    made = (read_json(folder / "made.json") or {}).get("run_ids")
    if made and spec.get("do") == "sweep":
        return f"{len(made)} of {len(spec['points'])} points were complete and stay"
    return f"what was complete stays: {', '.join(made)}" if made else "nothing was written"


def several(noun: str, parts: Sequence[Mapping[str, Any]], words: Sequence[str], **told: Any) -> dict[str, Any]:
    """The result of a job that makes several runs; what is lacking is worth another try.

    Args:
        noun: what the parts are called.
        parts: each with its ``run_id`` or None, ``why`` there is none, and whether it was ``found`` in the store.
        words: what each is, for the sentence on what is lacking.
        told: what else the result holds.
    """
    lacking = [f"{name}: {part['why']}" for name, part in zip(words, parts, strict=True) if not part["run_id"]]
    stood = sum(bool(part["found"]) for part in parts)
    kept = f", {stood} of them in the store before" if stood else ""
    return told | {
        "run_ids": [part["run_id"] for part in parts if part["run_id"]],
        "again": bool(lacking),
        "message": f"{len(parts) - len(lacking)} of {len(parts)} {noun}{kept}. {' '.join(lacking)}".strip(),
    }


def log_tail(folder: Path, lines: int = 4) -> str:
    """The last lines that the worker printed."""
    try:
        text = (folder / "worker.log").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(text.strip().splitlines()[-lines:])


def start_ticks(pid: int) -> str | None:
    """When a process started, as the kernel counts; None when it is gone or a zombie. Tells a pid from its reuse."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else fields[19]


def is_alive(worker: Mapping[str, Any]) -> bool:
    """Whether the very process that wrote ``worker.json`` still runs."""
    return start_ticks(int(worker["pid"])) == worker["start"]


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON file; None where it is absent."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return None


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a JSON file in one step, so that a reader never sees half of one."""
    partial = path.with_suffix(f".{os.getpid()}.partial")
    partial.write_text(json.dumps(value), encoding="utf-8")
    partial.replace(path)


def _stands(store: Path, job: Job) -> bool:
    """Whether a job is done and nothing would come of doing it again."""
    if job.state != "done" or job.result.get("again"):
        return False
    roots = [store, *map(Path, job.spec.get("stores") or ())]
    return bool(job.run_ids) and all(
        any((root / run_id / "run.json").is_file() for root in roots) for run_id in job.run_ids
    )


def _forget_old(store: Path) -> None:
    for job in [job for job in list_jobs(store) if job.final][KEPT:]:
        forget(job)
