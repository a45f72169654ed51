"""A scheduler for vLLM that records every pass: copy this file to the server, beside nothing else of gapscope.

``PYTHONPATH=<its folder> GAPSCOPE_RECORD=<folder for rows> ... --scheduler-cls vllm_scheduler.RecordingScheduler``

It schedules exactly as vLLM does, and imports the standard library, msgspec and vLLM only. The engine's thread keeps
references and a few numbers per pass; a second thread turns them into JSON Lines. docs/recording.md tells what the
columns mean. Environment:

* ``GAPSCOPE_RECORD``: folder for the rows. Unset: nothing is recorded.
* ``GAPSCOPE_RECORD_MAX_MB`` (1024): so much may the rows of a data-parallel rank take in the folder, those of earlier
  starts included; the oldest part makes room.
* ``GAPSCOPE_RECORD_STATS`` (1): 0 leaves out what costs most: the tokens that wait, the worker's processor time.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import logging
import os
import re
import threading
import time
from collections import deque
from multiprocessing.util import Finalize
from operator import mul
from typing import Any

import msgspec
from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

try:
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
except ImportError:  # before vLLM scheduled ahead
    AsyncScheduler = None

SCHEMA = "gapscope-passes/1"
PARTS = 8
"""A series may be this many files: one of them is what rotation loses at once."""
WAITING_ROWS = 4096
"""Passes that may wait for the writer; more are dropped and counted."""
WRITE_EVERY_S = 0.1
CLOCK_EVERY_NS = 60_000_000_000

_log = logging.getLogger("vllm.gapscope_recording")
_now = time.monotonic_ns
_encode = msgspec.json.Encoder().encode


# -- the file series ---------------------------------------------------------------------------------------------------


class Folder:
    """The files of one rank in a folder, of every start: they never take more than ``max_bytes`` (two parts at least).

    The oldest goes where a new one needs room; what a recorder has open stays, and counts as a whole part.
    """

    def __init__(self, path: str, rank: int, max_bytes: int, stamp: int) -> None:
        self.path, self.stamp = path, stamp
        self.part_bytes = max(1 << 16, max_bytes // PARTS)
        self._max_bytes = max(max_bytes, 2 * self.part_bytes)
        self._name = re.compile(rf"(?:passes|fpm)-dp{rank}-(\d+)-(\d+)\.jsonl")
        os.makedirs(path, exist_ok=True)
        self.earlier = [self._size(part) for *_, part in self._parts()]
        """Bytes of each part that lay there before this start."""
        self.deleted: list[int] = []
        """Bytes of each part of another start that made room."""

    def make_room(self, size: int) -> None:
        """Delete the oldest parts until so many bytes fit.

        Raises:
            OSError: other recorders hold the room, or a part cannot be deleted.
        """
        idle, held = [], size
        for stamp, _, path in self._parts():
            if _is_open(path):
                held += max(self.part_bytes, self._size(path))
            else:
                idle.append((stamp, path, self._size(path)))
        if held > self._max_bytes:
            raise OSError(errno.EDQUOT, "GAPSCOPE_RECORD_MAX_MB is reached by parts that are being written")
        held += sum([taken for *_, taken in idle])
        for stamp, path, taken in idle:
            if held <= self._max_bytes:
                break
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            held -= taken
            if stamp != self.stamp:
                self.deleted.append(taken)
                _log.warning("recording: %s of another start made room (%d bytes)", os.path.basename(path), taken)

    def _parts(self) -> list[tuple[int, int, str]]:
        """Start, number and path of each part, the oldest first."""
        names = [found for name in os.listdir(self.path) if (found := self._name.fullmatch(name))]
        return sorted((int(n[1]), int(n[2]), os.path.join(self.path, n[0])) for n in names)

    @staticmethod
    def _size(path: str) -> int:
        try:
            return os.stat(path).st_size
        except FileNotFoundError:  # another recorder was here meanwhile
            return 0


def _is_open(path: str) -> bool:
    """Whether a recorder writes there; a system without locks does not tell."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    finally:
        os.close(fd)
    return False


