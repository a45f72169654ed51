"""Laws that every run obeys, checked from the rows of its bundle alone.

Nothing of the program computes here: batches are walked request by request, and the block pool is played again from
the cache events with one set of holders per block. Each law returns sentences on what breaks it; none means it holds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any

from engine.bundle import Bundle

Row = dict[str, Any]


@dataclass
class Run:
    """The rows of a bundle."""

    requests: list[Row]
    passes: list[Row]
    kv_events: list[Row]
    admissions: list[Row]
    chunks: list[Row]
    ledger: dict[str, Any]
    block_size: int
    host_blocks: int = 0

    @classmethod
    def of(cls, bundle: Bundle) -> Run:
        def rows(name: str) -> list[Row]:
            table = bundle.table(name)
            return [] if table is None else table.to_pylist()

        names = ("requests", "passes", "kv_events", "admissions", "chunks")
        size = bundle.identity.value("capacity", "block_size")
        host = bundle.identity.value("capacity", "host_kv_blocks") or 0
        return cls(*(rows(name) for name in names), bundle.ledger, size, host)


def clocks_of_requests(run: Run) -> Iterator[str]:
    """scheduled <= dispatched <= received <= admitted <= first visible <= last visible <= end, where known.

    What was given up on may reach the engine after its client stopped listening.
    """
    chain = ("scheduled_ns", "dispatched_ns", "received_ns", "first_admit_ns")
    seen = ("first_visible_ns", "last_visible_ns", "end_ns")
    for row in run.requests:
        for names in ((*chain, *seen),) if row["status"] == "ok" else (chain, ("dispatched_ns", *seen)):
            known = [(name, row[name]) for name in names if row[name] is not None]
            for (before, left), (after, right) in pairwise(known):
                if left > right:
                    yield f"{row['request_id']}: {before} {left} is after {after} {right}"


def clocks_of_passes(run: Run) -> Iterator[str]:
    """Passes follow each other: one starts when the one before has ended, and lasts from its start to its end."""
    for row in run.passes:
        if row["end_ns"] - row["start_ns"] != row["duration_ns"] or row["duration_ns"] <= 0:
            yield f"pass {row['pass_index']}: {row['start_ns']} to {row['end_ns']} is not {row['duration_ns']}"
    for before, after in pairwise(run.passes):
        if after["start_ns"] < before["end_ns"]:
            yield f"pass {after['pass_index']} starts before the one before it has ended"
        if after["pass_index"] != before["pass_index"] + 1:
            yield f"pass {after['pass_index']} follows {before['pass_index']}"
        if after["period_ns"] not in (None, after["end_ns"] - before["end_ns"]):
            yield f"pass {after['pass_index']}: its period is not from end to end"


def sums_of_passes(run: Run) -> Iterator[str]:
    """What a pass counts is what its members are."""
    for row in run.passes:
        batch = row["members"]
        tokens = sum(member["scheduled_tokens"] for member in batch)
        read = sum(member["computed_before"] for member in batch)
        if row["sum_prefill_tokens"] + row["num_decode_requests"] != tokens:
            yield f"pass {row['pass_index']}: {tokens} tokens are scheduled"
        if row["sum_prefill_kv_tokens"] + row["sum_decode_kv_tokens"] != read:
            yield f"pass {row['pass_index']}: {read} tokens were computed before"
        if not len(batch) == row["num_running"] == row["num_prefill_requests"] + row["num_decode_requests"]:
            yield f"pass {row['pass_index']}: {len(batch)} members"
        if len({member["request_id"] for member in batch}) < len(batch):
            yield f"pass {row['pass_index']}: a request twice"


def work_of_requests(run: Run) -> Iterator[str]:
    """No token is computed twice without a preemption, and each request computes exactly what it has to.

    Of one that was served: prompt - cached + outputs - 1, plus what a preemption made it compute again, less what a
    readmission found that it had not computed itself.
    """
    admitted = {(row["request_id"], row["pass_index"]): row["cached_tokens"] for row in run.admissions}
    preempted = {(row["request_id"], row["pass_index"]) for row in run.kv_events if row["kind"] == "preempt"}
    position: dict[str, int] = {}
    reached: dict[str, int] = {}
    again: dict[str, int] = defaultdict(int)
    gained: dict[str, int] = defaultdict(int)
    computed: dict[str, int] = defaultdict(int)
    for row in run.passes:
        for name in [name for name, at in preempted if at == row["pass_index"]]:
            if position.pop(name, None) is None:
                yield f"{name} is preempted without running in pass {row['pass_index']}"
        for member in row["members"]:
            name, before, tokens = (member[key] for key in ("request_id", "computed_before", "scheduled_tokens"))
            if name in position:
                if before != position[name]:
                    yield f"{name} goes on from {before} in pass {row['pass_index']}: it had computed {position[name]}"
            elif (name, row["pass_index"]) not in admitted:
                yield f"{name} runs in pass {row['pass_index']} and was not admitted"
            elif before != admitted[name, row["pass_index"]]:
                yield f"{name} starts from {before}: it was admitted with {admitted[name, row['pass_index']]} cached"
            else:
                gained[name] += max(0, before - reached.get(name, before))
            again[name] += max(0, min(before + tokens, reached.get(name, before)) - before)
            position[name] = before + tokens
            reached[name] = max(reached.get(name, 0), before + tokens)
            computed[name] += tokens
    for row in run.requests:
        name = row["request_id"]
        if row["status"] == "ok":
            needed = row["input_tokens"] - row["cached_tokens"] + row["output_tokens"] - 1
            if computed[name] != needed + again[name] - gained[name]:
                yield f"{name} computed {computed[name]} tokens: it needed {needed} and {again[name]} again"
        if row["recomputed_tokens"] != again[name]:
            yield f"{name} says that it recomputed {row['recomputed_tokens']}: it was {again[name]}"


def admissions_of_requests(run: Run) -> Iterator[str]:
    """A request is admitted once and again after each preemption that it came back from; it reuses whole blocks."""
    starts = {row["pass_index"]: row["start_ns"] for row in run.passes}
    preemptions: dict[str, int] = defaultdict(int)
    for row in run.kv_events:
        preemptions[row["request_id"]] += row["kind"] == "preempt"
    by_request: dict[str, list[Row]] = defaultdict(list)
    for row in sorted(run.admissions, key=lambda row: (row["request_id"], row["ordinal"])):
        by_request[row["request_id"]].append(row)
        if row["time_ns"] != starts[row["pass_index"]]:
            yield f"{row['request_id']} is admitted at {row['time_ns']}, not at the start of its pass"
        blocks = row["hit_blocks"] + (row.get("restored_blocks") or 0)
        if row["cached_tokens"] != blocks * run.block_size or row["is_readmission"] != (row["ordinal"] > 0):
            yield f"{row['request_id']}: admission {row['ordinal']} reuses {row['cached_tokens']} tokens"
    for row in run.requests:
        name, own = row["request_id"], by_request[row["request_id"]]
        if [one["ordinal"] for one in own] != list(range(len(own))):
            yield f"{name}: its admissions are not numbered in order"
        if (row["first_admit_ns"], row["cached_tokens"]) != (
            (own[0]["time_ns"], own[0]["cached_tokens"]) if own else (None, None)
        ):
            yield f"{name}: its row and its first admission differ"
        if row["preemptions"] != preemptions[name] or not 0 <= row["preemptions"] - len(own[1:]) <= 1:
            yield f"{name}: {row['preemptions']} preemptions, {len(own[1:])} readmissions"
        if own and max(one["cached_tokens"] for one in own[:1]) >= row["input_tokens"]:
            yield f"{name}: the whole prompt was reused, and its last token has to be computed"


def tokens_of_clients(run: Run) -> Iterator[str]:
    """Chunks are numbered in the order of their times, make up the output, and none comes after the end."""
    by_request: dict[str, list[Row]] = defaultdict(list)
    for row in run.chunks:
        by_request[row["request_id"]].append(row)
    for row in run.requests:
        own = by_request.pop(row["request_id"], [])
        if [one["ordinal"] for one in own] != list(range(len(own))):
            yield f"{row['request_id']}: its chunks are not numbered in the order of their times"
        if sum(one["tokens"] for one in own) != row["output_tokens"]:
            yield f"{row['request_id']}: its chunks hold other than {row['output_tokens']} tokens"
        visible = [one["time_ns"] for one in own if one["visible"]]
        if (
            (visible[0], visible[-1]) != (row["first_visible_ns"], row["last_visible_ns"])
            if visible
            else (row["first_visible_ns"] is not None)
        ):
            yield f"{row['request_id']}: first and last visible are not those of its chunks"
        if own and own[-1]["time_ns"] > row["end_ns"]:
            yield f"{row['request_id']}: a token after the end"
    yield from (f"{name}: chunks of a request that is not there" for name in by_request)


def ledger_of_requests(run: Run) -> Iterator[str]:
    """Every request of the rows is counted once, under its phase and outcome, and the outcomes make up the whole."""
    counted: dict[tuple[str, str], int] = defaultdict(int)
    for row in run.requests:
        counted[row["phase"], row["status"]] += 1
    said = {
        (phase, status): count
        for phase, row in run.ledger.items()
        if phase != "total"
        for status, count in row.items()
        if status != "attempted" and count
    }
    if counted != said:
        yield f"the ledger says {said}, the rows {dict(counted)}"
    total = run.ledger["total"]
    if total["attempted"] != len(run.requests) or total["in_graph"] != total["attempted"] + total["never_issued"]:
        yield f"the total is {total} for {len(run.requests)} rows"


@dataclass
class _Block:
    """One block: who holds it, what it holds, and between when it was let go last."""

    holders: set[str] = field(default_factory=set)
    content: int | None = None
    released_ns: tuple[int, int] = (0, -1)


class _Pool:
    """The pool as the events tell it, without block numbers, hashes of its own or a free list."""

    def __init__(self) -> None:
        self.tables: dict[str, list[_Block]] = {}  # of each running request, in the order of its tokens
        self.copies: dict[int, list[_Block]] = defaultdict(list)  # content -> blocks, in order of registration

    def blocks(self) -> list[_Block]:
        """Every block that somebody holds or that holds content, once each."""
        found = {id(b): b for table in self.tables.values() for b in table}
        return list((found | {id(b): b for copies in self.copies.values() for b in copies}).values())

    def let_go(self, name: str, now_ns: int, since_ns: int | None = None) -> None:
        for block in self.tables.pop(name, []):
            block.holders.discard(name)
            if not block.holders:
                block.released_ns = now_ns if since_ns is None else since_ns, now_ns

    def hit(self, event: Row) -> Iterator[str]:
        table = self.tables.setdefault(event["request_id"], [])
        for content in event["block_hashes"]:
            if not self.copies[content]:
                yield f"{event['request_id']} hits a block in pass {event['pass_index']} that nobody holds"
                continue
            self.copies[content][0].holders.add(event["request_id"])
            table.append(self.copies[content][0])

    def evict(self, event: Row) -> Iterator[str]:
        for content in event["block_hashes"]:
            free = [block for block in self.copies[content] if not block.holders]
            if not free:
                state = "referenced" if self.copies[content] else "not held"
                yield f"pass {event['pass_index']} evicts a block that is {state}"
                continue
            released = event["time_ns"] - event["age_ns"]
            block = next((b for b in free if b.released_ns[0] <= released <= b.released_ns[1]), None)
            if block is None:
                yield f"pass {event['pass_index']} evicts a block let go at {released}: none was"
                block = free[0]
            self.copies[content] = [other for other in self.copies[content] if other is not block]

    def store(self, event: Row) -> None:
        table = self.tables.setdefault(event["request_id"], [])
        for content in event["block_hashes"]:
            block = next((block for block in table if block.content is None), None)
            if block is None:
                block = _Block({event["request_id"]})
                table.append(block)
            block.content = content
            self.copies[content].append(block)


Reserved = tuple[int, str, list[int], int]
"""When a decode worker took blocks for whom: content that it held already, and how many blocks besides."""


def pool(run: Run, reserved: Sequence[Reserved] = ()) -> Iterator[str]:
    """Referenced and free make the pool; content is held by a block; what is referenced is not evicted or stored anew.

    Plays every pass: who was let go or reserved before it, its events in their order, and the blocks that its members
    need. Where blocks are reserved, somebody may be preempted when nobody is left to form a pass with, as room is held:
    then it counts to the next pass, and was after the one before.
    """
    found, before_ns = _Pool(), None
    coming, came = list(reserved), {name for _, name, _, _ in reserved}
    events = {at: list(rows) for at, rows in groupby(run.kv_events, key=lambda row: row["pass_index"])}
    going = sorted((row["released_ns"], row["request_id"]) for row in run.requests if row["released_ns"] is not None)
    for row in run.passes:
        while (going and going[0][0] <= row["start_ns"]) or (coming and coming[0][0] <= row["start_ns"]):
            if coming and not (going and going[0][0] <= coming[0][0]):
                _, name, content, count = coming.pop(0)
                yield from found.hit({"request_id": name, "block_hashes": content, "pass_index": row["pass_index"]})
                found.tables.setdefault(name, []).extend(_Block({name}) for _ in range(count))
                continue
            released, name = going.pop(0)
            found.let_go(name, released)
        for event in events.get(row["pass_index"], []):
            if _is_of_host(event):
                continue
            if event["kind"] == "preempt":
                found.let_go(event["request_id"], row["start_ns"], before_ns)
            elif event["kind"] == "hit" and event["request_id"] in came:
                continue  # what it hit when it reserved
            elif event["kind"] in ("hit", "readmit"):
                yield from found.hit(event)
            elif event["kind"] == "evict":
                yield from found.evict(event)
            else:
                found.store(event)
        for member in row["members"]:
            table = found.tables.setdefault(member["request_id"], [])
            needed = -(-(member["computed_before"] + member["scheduled_tokens"]) // run.block_size)
            table += [_Block({member["request_id"]}) for _ in range(needed - len(table))]
            if len(table) > needed:
                yield f"{member['request_id']} holds {len(table)} blocks in pass {row['pass_index']}, needs {needed}"
        blocks = found.blocks()
        referenced = sum(bool(block.holders) for block in blocks)
        free = len(blocks) - referenced  # with content; the others are blank
        held = sum(bool(copies) for copies in found.copies.values())
        if referenced != row["kv_blocks_used"]:
            yield f"pass {row['pass_index']}: {referenced} blocks are referenced, it says {row['kv_blocks_used']}"
        if held != row["kv_blocks_cached"]:
            yield f"pass {row['pass_index']}: content of {held} blocks is held, it says {row['kv_blocks_cached']}"
        if referenced + free > row["kv_blocks_total"]:
            yield f"pass {row['pass_index']}: {referenced} referenced and {free} free blocks in a pool that is smaller"
        before_ns = row["end_ns"] if reserved else None


def _is_of_host(event: Row) -> bool:
    """Whether only the host's memory changes."""
    return event.get("tier") == "host" and event["kind"] != "restore"


