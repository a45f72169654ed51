"""The tables of a replay's bundle, made from its columns without a Python step per row where rows are many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from operator import attrgetter

import numpy as np
import pyarrow as pa

from engine.arrays import coded, lists, numbers, texts
from engine.bundle.schema import RESOLUTIONS
from engine.replay.blocks import Blocks, as_table
from engine.replay.chunks import chunks, ranges
from engine.replay.events import kv_events
from engine.replay.priced import Priced, priced
from engine.replay.result import Ints, ReplayResult
from engine.replay.workers import Workers, has_ranks, host_memory, pool_sizes, worker_names
from engine.serving.cluster import NO_TIME, WORKER_COLUMNS, within
from engine.serving.members import Members, members
from engine.timing.contract import PassTimes
from engine.workload.live import play_name

CLASSES = ("decode_only", "mixed", "prefill_only")
_PREFILL_ONLY = CLASSES.index("prefill_only")


def request_name(conversation_id: str, turn: int, incarnation: int) -> str:
    """``request_id`` of a turn: what it is in the trace, with a counter when its play is played again."""
    return f"{play_name(conversation_id, incarnation)}/{turn}"


class Tables:
    """The tables of one replay; each method makes one, in the order that a bundle wants."""

    def __init__(self, result: ReplayResult) -> None:
        self.result = result
        self.responses = result.responses()
        self._workers = Workers(result.record, worker_names(result.knobs))
        sent = result.client.sent
        self._names = [
            request_name(c.conversation.conversation_id, turn, c.live.incarnation)
            for c, turn in zip(sent.conversation, sent.turn, strict=True)
        ]
        for index, (phase, number) in enumerate(result.client.primed):
            self._names[index] += f"~{phase}{number}"
        self._rank = np.empty(len(self._names), np.int64)  # of each request when sorted by name
        self._rank[sorted(range(len(self._names)), key=self._names.__getitem__)] = np.arange(len(self._names))

    @cached_property
    def _priced(self) -> Priced:
        return priced(self.result)

    @property
    def times(self) -> PassTimes:
        """The timing model's answer for each pass, in parts."""
        return self._priced.times

    @cached_property
    def _steps(self) -> dict[str, Ints]:
        return self._workers.steps()

    @cached_property
    def _loaded(self) -> Ints:
        """What each pass lasted for the blocks that were loaded from the host for it."""
        record, memory = self.result.record, host_memory(self.result.knobs)
        loaded = np.zeros(self.result.num_passes, np.int64)
        if memory is not None:
            blocks = np.zeros_like(loaded)
            np.add.at(blocks, record.admissions["pass_index"], record.admissions["restored_blocks"])
            some = np.flatnonzero(blocks)
            loaded[some] = [memory.restore_ns(count) for count in blocks[some].tolist()]
        return loaded

    @cached_property
    def _blocks(self) -> Blocks:
        return Blocks(self.result)

    def requests(self) -> pa.Table:
        """One row per request that was sent."""
        result, responses, served = self.result, self.responses, self.result.record.requests
        sent = result.client.sent
        names = texts(self._names)
        talks = list(map(attrgetter("conversation"), sent.conversation))
        plays = list(map(attrgetter("live"), sent.conversation))
        play_names = source_names = _coded(list(map(attrgetter("play.source_trace_id"), plays)))
        if any(map(attrgetter("incarnation"), plays)):
            play_names = _coded([play_name(p.play.source_trace_id, p.incarnation) for p in plays])
        prompt = result.prompt_tokens()
        admitted = served["first_admit_pass"] >= 0
        dispatched = np.array(sent.dispatched_ns, np.int64)
        spawned_by = _whole(map(attrgetter("spawned_by"), sent.conversation), len(talks))
        some = responses.tokens > 0
        last_seen = np.zeros(len(some), np.int64)
        last_seen[some] = responses.pass_seen_ns[responses.last_visible_pass[some]]
        columns = {
            "request_id": names,
            "source_trace_id": source_names,
            "conversation_id": _coded(list(map(attrgetter("conversation_id"), talks))),
            "turn_index": numbers(np.array(sent.turn, np.int64)),
            "play_id": play_names,
            "lane": numbers(_whole(map(attrgetter("lane"), plays), len(plays))),
            "parent_request_id": names.take(numbers(np.maximum(spawned_by, 0), spawned_by >= 0)),
            "agent_depth": numbers(_whole(map(attrgetter("depth"), talks), len(talks))),
            "phase": coded(self._phases(dispatched), ("primer", "warmup", "profile")),
            "status": coded(~np.array(sent.ok, np.bool_), ("ok", "canceled")),
            **self._workers.of_requests(),
            "scheduled_ns": numbers(np.array(sent.scheduled_ns, np.int64)),
            "dispatched_ns": numbers(dispatched),
            "received_ns": numbers(served["received_ns"]),
            "first_admit_ns": numbers(served["first_admit_ns"], admitted),
            "first_visible_ns": numbers(responses.first_seen_ns, some),
            "last_visible_ns": numbers(np.maximum(last_seen, responses.first_seen_ns), some),
            "end_ns": numbers(np.array(sent.end_ns, np.int64)),
            "released_ns": numbers(self._released()),
            "input_tokens": numbers(prompt),
            "requested_output_tokens": numbers(result.asked_tokens()),
            "output_tokens": numbers(responses.tokens),
            "cached_tokens": numbers(served["cached_tokens"], admitted),
            "recomputed_tokens": numbers(served["recomputed_tokens"]),
            "preemptions": numbers(served["preemptions"]),
        }
        order = np.lexsort((self._rank, dispatched))
        table = as_table(columns).take(numbers(order))
        if result.knobs["record_events"]:
            size, prompt = result.keys.block_size, prompt[order]
            prompt_blocks = prompt // size
            with_outputs = (prompt + np.maximum(served["output_tokens"][order], 1) - 1) // size
            hashes = {
                "prompt_block_hashes": self._blocks.lists(order, np.zeros_like(prompt), prompt_blocks),
                "output_block_hashes": self._blocks.lists(order, prompt_blocks, with_outputs),
            }
            for name, column in hashes.items():
                table = table.append_column(name, column)
        return table

    def passes(self) -> Iterator[pa.RecordBatch]:
        """One row per forward pass, with its batch where that is asked for."""
        record = self.result.record
        count = self.result.num_passes
        if not self.result.knobs["record_members"]:
            yield from self._pass_batch(0, count)
            return
        per_pass = record.passes["num_prefill_requests"] + record.passes["num_decode_requests"]
        for first, last in ranges(per_pass if self._workers.order is None else per_pass[self._workers.order]):
            yield from self._pass_batch(first, last)

    def _pass_batch(self, first: int, last: int) -> Iterator[pa.RecordBatch]:
        """The passes ``first .. last - 1`` as one batch."""
        if first == last:
            return
        order = self._workers.order
        rows: Ints | slice = slice(first, last) if order is None else order[first:last]
        passes = {name: column[rows] for name, column in self.result.record.passes.items()}
        worker = passes.get("worker", np.zeros(last - first, np.int64))
        times, names = self.times, [name for name in passes if name not in WORKER_COLUMNS]
        columns = {name: numbers(passes[name]) for name in names if not name.startswith("var_") and "_var_" not in name}
        for name in (
            "var_prefill_length",
            "var_decode_kv_tokens",
            "queued_var_prefill_length",
            "queued_var_decode_kv_tokens",
        ):
            columns[name] = numbers(passes[name], ~np.isnan(passes[name]))
        ordinal = numbers(np.arange(first, last))
        phases = self.result.phases
        starts = np.array([p.start_ns for p in phases], np.int64)
        phase = np.searchsorted(starts, passes["start_ns"], side="right") - 1
        columns |= {
            "pass_index": ordinal,
            **{name: numbers(column[rows]) for name, column in self._steps.items()},
            **self._workers.of_passes(rows),
            "phase": coded(np.maximum(phase, 0), [p.name for p in phases]),
            "duration_ns": numbers(passes["end_ns"] - passes["start_ns"]),
            "kv_blocks_total": numbers(pool_sizes(self.result.knobs)[worker]),
            "period_ns": numbers(passes["period_ns"], passes["period_ns"] >= 0),
            "resolution": coded(times.resolution[rows], RESOLUTIONS),
            "prefill_ns": numbers(times.prefill_ns[rows]),
            "decode_ns": numbers(times.decode_ns[rows]),
            "overhead_ns": numbers(times.overhead_ns[rows]),
        }
        loaded = self._loaded[rows]
        if self.result.knobs["host_kv_blocks"]:
            columns["transfer_ns"] = numbers(loaded)
        if has_ranks(self.result.knobs):
            columns["wait_ns"] = numbers(passes["end_ns"] - passes["start_ns"] - times.total_ns[rows] - loaded)
        if self.result.knobs["record_members"]:
            batch = self._members(first, last)
            fields = {
                "request_id": texts(self._names).take(numbers(batch.index)),
                "computed_before": numbers(batch.computed_before),
                "scheduled_tokens": numbers(batch.scheduled_tokens),
            }
            items = pa.StructArray.from_arrays(list(fields.values()), names=list(fields))
            columns["members"] = lists(batch.offsets(first, last - 1), items)
        yield pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def _members(self, first: int, last: int) -> Members:
        """The batches of the passes ``first .. last - 1``, under the numbers that they have in the bundle."""
        workers, record = self._workers, self.result.record
        if workers.order is None:
            return members(record, first, last - 1)
        parts = []
        for begin, end in workers.ranges:
            low, high = begin + np.searchsorted(workers.row[begin:end], [first, last])
            if low < high:
                parts.append(members(within(record, begin, end), low, high - 1))
        row = np.concatenate([workers.row[part.pass_index] for part in parts])
        by_pass = np.argsort(row, kind="stable")
        return Members(
            row[by_pass],
            *(
                np.concatenate([getattr(part, name) for part in parts])[by_pass]
                for name in ("index", "computed_before", "scheduled_tokens")
            ),
        )

    def chunks(self) -> Iterator[pa.RecordBatch]:
        """One row per token that reached its client (:mod:`engine.replay.chunks`)."""
        return chunks(self.responses, self._names, self._rank, self._workers.ranges)

    def admissions(self) -> pa.Table:
        """One row per admission, first or again."""
        rows = self.result.record.admissions
        named = ("ordinal", "time_ns", "cached_tokens", "hit_blocks", "is_readmission", "waiting_ahead")
        columns = {
            "request_id": coded(rows["index"], self._names),
            "pass_index": numbers(self._workers.row[rows["pass_index"]]),
            **self._workers.of_passes(rows["pass_index"]),
            **{name: numbers(rows[name]) for name in (*named, "restored_blocks") if name in rows},
        }
        order = np.lexsort((self._rank[rows["index"]], rows["time_ns"]))
        return as_table(columns).take(numbers(order))

    def kv_events(self) -> pa.Table:
        """Every cache event (:mod:`engine.replay.events`)."""
        return kv_events(self.result, self._blocks, self._names, self._workers)

    def transfers(self) -> pa.Table:
        """One row per request that went, or was to go, from a prefill worker to a decode worker."""
        rows, names = self.result.record.transfers, worker_names(self.result.knobs)
        assert rows is not None
        columns = {
            "request_id": coded(rows["index"], self._names),
            "prefill_worker_id": coded(rows["prefill_worker"], names),
            "decode_worker_id": coded(rows["decode_worker"], names),
            **{name: numbers(rows[name], rows[name] != NO_TIME) for name in rows if name.endswith("_ns")},
            "tokens": numbers(rows["tokens"], rows["tokens"] >= 0),
        }
        if has_ranks(self.result.knobs):
            for pool in ("prefill", "decode"):
                columns[f"{pool}_dp_rank"] = numbers(rows[f"{pool}_rank"], rows[f"{pool}_rank"] >= 0)
        return as_table(columns).take(numbers(np.argsort(self._rank[rows["index"]])))

    def coverage(self) -> pa.Table:
        """One row per distinct query to the timing model, with how often it was put and the time that rests on it."""
        queries, times = self._priced.queries, self._priced.answers
        prefills, decodes = queries[0] > 0, queries[3] > 0
        group = np.where(prefills & decodes, 1, np.where(prefills, 2, 0))
        axes = [group, *queries]
        order = np.lexsort(axes[::-1])
        axes = [axis[order] for axis in axes]
        first = np.ones(len(order), np.bool_)
        if len(order):
            first[1:] = np.any([axis[1:] != axis[:-1] for axis in axes], axis=0)
        at = np.flatnonzero(first)
        counts = np.diff(np.append(at, len(order)))
        modelled = np.add.reduceat(times.total_ns[order], at) if len(at) else np.empty(0, np.int64)
        named = ("prefill_requests", "new_tokens", "prefill_kv_tokens", "decode_requests", "decode_kv_tokens")
        columns = {
            "class": coded(axes[0][at], CLASSES),
            **{name: numbers(axis[at]) for name, axis in zip(named, axes[1:], strict=True)},
            "verify_width": numbers(np.where(axes[0][at] == _PREFILL_ONLY, 1, self.result.record.verify_width)),
            "resolution": coded(times.resolution[order[at]], RESOLUTIONS),
            "source": coded(times.source[order[at]], times.sources),
            "count": numbers(counts),
            "modelled_ns": numbers(modelled),
            "sites": coded(times.sites[order[at]], times.site_names),
        }
        return as_table(columns)

    def idle_shifts(self) -> pa.Table:
        """One row per idle time that the client cut short."""
        shifts = self.result.client.shifts
        columns = {
            "time_ns": numbers(np.array([s.time_ns for s in shifts], np.int64)),
            "play_id": texts(
                [None if s.live is None else play_name(s.live.play.source_trace_id, s.live.incarnation) for s in shifts]
            ),
            "shift_ns": numbers(np.array([s.shift_ns for s in shifts], np.int64)),
            "timers": numbers(np.array([s.timers for s in shifts], np.int64)),
        }
        return as_table(columns)

    def _phases(self, dispatched_ns: Ints) -> Ints:
        """Phase of each request (primer, warm-up, profile): by dispatch, or as its client says."""
        phases = np.where(dispatched_ns >= 0, 2, 1)
        primed = [phase != "primer" for phase, _ in self.result.client.primed]
        phases[: len(primed)] = primed
        return phases

    def _released(self) -> Ints:
        """When the engine let each request go: at the end of its last pass, or when it learned of the cancel."""
        ends = self.result.record.passes["end_ns"][self.result.record.requests["last_token_pass"]]
        for index, time in self.result.aborted_ns.items():
            ends[index] = time
        return ends


def _coded(values: Sequence[str]) -> pa.DictionaryArray:
    codes = {value: code for code, value in enumerate(dict.fromkeys(values))}
    return coded(np.fromiter(map(codes.__getitem__, values), np.int32, len(values)), list(codes))


def _whole(values: Iterable[int], count: int) -> Ints:
    return np.fromiter(values, np.int64, count)