class Series:
    """JSON Lines in numbered parts, each beginning with ``head()``."""

    def __init__(self, folder: Folder, kind: str, rank: int, head: Any) -> None:
        self._folder, self._head = folder, head
        self._stem = os.path.join(folder.path, f"{kind}-dp{rank}-{folder.stamp}")
        self._fd: int | None = None
        self._size = self.number = 0

    def write(self, lines: bytes) -> None:
        """Append whole lines, or nothing of them.

        Raises:
            OSError: the disk is full, or cannot be written; the file ends with its last whole line.
        """
        if self._fd is None or self._size + len(lines) > self._folder.part_bytes:
            self._next_part(len(lines))
        self._append(lines)

    def _append(self, lines: bytes) -> None:
        assert self._fd is not None
        done = 0
        try:
            while done < len(lines):
                done += os.write(self._fd, lines[done:])
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(lines)

    def _next_part(self, size: int) -> None:
        self.close()
        self._folder.make_room(max(self._folder.part_bytes, size))
        path = f"{self._stem}-{self.number:04d}.jsonl"
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        with contextlib.suppress(OSError):  # not every file system has locks
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._size = 0
        try:
            self._append(self._head())
        except OSError:
            self.close()
            raise
        self.number += 1

    def close(self) -> None:
        """Close the part that is open."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


# -- from what the engine left to rows ---------------------------------------------------------------------------------


class Pass:
    """What the engine's thread keeps of one pass: numbers, and references to what vLLM does not change any more."""

    iter: int
    start: int
    sched_end: int
    output: int
    end: int
    period_ns: int | None
    own_ns: int
    scheduled: dict[str, int]
    total: int
    cached: Any
    outputs: list[int]
    """Tokens made so far by each request of ``cached``."""
    new: list[tuple[str, int, int]]
    """Request, tokens computed before, known tokens."""
    preempted: set[str] | None
    arrivals: list[list[Any]]
    finished_before: list[list[Any]]
    finished: list[list[Any]]
    running_before: int
    running: int
    waiting_before: int
    waiting: int
    queued: tuple[list[int], list[int]] | None
    """Known tokens of each request that waits: never run, and preempted."""
    blocks_free: int | None
    blocks_cached: int | None
    kv_batches: list[tuple[int, Any]]
    worker_before: tuple[int, int] | None
    worker_after: tuple[int, int] | None


def variance(values: list[int]) -> float:
    """Population variance to three decimals; 0 over nothing."""
    n, total = len(values), sum(values)
    return round((n * sum(map(mul, values, values)) - total * total) / (n * n), 3) if n else 0.0


