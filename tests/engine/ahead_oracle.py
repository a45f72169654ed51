"""vLLM's engine loop with two batches in flight, request by request: an oracle for batches that are formed ahead.

It forms batch after batch as the engine does, of what it knows then, and keeps placeholders for tokens whose pass is
still running. No prefix cache, no aborts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Member = tuple[int, int, int]
"""Index, tokens computed before, tokens scheduled."""


@dataclass(eq=False)
class Job:
    index: int
    prompt: int
    output: int
    computed: int = 0  # passes that are running included
    outputs: int = 0  # seen
    placeholders: int = 0  # sampled by passes that are running
    blocks: int = 0
    times: list[int] = field(default_factory=list)  # when each output token was there


class Engine:
    """Arrivals are (time, prompt, output), by index; ``duration`` is asked for each batch of members and decodes."""

    def __init__(
        self,
        arrivals: Sequence[tuple[int, int, int]],
        *,
        blocks: int,
        block_size: int,
        seats: int,
        budget: int,
        threshold: int = 0,
        reserve: bool = True,
        between_ns: int,
        duration: Callable[[list[Member], list[bool]], int],
    ) -> None:
        jobs = [(at, Job(index, prompt, output)) for index, (at, prompt, output) in enumerate(arrivals)]
        self.pending = deque(sorted(jobs, key=lambda job: job[0]))
        self.jobs = [job for _, job in jobs]
        self.free, self.size, self.seats, self.budget = blocks, block_size, seats, budget
        self.threshold, self.reserve, self.between_ns, self.duration = threshold, reserve, between_ns, duration
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self.passes: list[tuple[int, int, list[Member]]] = []
        self.preemptions = 0
        self.done_in_vain = 0

    def run(self) -> None:
        now = cost = free_at = 0
        in_flight: deque[tuple[int, list[tuple[Job, bool]]]] = deque()
        while True:
            while self.pending and self.pending[0][0] <= now:
                self.waiting.append(self.pending.popleft()[1])
            if not self.waiting and not self.running and not in_flight:
                if not self.pending:
                    return
                now, cost = max(now, self.pending[0][0]), 0
                continue
            members, decodes, sampling = self.form()
            if members:
                start = max(now + cost, free_at)
                free_at = start + self.duration(members, decodes)
                self.passes.append((start, free_at, members))
                in_flight.append((free_at, sampling))
                now, cost = start, self.between_ns
                if len(in_flight) == 2:
                    self.see(*in_flight.popleft())
            else:
                end, sampling = in_flight.popleft()
                self.see(end, sampling)
                now, cost = end + self.between_ns, 0

    def form(self) -> tuple[list[Member], list[bool], list[tuple[Job, bool]]]:
        budget, preempted = self.budget, False
        chosen: list[tuple[Job, int, bool]] = []
        position = 0
        while position < len(self.running) and budget:
            job = self.running[position]
            position += 1
            if job.placeholders and job.computed + 2 - job.placeholders >= job.prompt + job.output:
                continue
            new = self.chunk(job.prompt + job.outputs + job.placeholders - job.computed, budget)
            needed = self.hold(job.computed + new) - job.blocks
            while needed > self.free:
                victim = self.running.pop()
                self.free += victim.blocks
                self.preemptions += 1
                self.done_in_vain += victim.outputs + victim.placeholders == victim.output
                victim.blocks = victim.computed = 0
                self.waiting.appendleft(victim)
                preempted = True
                if victim is job:
                    break
            if job not in self.running:
                break
            self.free -= needed
            job.blocks += needed
            sampled = job.outputs + job.placeholders
            chosen.append((job, new, sampled > 0 and job.computed + 1 == job.prompt + sampled))
            budget -= new
        while self.waiting and not preempted and budget and len(self.running) < self.seats:
            job = self.waiting[0]
            known = job.prompt + job.outputs
            new = self.chunk(known, budget)
            if self.hold(known if self.reserve else new) > self.free:
                break
            self.running.append(self.waiting.popleft())
            job.blocks = self.hold(new)
            self.free -= job.blocks
            chosen.append((job, new, False))
            budget -= new
        members = [(job.index, job.computed, new) for job, new, _ in chosen]
        sampling = []
        for job, new, _ in chosen:
            job.computed += new
            samples = job.computed == job.prompt + job.outputs + job.placeholders
            job.placeholders += samples
            sampling.append((job, samples))
        return members, [decodes for _, _, decodes in chosen], sampling

    def see(self, end: int, sampling: list[tuple[Job, bool]]) -> None:
        for job, samples in sampling:
            if samples:
                job.placeholders -= 1
                job.outputs += 1
                job.times.append(end)
                if job.outputs == job.output:
                    self.free += job.blocks
                    (self.running if job in self.running else self.waiting).remove(job)

    def chunk(self, missing: int, budget: int) -> int:
        return min(missing, budget, self.threshold or missing)

    def hold(self, tokens: int) -> int:
        return -(-tokens // self.size)