def host_memory(run: Run) -> Iterator[str]:
    """The host holds what was computed, no more than it has room for, and restores only what it holds."""
    computed: set[int] = set()
    held: set[int] = set()
    restored: dict[tuple[str, int], int] = {}
    for at, event in enumerate(run.kv_events):
        content = event["block_hashes"]
        if event["kind"] == "restore":
            restored[event["request_id"], event["pass_index"]] = len(content)
            if not held.issuperset(content):
                yield f"pass {event['pass_index']} restores what the host does not hold"
        elif not _is_of_host(event):
            computed.update(content if event["kind"] == "store" else ())
        elif event["kind"] == "store":
            if not computed.issuperset(content) or held.intersection(content):
                yield f"pass {event['pass_index']} copies what nobody computed, or what the host holds"
            held.update(content)
        else:
            if not held.issuperset(content):
                yield f"pass {event['pass_index']} takes from the host what it does not hold"
            held.difference_update(content)
        following = run.kv_events[at + 1] if at + 1 < len(run.kv_events) else None
        if len(held) > run.host_blocks and not (following and _is_of_host(following) and following["kind"] == "evict"):
            yield f"pass {event['pass_index']}: the host holds {len(held)} blocks and has room for {run.host_blocks}"
    for row in run.admissions:
        blocks = row.get("restored_blocks") or 0
        if run.kv_events and blocks != restored.get((row["request_id"], row["pass_index"]), 0):
            yield f"{row['request_id']} restores {blocks} blocks in pass {row['pass_index']}, its events differ"


Law = Callable[[Run], Iterator[str]]
LAWS: tuple[Law, ...] = (
    clocks_of_requests,
    clocks_of_passes,
    sums_of_passes,
    work_of_requests,
    admissions_of_requests,
    tokens_of_clients,
    ledger_of_requests,
    pool,
    host_memory,
)


def broken(run: Run) -> dict[str, list[str]]:
    """The laws that a run breaks, with what breaks them."""
    found = {law.__name__: list(law(run)) for law in LAWS}
    return {name: said for name, said in found.items() if said}