class Rows:
    """Turns passes into rows; knows of each request only how long its prompt is, and whether it was admitted."""

    def __init__(self, rank: int, blocks: int | None, kv_events: bool, overlapping: bool) -> None:
        self._rank, self._blocks, self._kv_events = rank, blocks, kv_events
        self._prompts: dict[str, int] = {}
        self._admitted: set[str] = set()
        # Where passes overlap, one that was scheduled earlier may still name a request that has gone.
        self._leaving: deque[list[str]] = deque([[]] * (24 if overlapping else 0))

    def batch(self, p: Pass) -> tuple[list[list[Any]], dict[str, Any]]:
        """[request, tokens computed before, tokens now, kind] in scheduling order, and sums as ForwardPassMetrics has.

        Raises:
            KeyError: a request whose arrival was lost.
        """
        prompts, admitted = self._prompts, self._admitted
        self._forget([name for name, *_ in p.finished_before])
        came = {}
        for name, at, prompt, _ in p.arrivals:  # a name that comes again is another request
            prompts[name], came[name] = prompt, at
            admitted.discard(name)
        self._forget([name for name, *_, at in p.finished_before if at > came.get(name, at)])
        resumed = self._resumed(p)
        new = {name: (before, known) for name, before, known in p.new}
        progress = zip(p.cached.num_computed_tokens, p.outputs, strict=True)
        cached = dict(zip(p.cached.req_ids, progress, strict=True))
        members: list[list[Any]] = []
        contexts: list[int] = []
        lengths: list[int] = []
        prefill_tokens = prefill_context = 0
        for name, tokens in p.scheduled.items():
            if name in new:
                before, known = new[name]
                kind = "r" if name in admitted else "n"  # some model runners take resumed requests as new ones
                admitted.add(name)
                prompts.setdefault(name, known)
            else:
                before, made = cached[name]
                known = prompts[name] + made
                if name in resumed:
                    kind = "r"
                else:
                    kind = "d" if made and before >= known - 1 else "c"
            members.append([name, before, tokens, kind])
            if kind == "d":
                contexts.append(before)
            else:
                lengths.append(known)
                prefill_tokens += tokens
                prefill_context += before
        self._forget([name for name, *_ in p.finished])
        return members, {
            "num_prefill_requests": len(lengths),
            "sum_prefill_tokens": prefill_tokens,
            "var_prefill_length": variance(lengths),
            "sum_prefill_kv_tokens": prefill_context,
            "num_decode_requests": len(contexts),
            "sum_decode_kv_tokens": sum(contexts),
            "var_decode_kv_tokens": variance(contexts),
        }

    @staticmethod
    def _resumed(p: Pass) -> Any:
        names = getattr(p.cached, "resumed_req_ids", None)
        if names is None:  # older: a flag beside each request
            names = {n for n, flag in zip(p.cached.req_ids, p.cached.resumed_from_preemption, strict=True) if flag}
        return names

    def _forget(self, names: list[str]) -> None:
        self._leaving.append(names)
        for name in self._leaving.popleft():
            self._prompts.pop(name, None)
            self._admitted.discard(name)

    def row(self, p: Pass) -> dict[str, Any]:
        """The row of one pass, with its members."""
        members, sums = self.batch(p)
        first, preempted = p.queued if p.queued is not None else (None, None)
        stored = removed = seq = None
        if self._kv_events:
            stored = removed = 0
            seq = p.kv_batches[-1][0] if p.kv_batches else None
            for _, events in p.kv_batches:
                for event in events:
                    kind = type(event).__name__
                    if kind == "BlockStored":
                        stored += len(event.block_hashes)
                    elif kind == "BlockRemoved":
                        removed += len(event.block_hashes)
        cpu = wait = None
        if p.worker_before is not None and p.worker_after is not None:
            cpu, wait = ((b - a) / 1e9 for a, b in zip(p.worker_before, p.worker_after, strict=True))
        return {
            "kind": "iter" if p.total else "empty",
            "iter": p.iter,
            "dp_rank": self._rank,
            "t_start_ns": p.start,
            "t_sched_end_ns": p.sched_end,
            "t_output_ns": p.output,
            "t_end_ns": p.end,
            "own_us": p.own_ns / 1000,
            "wall_time_s": (p.end - p.start) / 1e9,
            "forward_s": (p.output - p.sched_end) / 1e9,
            "period_s": None if p.period_ns is None else p.period_ns / 1e9,
            "worker_cpu_s": cpu,
            "worker_runq_wait_s": wait,
            "num_prefill": sums["num_prefill_requests"],
            "prefill_tokens": sums["sum_prefill_tokens"],
            "prefill_ctx_tokens": sums["sum_prefill_kv_tokens"],
            "var_prefill_length": sums["var_prefill_length"],
            "num_decode": sums["num_decode_requests"],
            "decode_kv_tokens": sums["sum_decode_kv_tokens"],
            "var_decode_kv_tokens": sums["var_decode_kv_tokens"],
            "total_tokens": p.total,
            "running": p.running,
            "running_before": p.running_before,
            "waiting": p.waiting,
            "waiting_before": p.waiting_before,
            "queued_prefill": None if first is None else len(first),
            "queued_prefill_tokens": None if first is None else sum(first),
            "queued_preempted": None if preempted is None else len(preempted),
            "queued_preempted_tokens": None if preempted is None else sum(preempted),
            "preempted": sorted(p.preempted or ()),
            "kv_blocks_used": None if p.blocks_free is None or self._blocks is None else self._blocks - p.blocks_free,
            "kv_blocks_total": self._blocks,
            "kv_blocks_cached": p.blocks_cached,
            "kv_stored": stored,
            "kv_removed": removed,
            "kv_event_seq": seq,
            "reqs": members,
            "arrivals": p.arrivals,
            "finished_before": p.finished_before,
            "finished": p.finished,
        }

    def record(self, p: Pass) -> dict[str, Any]:
        """The pass as a ForwardPassMetrics record of version 1: sums only."""
        waiting, preempted = p.queued if p.queued is not None else (None, None)
        queued = None
        if waiting is not None and preempted is not None:
            queued = {
                "num_prefill_requests": len(waiting),
                "sum_prefill_tokens": sum(waiting),
                "var_prefill_length": variance(waiting),
                "num_decode_requests": len(preempted),
                "sum_decode_kv_tokens": sum(preempted),
                "var_decode_kv_tokens": variance(preempted),
            }
        _, scheduled = self.batch(p)
        return {
            "received_at_ns": time.time_ns() - _now() + p.end,
            "metrics": {
                "version": 1,
                "worker_id": str(os.getpid()),
                "dp_rank": self._rank,
                "counter_id": p.iter,
                "wall_time": (p.end - p.start if p.period_ns is None else p.period_ns) / 1e9,
                "scheduled_requests": scheduled,
                "queued_requests": queued,
            },
        }


