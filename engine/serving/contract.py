"""What the client and the event loop see of a server, whichever core implements it.

Two cores implement :class:`Server`: ``plain`` walks every request in every pass and is the oracle; ``skipping``
keeps aggregates and goes from event to event. Both return equal :class:`ServerRecord` values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from engine.serving.rules import SglangRules
from engine.serving.speculation import Speculation


@dataclass(slots=True)
class ServedRequest:
    """A request as the server knows it: lengths and content, no client.

    ``index`` numbers the requests of one replay from 0 without gaps, in the order they are created.
    ``block_keys`` names the content of the full blocks of prompt plus output, chained: two requests share the
    block at a position exactly when their keys up to and at that position are equal. Blocks past the given keys
    belong to this request alone (they are hashed, stored and evicted like any other, but nobody else can hit
    them); keys past ``(prompt_tokens + output_tokens - 1) // block_size`` are ignored, as the last sampled token
    has no KV. ``cached_tokens`` forces the reuse at the first admission: exactly so many tokens count as computed,
    whatever the pool holds (None: what it holds). It is admitted when it would have been with what the pool holds,
    provided that there is room for it with what it was told. Only the plain core can do that. Routers
    read ``session``, a number for all that belongs to one play, and ``spawned_by``, the request that its conversation
    was spawned from (-1: none). With ``keeps_blocks`` its blocks stay held after its last token, until its server is
    told to let go of them (:class:`Pooled`).
    """

    index: int
    prompt_tokens: int
    output_tokens: int
    block_keys: Sequence[int]
    cached_tokens: int | None = None
    session: int = -1
    spawned_by: int = -1
    keeps_blocks: bool = False


@dataclass(slots=True)
class Finished:
    """A request whose last token was sampled in the pass ``pass_index``, which ended at ``end_ns``.

    ``first_token_ns`` is the end of the pass that sampled its first; ``cached_tokens`` were hit at its first admission.
    """

    index: int
    pass_index: int
    end_ns: int
    first_token_ns: int
    cached_tokens: int


@dataclass(slots=True, frozen=True)
class HostMemory:
    """Room for ``blocks`` KV blocks on the host; loading one back takes ``block_ns``, its bytes over the bandwidth."""

    blocks: int
    block_ns: float

    def restore_ns(self, blocks: int) -> int:
        """How long it takes to load so many blocks, one after the other."""
        return round(blocks * self.block_ns)


@dataclass(slots=True, frozen=True)
class ServerConfig:
    """What the scheduler and the pool need to know (``engine.knobs`` has help and ranges).

    ``usable_kv_blocks`` is the number of allocated blocks less vLLM's null block. ``pooled``: prompts are computed in
    one pool of servers and decoded in another, and this is a server of one of them (:class:`Pooled`); ``prefills``: of
    the one that computes prompts.
    """

    usable_kv_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int = 0
    prefix_caching: bool = True
    reserve_full_prompt: bool = True
    record_events: bool = True
    speculation: Speculation | None = None
    engine: str = "vllm"
    policy: str = "fcfs"
    reservation: str = "own"
    eviction: str = "own"
    cache_blocks: int = 0
    host: HostMemory | None = None
    sglang: SglangRules = field(default_factory=SglangRules)
    pooled: bool = False
    prefills: bool = False
    async_scheduling: bool = False
    prefill_schedule_interval: int = 1


class Server(Protocol):
    """One replica on the simulated clock. Arrivals and aborts are taken only between passes."""

    def receive(self, request: ServedRequest, now_ns: int) -> None:
        """Put a request at the end of the waiting queue; ``now_ns`` is when the engine took it.

        Raises:
            GapscopeError: the prompt and its outputs can never fit the pool, or its reuse is forced and the core
                cannot do that.
        """

    def abort(self, index: int, now_ns: int) -> None:
        """Drop a waiting or running request and free its blocks; a finished one is left alone."""

    @property
    def has_work(self) -> bool:
        """Whether anything waits or runs."""

    def advance(self, now_ns: int, until_ns: int | None) -> tuple[int, list[Finished]]:
        """Run passes from ``now_ns`` on; the first starts at ``now_ns``.

        Stops after the first pass in which a request finished, or as soon as the next pass would start at or
        after ``until_ns`` (None: no limit). Runs at least one pass. Returns when the next pass may start (end of
        the last pass plus the time between passes) and what finished, in running order.
        """

    def finish(self) -> ServerRecord:
        """Everything that happened, as arrays. The server is not used afterwards."""


Batch = tuple[int, int, int, int, int]
"""A batch as the timing source is asked for it: the arguments of ``PassTimeSource.pass_ns``."""


@runtime_checkable
class Stepped(Server, Protocol):
    """A server that can be led pass by pass, for those that others have to wait for.

    A pass is :meth:`begin`, :meth:`schedule`, :meth:`complete`, :meth:`let_go`. While :meth:`quiet_passes` says so,
    several go at once with :meth:`skip` in place of the two in the middle.
    """

    def begin(self, now_ns: int) -> None:
        """The next pass starts at ``now_ns``."""

    def quiet_passes(self) -> int:
        """For how many passes it only decodes, whatever they last; 0: the next one has to be scheduled."""

    @property
    def num_decoding(self) -> int:
        """Requests that decode in quiet passes."""

    def contexts(self, count: int) -> Iterable[int]:
        """Sum of the computed tokens of the decoding requests before each of the next quiet passes."""

    def skip(self, starts: Sequence[int], durations: Sequence[int]) -> None:
        """The next passes, no more than are quiet, went like this."""

    def schedule(self, now_ns: int) -> Batch:
        """Form the batch of the next pass."""

    restore_ns: int
    """What the scheduled pass lasts beyond its batch: KV is loaded from the host first."""

    holds_prefills: bool
    """Set from outside: the next batch that is scheduled takes no prompts while anybody decodes."""
    late_ns: int
    """Host time that the last pass did not hide after all: the next can start that much later (after ``let_go``)."""

    def complete(self, now_ns: int, duration_ns: int) -> None:
        """The scheduled pass started at ``now_ns`` and lasted so long."""

    def let_go(self, next_start_ns: int) -> list[Finished]:
        """What finished in the last pass, in running order; the next may start at ``next_start_ns``."""


class PoolWorker(Server, Protocol):
    """A server of a pool that computes prompts, or of one that decodes what came from there.

    Blocks can be held here by requests that neither wait nor run, so it may find that nobody has room. Then there is no
    pass; it is asked again when something has come or gone.
    """

    def release(self, index: int, now_ns: int) -> None:
        """Let go of the blocks of a request that has finished here and ``keeps_blocks``; others are left alone."""

    def rank_for(self, request: ServedRequest) -> int:
        """Which rank of it is to serve a request, decided when it is asked first; 0 where there is one."""

    def withdraw(self, index: int) -> None:
        """A request for which a rank was chosen and that has reserved nothing is given up."""

    def reserve(self, request: ServedRequest, now_ns: int) -> int | None:
        """Take a seat and blocks for a request whose prompt is computed and whose first token is sampled elsewhere.

        Returns how many tokens of the prompt the pool holds already; None where seat or room is missing, or somebody
        who was preempted waits. The blocks are for the prompt and the token that is computed first here; :meth:`abort`
        gives them back.
        """

    def join(self, index: int, now_ns: int) -> None:
        """What was reserved for has come: others can hit it from the next pass on that admits, and it decodes."""


@runtime_checkable
class Pooled(PoolWorker, Stepped, Protocol):
    """A worker of a pool, or a rank of one, that is led pass by pass.

    Where nobody has room :meth:`Stepped.schedule` returns a batch of nobody, which is no pass (:meth:`Stepped.complete`
    must not follow). It is asked once more at once, since somebody may have been preempted in vain, and then when
    something has come or gone.
    """


Columns = dict[str, npt.NDArray[Any]]
"""Named arrays of equal length."""


@dataclass(slots=True)
class ServerRecord:
    """What a server did. Both cores return equal records for equal input.

    Passes are numbered from 0; ``index`` is ``ServedRequest.index``; -1 stands for *none* in index and time
    columns (and in ``cached_tokens`` of a request never admitted) and NaN in variances (the tables made from this
    say NULL). ``seq`` numbers admissions (first or again) from 0 and therefore orders the running list: within a
    pass, members are in order of ``seq``. Rows are in order of their (first) pass and then of ``seq``; preemptions
    and events are in the order they happened. ``engine.serving.record`` holds what both cores share.

    passes
        ``start_ns, end_ns, period_ns`` (end of the previous pass to the end of this; -1 after idling, that is
        unless this one started at the previous end plus the time between passes),
        ``num_prefill_requests, sum_prefill_tokens, var_prefill_length`` (variance of the known tokens of prefill
        requests), ``sum_prefill_kv_tokens, num_decode_requests, sum_decode_kv_tokens, var_decode_kv_tokens,
        queued_num_prefill_requests, queued_sum_prefill_tokens, queued_var_prefill_length`` (waiting, never
        admitted or aborted), ``queued_num_decode_requests, queued_sum_decode_kv_tokens,
        queued_var_decode_kv_tokens`` (waiting after preemption, known tokens), ``num_output_tokens`` (tokens sampled),
        ``kv_blocks_used, kv_blocks_cached`` (referenced blocks; distinct content held), ``num_running,
        num_waiting, num_preempted``. All as they stand after scheduling, before the pass's finishes are freed.
        Variances are population variances; NaN where the count is 0.
    requests (one row per index)
        ``received_ns, first_admit_ns, first_admit_pass, cached_tokens`` (at first admission), ``recomputed_tokens``
        (tokens computed that had been computed before a preemption), ``preemptions, output_tokens`` (sampled),
        ``first_token_pass, last_token_pass, aborted`` (bool).
    several workers or ranks (:func:`engine.serving.cluster.merge_records`)
        ``passes`` has ``worker, dp_rank, step`` (own number of the pass), ``requests`` has ``worker, dp_rank``; absent,
        there is one worker with rank 0. Passes of one worker and rank follow each other, and what the others did comes
        before or after.
    stretches
        One row per contiguous run of token-sampling passes of a request: ``index, seq, first_pass, last_pass,
        computed_after_first``. Each pass in the range samples one token; the first is the end of a prefill (or of a
        recompute), in the others the request decodes: in pass p it had ``computed_after_first + (p - first_pass - 1)``
        computed tokens before. Who decodes but is not in a pass (which SGLang and ATOM make of prompts alone) goes on
        with another stretch; its first pass then is a decode, and has a row of ``prefill_chunks``. Under speculation
        ``bursts`` says how many tokens each pass sampled.
    bursts
        Under speculation, tokens sampled in each pass of each stretch, stretch after stretch (1 where it ends a
        prefill); empty otherwise, when all are 1. A decoding request computes ``verify_width`` tokens per pass, and
        keeps as many as it sampled.
    prefill_chunks
        ``pass_index, index, seq, computed_before, scheduled_tokens``: every prefill work item, the last chunk included
        (also a recompute's last chunk of one token, which ``passes`` counts as a decode, as FPM does).
    admissions
        ``index, seq, ordinal, pass_index, time_ns, cached_tokens, hit_blocks, is_readmission, waiting_ahead``
        (requests that joined the queue before it and still wait: 0 under FCFS). ``hit_blocks`` were found in the pool;
        where the reuse was forced, ``cached_tokens`` may be more than they hold. With host memory ``restored_blocks``
        were loaded from it; ``cached_tokens`` counts them too.
    preemptions
        ``index, pass_index, num_blocks`` (blocks it gave up).
    events (empty when not recorded), in the order they happened
        ``kind`` (0 store, 1 evict), ``pass_index, index`` (who stored, or whose allocation evicted; -1 unknown),
        ``first_key, num_keys`` (a slice of ``event_keys``), ``released_ns`` (evict: when the block was last let go;
        -1 for stores). One row holds what one request stored in one pass, or what one allocation evicted of
        blocks let go at one time, as long as they follow each other. A request's evictions precede its store,
        those of a double-booked cache follow it. SGLang stores when a pass has ended, or a request was aborted after
        it: that counts to the pass.
    host_events (empty without host memory, or when events are not recorded), in the order they happened
        ``kind`` (0 copied to the host, 1 forgotten there), ``pass_index, index`` (who let go of blocks, and when: in
        the scheduling of the pass that preempted it, or after its last), ``first_key, num_keys`` (a slice of
        ``host_keys``).
    transfers (where prompts are computed in one pool and decoded in another; else None)
        One row per request that reserved at a decode worker or whose computed prompt waited for one, in order of index:
        ``index, prefill_worker, decode_worker, prefill_rank, decode_rank, held_ns`` (prompt computed and first token
        sampled; its blocks stay held), ``reserved_ns`` (seat and room taken at the destination), ``start_ns, end_ns``
        (of the transfer), ``released_ns`` (blocks at the source let go), ``admitted_ns`` (start of its first pass
        there), ``tokens`` (transferred). -1 (in times ``cluster.NO_TIME``): it did not come so far, or was given up.
        Its client sees the first token at ``end_ns``. Its first pass at the decode worker is the beginning of a
        stretch, and a decode.
    event_keys, host_keys
        Content keys of the blocks, flat; blocks past a request's given keys appear as negative numbers unique in the
        run (``engine.serving.record.private_key``).
    """

    passes: Columns
    requests: Columns
    stretches: Columns
    prefill_chunks: Columns
    admissions: Columns
    preemptions: Columns
    events: Columns
    event_keys: npt.NDArray[np.int64]
    bursts: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    host_events: Columns = field(default_factory=dict)
    host_keys: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    verify_width: int = 1
    transfers: Columns | None = None
