"""A small vLLM: the part of its scheduler that the recording one builds on, in the shapes of several versions.

It schedules as vLLM does (running first, then first come first served, a token budget, preemption of the last), without
prefix caching. ``modules`` gives what to put into ``sys.modules``, ``load_plugin`` the recording scheduler over it.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections import deque
from enum import IntEnum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

PLUGIN = Path(__file__).resolve().parents[2] / "engine/recording/server/vllm_scheduler.py"
BLOCK = 4


class RequestStatus(IntEnum):
    WAITING = 1
    RUNNING = 2
    PREEMPTED = 3
    FINISHED_LENGTH_CAPPED = 4
    FINISHED_ABORTED = 5


class Request:
    def __init__(self, request_id: str, prompt: int, outputs: int) -> None:
        self.request_id, self.num_prompt_tokens, self.max_tokens = request_id, prompt, outputs
        self.status = RequestStatus.WAITING
        self.num_computed_tokens = self.num_output_tokens = self.num_preemptions = self.blocks = 0

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens


class BlockStored:
    def __init__(self, block_hashes: list[int]) -> None:
        self.block_hashes = block_hashes


class BlockRemoved(BlockStored):
    pass


class Publisher:
    def __init__(self) -> None:
        self.batches: list[Any] = []

    def publish(self, batch: Any) -> None:
        self.batches.append(batch)


class Pool:
    def __init__(self, blocks: int) -> None:
        self.num_gpu_blocks, self.used = blocks, 0
        self.cached_block_hash_to_block: dict[int, int] = {}

    def get_num_free_blocks(self) -> int:
        return self.num_gpu_blocks - 1 - self.used


class Scheduler:
    """``shape`` holds what the version lacks or does otherwise: no_outputs, no_preempted, flags, resumed_as_new."""

    shape: frozenset[str] = frozenset()

    def __init__(self, vllm_config: Any) -> None:
        self.vllm_config, self.scheduler_config = vllm_config, vllm_config.scheduler_config
        self.cache_config, self.kv_cache_config = vllm_config.cache_config, SimpleNamespace(kv_cache_tensors=())
        self.block_size, self.max_model_len = BLOCK, 1000
        self.requests: dict[str, Request] = {}
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.kv_cache_manager = SimpleNamespace(block_pool=Pool(self.cache_config.num_gpu_blocks))
        self.enable_kv_cache_events = vllm_config.kv_events
        self.kv_event_publisher = Publisher()
        self.did: list[list[tuple[str, int, int]]] = []
        self.closed = False
        self._next_hash = 0

    def add_request(self, request: Request) -> None:
        self.requests[request.request_id] = request
        self.waiting.append(request)

    def abort(self, name: str) -> None:
        request = self.requests[name]
        (self.running if request in self.running else self.waiting).remove(request)
        request.status = RequestStatus.FINISHED_ABORTED
        self._free_request(request)

    def _free_request(self, request: Request, delay: bool = False) -> None:
        self._free_blocks(request)
        del self.requests[request.request_id]

    def _free_blocks(self, request: Request) -> None:
        self.kv_cache_manager.block_pool.used -= request.blocks
        request.blocks = 0

    def _fits(self, request: Request, tokens: int) -> bool:
        pool = self.kv_cache_manager.block_pool
        more = -(-(request.num_computed_tokens + tokens) // BLOCK) - request.blocks
        if more > pool.get_num_free_blocks():
            return False
        pool.used += more
        request.blocks += more
        return True

    def schedule(self, throttle_prefills: bool = False) -> Any:
        budget, scheduled, preempted = self.scheduler_config.max_num_batched_tokens, {}, set()
        new, cached, resumed = [], [], []
        for request in list(self.running):
            tokens = min(request.num_tokens - request.num_computed_tokens, budget)
            if tokens <= 0 or request not in self.running:
                continue
            while not self._fits(request, tokens):
                victim = self.running.pop()
                self._free_blocks(victim)
                victim.status, victim.num_computed_tokens = RequestStatus.PREEMPTED, 0
                victim.num_preemptions += 1
                self.waiting.appendleft(victim)
                preempted.add(victim.request_id)
            scheduled[request.request_id] = tokens
            budget -= tokens
            cached.append(request)
        while self.waiting and budget and not preempted:
            request = self.waiting[0]
            tokens = min(request.num_tokens - request.num_computed_tokens, budget)
            if not self._fits(request, tokens):
                break
            self.waiting.popleft()
            again = request.status == RequestStatus.PREEMPTED
            (new if not again or "resumed_as_new" in self.shape else resumed).append(request)
            request.status = RequestStatus.RUNNING
            self.running.append(request)
            scheduled[request.request_id] = tokens
            budget -= tokens
        both = [*cached, *resumed]
        data = SimpleNamespace(
            req_ids=[r.request_id for r in both], num_computed_tokens=[r.num_computed_tokens for r in both]
        )
        if "no_outputs" not in self.shape:
            data.num_output_tokens = [r.num_output_tokens for r in both]
        if "flags" in self.shape:
            data.resumed_from_preemption = [r in resumed for r in both]
        else:
            data.resumed_req_ids = {r.request_id for r in resumed}
        output = SimpleNamespace(
            num_scheduled_tokens=scheduled,
            total_num_scheduled_tokens=sum(scheduled.values()),
            scheduled_new_reqs=[
                SimpleNamespace(req_id=r.request_id, num_computed_tokens=r.num_computed_tokens) for r in new
            ],
            scheduled_cached_reqs=data,
        )
        if "no_preempted" not in self.shape:
            output.preempted_req_ids = preempted
        self.did.append([(name, self.requests[name].num_computed_tokens, n) for name, n in scheduled.items()])
        for name, tokens in scheduled.items():
            self.requests[name].num_computed_tokens += tokens
        return output

    def update_from_output(self, output: Any, ran: Any) -> str:
        for name in output.num_scheduled_tokens:
            request = self.requests.get(name)
            if request is None:
                continue
            if request.num_computed_tokens >= request.num_tokens:
                request.num_output_tokens += 1
            if request.num_output_tokens >= request.max_tokens:
                self.running.remove(request)
                request.status = RequestStatus.FINISHED_LENGTH_CAPPED
                self._free_request(request)
        if self.enable_kv_cache_events and output.num_scheduled_tokens:
            self._next_hash += 1
            events = [BlockStored([1, 2, 3]), BlockRemoved([self._next_hash])]
            self.kv_event_publisher.publish(SimpleNamespace(events=events))
        return "outputs"

    def reset_prefix_cache(self) -> bool:
        return not self.running

    def shutdown(self) -> None:
        self.closed = True


class AsyncScheduler(Scheduler):
    pass


def config(blocks: int = 11, budget: int = 8, rank: int = 0, ahead: bool = False, kv_events: bool = True) -> Any:
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(
            max_num_batched_tokens=budget, max_num_seqs=8, policy="fcfs", async_scheduling=ahead, watermark=0.0
        ),
        cache_config=SimpleNamespace(num_gpu_blocks=blocks, enable_prefix_caching=False, secret="/a/path"),
        parallel_config=SimpleNamespace(data_parallel_index=rank, pipeline_parallel_size=1, master_ip="10.0.0.1"),
        model_config=SimpleNamespace(dtype="float32", max_model_len=1000, served_model_name="/a/path/model"),
        kv_events=kv_events,
    )


def _unless(field: str, missing: bool) -> dict[str, Any]:
    return {} if missing else {field: None}


def modules(shape: frozenset[str] = frozenset()) -> dict[str, ModuleType]:
    """What ``import vllm...`` finds: the classes above, in the shape of a version."""
    cached = type(
        "CachedRequestData", (), {"__dataclass_fields__": _unless("num_output_tokens", "no_outputs" in shape)}
    )
    output = type(
        "SchedulerOutput", (), {"__dataclass_fields__": _unless("preempted_req_ids", "no_preempted" in shape)}
    )
    base = type("Scheduler", (Scheduler,), {"shape": shape, "__module__": "vllm.v1.core.sched.scheduler"})
    ahead = type("AsyncScheduler", (base,), {"__module__": "vllm.v1.core.sched.async_scheduler"})
    holds: dict[str, dict[str, Any]] = {
        "vllm": {"__version__": "9.8.7"},
        "vllm.v1": {},
        "vllm.v1.core": {},
        "vllm.v1.core.sched": {},
        "vllm.v1.core.sched.output": {"CachedRequestData": cached, "SchedulerOutput": output},
        "vllm.v1.core.sched.scheduler": {"Scheduler": base},
        "vllm.v1.core.sched.async_scheduler": {"AsyncScheduler": ahead},
        "vllm.platforms": {"current_platform": SimpleNamespace(device_type="cpu")},
        "vllm.v1.request": {"RequestStatus": RequestStatus},
    }
    found = {}
    for name, content in holds.items():
        found[name] = ModuleType(name)
        found[name].__dict__.update(content, __path__=[])
    return found


def load_plugin(monkeypatch: pytest.MonkeyPatch, path: Path, shape: str = "") -> Any:
    """The plug-in as a server has it: a copy of the file alone, over some version of vLLM; rows go to ``path/rows``."""
    for name, module in modules(frozenset(shape.split())).items():
        monkeypatch.setitem(sys.modules, name, module)
    copy = path / "server" / "vllm_scheduler.py"
    copy.parent.mkdir(exist_ok=True)
    shutil.copy(PLUGIN, copy)
    spec = importlib.util.spec_from_file_location("vllm_scheduler", copy)
    assert spec is not None
    assert spec.loader is not None
    plugin = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plugin)
    monkeypatch.setenv("GAPSCOPE_RECORD", str(path / "rows"))
    return plugin