# -- the writer --------------------------------------------------------------------------------------------------------


class Writer(threading.Thread):
    """Takes passes off a bounded queue and writes them; counts in the file what it could not."""

    def __init__(self, folder: str, rank: int, max_bytes: int, meta: dict[str, Any], rows: Rows, exact: bool) -> None:
        super().__init__(daemon=True, name="gapscope-recording")
        self.queue: deque[Any] = deque()
        self._rows, self._exact, self._meta = rows, exact, meta
        self._folder = Folder(folder, rank, max_bytes, time.time_ns() // 1_000_000)
        if self._folder.earlier:
            meta["notes"].append(
                f"{len(self._folder.earlier)} parts of earlier starts ({sum(self._folder.earlier):,} bytes) lay in the "
                "folder: they count for GAPSCOPE_RECORD_MAX_MB, and the oldest make room."
            )
        self._series = Series(self._folder, "passes", rank, self._head)
        # Beside aggregates the passes file has little to hold.
        self._records = None if exact else Series(self._folder, "fpm", rank, bytes)
        self.passes = 0
        """How many passes there were, whether they came to the queue or not."""
        self._next = self._written = self._lost = 0
        self._missing: list[Any] | None = None  # first and last number, count and reason of rows lost just now
        self._clock_ns = 0
        self._stopping = threading.Event()
        self._series.write(b"")

    def run(self) -> None:
        """Write until stopped, a few times a second: waking for each pass would take the engine's time."""
        while not self._stopping.wait(WRITE_EVERY_S):
            self.flush()
        self.flush()

    def stop(self) -> None:
        """Write what is left, and that this was all."""
        if not self._stopping.is_set():
            self._stopping.set()
            if self.is_alive():
                self.join(timeout=10)
            self._skipped(self.passes)
            if self._missing is not None:
                self._tell_missing()
            end = {"kind": "end", "rows": self._written, "lost": self._lost, "mono_ns": _now()}
            try:
                self._series.write(_encode(end) + b"\n")
            except OSError as error:
                _log.warning("the recording has no end: %s", error)
            self._series.close()
            if self._records is not None:
                self._records.close()

    def flush(self) -> None:
        """Write everything that waits; between two rows the engine's thread may go on."""
        if _now() - self._clock_ns > CLOCK_EVERY_NS:
            self._clock_ns = _now()
            self._put(self._series, {"kind": "clock", "mono_ns": self._clock_ns, "wall_ns": time.time_ns()})
        for _ in range(len(self.queue)):
            item = self.queue.popleft()
            if isinstance(item, Pass):
                self._write_pass(item)
            else:
                self._put(self._series, item)
            time.sleep(0)
        if self._missing is not None:
            self._tell_missing()

    def _write_pass(self, p: Pass) -> None:
        self._skipped(p.iter)
        self._next = p.iter
        try:
            row = self._rows.row(p) if self._exact else self._rows.record(p)
        except KeyError as error:
            self._miss(p.iter, p.iter, f"the arrival of {error} was lost")
        else:
            if self._missing is not None:
                self._tell_missing()
            series = self._series if self._exact or self._records is None else self._records
            if self._put(series, row):
                self._written += 1
            else:
                self._miss(p.iter, p.iter, self._why)
        self._next = p.iter + 1

    def _skipped(self, upto: int) -> None:
        if upto > self._next:
            self._miss(self._next, upto - 1, "more passes waited for the writer than it may hold")

    def _miss(self, first: int, last: int, why: str) -> None:
        self._lost += last - first + 1
        if self._missing is None:
            self._missing = [first, last, 0, why]
            _log.warning("recording: rows are lost: %s", why)
        self._missing[1] = last
        self._missing[2] += last - first + 1

    def _tell_missing(self) -> None:
        assert self._missing is not None
        first, last, rows, why = self._missing
        row = {"kind": "lost", "rows": rows, "first_iter": first, "last_iter": last, "why": why}
        if self._put(self._series, row):
            self._missing = None

    def _put(self, series: Series, row: dict[str, Any]) -> bool:
        try:
            series.write(_encode(row) + b"\n")
        except OSError as error:
            self._why = f"the disk took no more: {error.strerror or error}"
            return False
        return True

    def _head(self) -> bytes:
        clocks = {"mono_ns": _now(), "wall_ns": time.time_ns(), "ts": time.time()}
        deleted = self._folder.deleted
        room = {"deleted_parts": len(deleted), "deleted_bytes": sum(deleted)}  # of other starts
        self._meta |= {"part": self._series.number, "first_iter": self._next, "lost_before": self._lost} | room | clocks
        return bytes(_encode(self._meta)) + b"\n"


# -- what the first row says -------------------------------------------------------------------------------------------


def settings_of(config: Any) -> dict[str, Any]:
    """Numbers, switches and plain words of a configuration; paths, addresses and objects stay behind."""
    found = {}
    for name, value in sorted(vars(config).items()) if hasattr(config, "__dict__") else ():
        plain = value is None or isinstance(value, bool | int | float)
        word = (
            isinstance(value, str) and len(value) < 64 and not set(value) & set("/:\\ ") and "ip" not in name.split("_")
        )
        if not name.startswith("_") and (plain or word):
            found[name] = value
    return found


def describe(scheduler: Any, exact: bool, rank: int, notes: list[str]) -> dict[str, Any]:
    """The meta row: what runs here and how it is set; None where this vLLM does not say."""
    config, cache, whole = scheduler.scheduler_config, scheduler.cache_config, scheduler.vllm_config
    base = next(c for c in type(scheduler).__mro__ if c.__module__.startswith("vllm."))
    blocks = getattr(cache, "num_gpu_blocks", None)
    tensors = getattr(scheduler.kv_cache_config, "kv_cache_tensors", None) or ()
    sizes = [getattr(t, "size", None) for t in tensors]
    model = getattr(whole, "model_config", None)
    parts = ("scheduler_config", "cache_config", "parallel_config", "load_config", "speculative_config")
    settings = {n: settings_of(c) for n in parts if (c := getattr(whole, n, None)) is not None}
    words = ("dtype", "max_model_len", "enforce_eager", "seed", "quantization", "served_model_name")
    said = {name: getattr(model, name, None) for name in words}
    settings["model_config"] = {
        name: value if value is None or isinstance(value, int) else str(value)
        for name, value in said.items()
        if not str(value).startswith(("/", "."))  # a model that is a folder
    }
    return {
        "kind": "meta",
        "schema": SCHEMA,
        "exact_batches": exact,
        "notes": notes,
        "vllm_version": _version(),
        "scheduler": f"{base.__module__}.{base.__qualname__}",
        **_device(),
        "dp_rank": rank,
        "pid": os.getpid(),
        "boot_id": _read("/proc/sys/kernel/random/boot_id"),
        "max_num_seqs": getattr(config, "max_num_seqs", None),
        "max_num_batched_tokens": getattr(config, "max_num_batched_tokens", None),
        "max_num_scheduled_tokens": getattr(scheduler, "max_num_scheduled_tokens", None),
        "long_prefill_token_threshold": getattr(config, "long_prefill_token_threshold", None),
        "enable_chunked_prefill": getattr(config, "enable_chunked_prefill", None),
        "scheduler_reserve_full_isl": getattr(scheduler, "scheduler_reserve_full_isl", None),
        "watermark": getattr(config, "watermark", None),
        "policy": getattr(config, "policy", None),
        "async_scheduling": getattr(config, "async_scheduling", None),
        "prefix_caching": getattr(cache, "enable_prefix_caching", None),
        "prefix_caching_hash_algo": getattr(cache, "prefix_caching_hash_algo", None),
        "block_size": getattr(scheduler, "block_size", None),
        "hash_block_size": getattr(scheduler, "hash_block_size", None),
        "num_kv_blocks": blocks,
        "num_usable_kv_blocks": None if blocks is None else blocks - 1,
        "kv_cache_bytes": sum(sizes) if sizes and None not in sizes else None,
        "max_model_len": getattr(scheduler, "max_model_len", None),
        "settings": settings,
    }


def _version() -> str | None:
    import vllm

    return getattr(vllm, "__version__", None)


def _device() -> dict[str, str | None]:
    try:
        from vllm.platforms import current_platform

        found: dict[str, str | None] = {"device": current_platform.device_type}
    except Exception:
        return {"device": None, "device_name": None}
    try:
        found["device_name"] = current_platform.get_device_name()
    except Exception:  # not every platform has a name
        found["device_name"] = None
    return found


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return None


class WorkerTime:
    """Processor time, and time runnable but not running, of the thread that runs the forward pass."""

    def __init__(self) -> None:
        self._fd: int | None = None
        workers = [p for p in _descendants(os.getpid()) if "Worker" in (_read(f"/proc/{p}/comm") or "")]
        with contextlib.suppress(OSError):  # without a worker process the engine's own main thread does its work
            self._fd = os.open(f"/proc/{workers[0] if workers else 'self'}/schedstat", os.O_RDONLY)
        # os.pread would let another thread take the interpreter, which may keep it for milliseconds.
        self._pread = ctypes.PyDLL(None).pread
        self._buffer = ctypes.create_string_buffer(96)

    def read(self) -> tuple[int, int] | None:
        """On a processor and waiting for one, in nanoseconds since the start; None where the system does not say."""
        if self._fd is None or self._pread(self._fd, self._buffer, 95, 0) <= 0:
            return None
        on, waited, _ = self._buffer.value.split()
        return int(on), int(waited)


def _descendants(pid: int) -> list[int]:
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in (_read(f"/proc/{pid}/task/{task}/children") or "").split():
                found += [int(child), *_descendants(int(child))]
    except OSError:
        pass
    return found


# -- the scheduler -----------------------------------------------------------------------------------------------------


class RecordingScheduler(Scheduler):
    """vLLM's own scheduler, with every pass recorded; of the asynchronous kind where the engine schedules ahead."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """The scheduler that fits how the engine is set."""
        config = kwargs.get("vllm_config", args[0] if args else None)
        ahead = getattr(getattr(config, "scheduler_config", None), "async_scheduling", False)
        if ahead and AsyncScheduler is not None and not issubclass(cls, AsyncScheduler):
            cls = RecordingAsyncScheduler
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._rec_writer: Writer | None = None
        folder = os.environ.get("GAPSCOPE_RECORD")
        if not folder:
            _log.warning("GAPSCOPE_RECORD is not set: passes are not recorded")
            return
        try:
            self._rec_start(folder)
        except Exception:
            _log.exception("passes are not recorded")
            self._rec_writer = None

    def _rec_start(self, folder: str) -> None:
        notes = []
        ahead = bool(getattr(self.scheduler_config, "async_scheduling", False))
        if ahead:
            notes.append(
                "Asynchronous scheduling is on: a pass is scheduled before the one before it has ended, so who is in "
                "it is not final; passes are recorded as sums (ForwardPassMetrics). --no-async-scheduling gives exact "
                "batches."
            )
        self._rec_stats = os.environ.get("GAPSCOPE_RECORD_STATS", "1").lower() not in ("0", "off", "no", "false")
        if not self._rec_stats:
            notes.append("GAPSCOPE_RECORD_STATS is 0: queued tokens and the worker's processor time are unknown.")
        self._rec_outputs_given = "num_output_tokens" in getattr(CachedRequestData, "__dataclass_fields__", ())
        if not self._rec_outputs_given:
            notes.append("This vLLM does not tell outputs per request: they are read one by one, which takes longer.")
        self._rec_preempted_given = "preempted_req_ids" in getattr(SchedulerOutput, "__dataclass_fields__", ())
        self._rec_queues = [n for n in ("kv_holding_waiting", "skipped_waiting", "waiting") if hasattr(self, n)]
        pool: Any = getattr(self.kv_cache_manager, "block_pool", None)
        self._rec_pool = pool
        self._rec_cached_blocks = getattr(pool, "cached_block_hash_to_block", None)
        if pool is None or not hasattr(self._rec_cached_blocks, "__len__"):
            notes.append("This vLLM does not tell its free or cached blocks.")
            self._rec_cached_blocks = None
        events = bool(getattr(self, "enable_kv_cache_events", False)) and hasattr(self, "kv_event_publisher")
        if not events:
            notes.append("The server publishes no KV events (--kv-events-config): stored and removed are unknown.")
        parallel = self.vllm_config.parallel_config
        rank = int(getattr(parallel, "data_parallel_index", getattr(parallel, "data_parallel_rank", 0)) or 0)
        self._rec_exact = not ahead
        self._rec_iter = self._rec_seq = 0
        self._rec_last_end: int | None = None
        self._rec_pending: dict[int, tuple[Any, Pass]] = {}
        self._rec_arrivals: list[list[Any]] = []
        self._rec_finished: list[list[Any]] = []
        self._rec_kv: list[tuple[int, Any]] = []
        self._rec_queued: tuple[list[int], list[int]] | None = None
        self._rec_was_preempted: set[str] = set()
        self._rec_worker: WorkerTime | None = None
        if events:
            self._rec_watch(self.kv_event_publisher)
        meta = describe(self, not ahead, rank, notes)
        overlapping = ahead or getattr(parallel, "pipeline_parallel_size", 1) > 1
        rows = Rows(rank, None if pool is None else pool.num_gpu_blocks - 1, events, overlapping)
        max_bytes = int(float(os.environ.get("GAPSCOPE_RECORD_MAX_MB", "1024")) * 1e6)
        self._rec_writer = Writer(folder, rank, max_bytes, meta, rows, not ahead)
        self._rec_writer.start()
        Finalize(None, self._rec_writer.stop, exitpriority=1)  # atexit does not run in a child process

    def _rec_watch(self, publisher: Any) -> None:
        publish = publisher.publish

        def watched(batch: Any) -> Any:
            self._rec_kv.append((self._rec_seq, batch.events))
            self._rec_seq += 1  # as the publisher numbers its batches
            return publish(batch)

        publisher.publish = watched

    def _rec_fail(self) -> None:
        """A fault in here must not be one of the server: say it and stop recording."""
        _log.exception("recording stops here")
        writer, self._rec_writer = self._rec_writer, None
        if writer is not None:
            why = "the recorder failed; the server's log says how"
            writer.queue.append(
                {"kind": "lost", "rows": None, "first_iter": self._rec_iter, "last_iter": None, "why": why}
            )
            threading.Thread(target=writer.stop, daemon=True).start()

    # -- requests

    def add_request(self, request: Any) -> Any:
        """As vLLM, with the time noted."""
        if self._rec_writer is not None:
            prompt, most = request.num_prompt_tokens, request.max_tokens
            self._rec_arrivals.append([request.request_id, _now(), prompt, most])
        return super().add_request(request)

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        if self._rec_writer is not None:
            self._rec_finished.append(
                [
                    request.request_id,
                    RequestStatus(request.status).name,
                    request.num_computed_tokens,
                    request.num_output_tokens,
                    getattr(request, "num_preemptions", None),
                    _now(),
                ]
            )
        return super()._free_request(request, *args, **kwargs)

    # -- one pass

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """As vLLM; keeps what the pass began with and what was scheduled."""
        if self._rec_writer is None:
            return super().schedule(*args, **kwargs)
        start = _now()
        p = Pass()
        p.start = start
        p.arrivals, self._rec_arrivals = self._rec_arrivals, []
        p.finished_before, self._rec_finished = self._rec_finished, []
        p.running_before = len(self.running)
        p.waiting_before = sum([len(getattr(self, name)) for name in self._rec_queues])
        if self._rec_stats and self._rec_worker is None:
            self._rec_worker = WorkerTime()
        p.worker_before = self._rec_worker.read() if self._rec_worker is not None else None
        called = _now()
        output = super().schedule(*args, **kwargs)
        p.sched_end = returned = _now()
        try:
            self._rec_scheduled(p, output)
        except Exception:
            self._rec_fail()
            return output
        p.own_ns = called - start + _now() - returned
        return output

    def _rec_scheduled(self, p: Pass, output: Any) -> None:
        p.scheduled, p.total = output.num_scheduled_tokens, output.total_num_scheduled_tokens
        p.cached = cached = output.scheduled_cached_reqs
        requests = self.requests
        if self._rec_outputs_given:
            p.outputs = cached.num_output_tokens
        else:
            p.outputs = [requests[name].num_output_tokens for name in cached.req_ids]
        p.new = [(r.req_id, r.num_computed_tokens, requests[r.req_id].num_tokens) for r in output.scheduled_new_reqs]
        p.preempted = output.preempted_req_ids if self._rec_preempted_given else self._rec_newly_preempted()
        p.running = len(self.running)
        p.waiting = sum([len(getattr(self, name)) for name in self._rec_queues])
        p.queued = None
        if self._rec_stats:
            again = getattr(cached, "resumed_req_ids", True)
            if p.arrivals or p.finished_before or p.new or p.preempted or again or self._rec_queued is None:
                self._rec_queued = self._rec_walk()
            p.queued = self._rec_queued
        p.blocks_free = p.blocks_cached = None
        if self._rec_cached_blocks is not None:
            p.blocks_free = self._rec_pool.get_num_free_blocks()
            p.blocks_cached = len(self._rec_cached_blocks)
        pending = self._rec_pending
        pending[id(output)] = (output, p)
        if len(pending) > 64:  # scheduled, but never run
            del pending[next(iter(pending))]

    def _rec_walk(self) -> tuple[list[int], list[int]]:
        waiting: list[int] = []
        preempted: list[int] = []
        for name in self._rec_queues:
            for request in getattr(self, name):
                (preempted if request.status == RequestStatus.PREEMPTED else waiting).append(request.num_tokens)
        return waiting, preempted

    def _rec_newly_preempted(self) -> set[str]:
        """Who lost its place in this pass, where the output does not say: it waits, and did not before."""
        queues = [getattr(self, name) for name in self._rec_queues]
        now = {r.request_id for queue in queues for r in queue if r.status == RequestStatus.PREEMPTED}
        new, self._rec_was_preempted = now - self._rec_was_preempted, now
        return new

    def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """As vLLM; then hands the pass to the writer."""
        if self._rec_writer is None:
            return super().update_from_output(scheduler_output, *args, **kwargs)
        came = _now()
        result = super().update_from_output(scheduler_output, *args, **kwargs)
        end = _now()
        try:
            self._rec_updated(scheduler_output, came, end)
        except Exception:
            self._rec_fail()
        return result

    def _rec_updated(self, output: Any, came: int, end: int) -> None:
        writer = self._rec_writer
        held = self._rec_pending.pop(id(output), None)
        if held is None or writer is None:
            return
        p = held[1]
        if not (p.total or self._rec_exact):
            return
        p.output, p.end, p.iter = came, end, self._rec_iter
        p.worker_after = self._rec_worker.read() if self._rec_worker is not None else None
        p.finished, self._rec_finished = self._rec_finished, []
        p.kv_batches, self._rec_kv = self._rec_kv, []
        last = self._rec_last_end
        p.period_ns = None if last is None or p.running_before == 0 else end - last
        self._rec_last_end = end
        self._rec_iter = writer.passes = p.iter + 1
        if len(writer.queue) >= WAITING_ROWS:  # the writer sees the gap in the numbers
            if len(self._rec_arrivals) < WAITING_ROWS:
                self._rec_arrivals = p.arrivals + self._rec_arrivals
            return
        p.own_ns += _now() - end
        writer.queue.append(p)

    # -- the rest

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> Any:
        """As vLLM, with a row that says so."""
        done = super().reset_prefix_cache(*args, **kwargs)
        if self._rec_writer is not None:
            self._rec_queued = None
            row = {"kind": "reset_prefix_cache", "ts": time.time(), "mono_ns": _now(), "ok": bool(done)}
            self._rec_writer.queue.append(row)
        return done

    def shutdown(self) -> None:
        """Write what is left first."""
        if self._rec_writer is not None:
            self._rec_writer.stop()
        super().shutdown()


if AsyncScheduler is not None:

    class RecordingAsyncScheduler(RecordingScheduler, AsyncScheduler):
        """The same over vLLM's asynchronous scheduler: sums instead of exact batches."""
