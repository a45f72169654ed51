"""SGLang's rules once more, pass by pass and request by request, with a tree of plain lists: slow, and easy to check.

It shares no state and no shortcut with the core that is tested against it, only the columns of the record.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count

import numpy as np

from engine.serving.contract import Finished, ServedRequest, ServerConfig, ServerRecord
from engine.serving.record import (
    ADMISSION_COLUMNS,
    CHUNK_COLUMNS,
    EVENT_COLUMNS,
    PASS_ROW,
    PREEMPTION_COLUMNS,
    REQUEST_COLUMNS,
    STRETCH_COLUMNS,
    columns,
    pass_columns,
    private_key,
)


@dataclass(eq=False)
class Stretch:
    """Pages that lie together in the tree: all keys from the root to its end."""

    start: int
    path: list[int]
    born: int
    used: int
    let_go: int = -1

    def __len__(self) -> int:
        return len(self.path) - self.start


@dataclass(eq=False)
class R:
    """A request."""

    index: int
    prompt: int
    output: int
    keys: list[int]
    received: int
    joined: int = -1
    sampled: int = 0
    computed: int = 0
    before: int = 0  # computed before its last retraction
    again: int = 0
    in_tree: int = 0  # pages of it that the tree holds for it
    room: int = 0  # tokens that it was given room for in its last decode, drafts included
    verified: int = 0  # decodes with drafts so far
    seq: int = -1
    admissions: int = 0
    retractions: int = 0
    admit: tuple[int, int, int] = (-1, -1, -1)
    first_token: int = -1
    first_ns: int = -1
    last_token: int = -1
    aborted: bool = False
    row: list[int] = field(default_factory=list)

    @property
    def known(self) -> int:
        return self.prompt + self.sampled


class Oracle:
    """A server."""

    def __init__(self, config: ServerConfig, timing) -> None:
        self.c, self.timing, self.page = config, timing, config.block_size
        self.tree: list[Stretch] = []
        self.queue: list[R] = []
        self.decoding: list[R] = []
        self.partial: R | None = None
        self.all: dict[int, R] = {}
        self.count = 0
        self.tick, self.born, self.join = count(1), count(1), count()
        self.full = False
        self.first = min(Fraction(7, 10) * Fraction(str(config.sglang.schedule_conservativeness)), Fraction(1))
        self.ratio = self.first
        self.ready: int | None = None
        self.ended = 0
        self.passes, self.stretches, self.chunks, self.admits, self.retracted, self.events = ([] for _ in range(6))
        self.event_keys: list[int] = []
        self.bursts: dict[tuple[int, int], list[int]] = {}  # by pass and seq with which a stretch began
        self.drafts = config.speculation.draft_tokens if config.speculation else 0

    # pages

    def running(self) -> list[R]:
        return [*self.decoding, *([self.partial] if self.partial else [])]

    def held(self, node: Stretch) -> bool:
        end = len(node.path)
        return any(r.in_tree >= end and r.keys[: node.start + 1] == node.path[: node.start + 1] for r in self.holders)

    @property
    def holders(self) -> list[R]:
        return [r for r in self.all.values() if r.in_tree]

    def pages(self, r: R) -> int:
        return -(-max(r.computed, r.room) // self.page)

    @property
    def free(self) -> int:
        own = sum(self.pages(r) - r.in_tree for r in self.computing)
        return self.c.usable_kv_blocks - sum(len(n) for n in self.tree) - own - self.promised

    @property
    def computing(self) -> list[R]:
        return [r for r in self.all.values() if r.computed]

    promised = 0  # taken for the pass that is being formed

    @property
    def evictable(self) -> int:
        return sum(len(n) for n in self.tree if not self.held(n))

    def look(self, keys: list[int], limit: int) -> int:
        """Pages that the tree has of the beginning of ``keys``; cuts what is left half-way."""
        now, at = next(self.tick), 0
        while at < limit:
            nodes = [n for n in self.tree if n.start == at and n.path[: at + 1] == keys[: at + 1]]
            if not nodes:
                break
            (node,) = nodes
            node.used = now
            end = at
            while end < min(limit, len(node.path)) and node.path[end] == keys[end]:
                end += 1
            if end < len(node.path):
                self.tree.append(Stretch(at, node.path[:end], next(self.born), now, node.let_go))
                node.start = end
                return end
            at = end
        return at

    def add(self, r: R, full: int, at_pass: int) -> None:
        if not self.c.prefix_caching or full == r.in_tree:
            return
        there = self.look(r.keys, full)
        if there < full:
            now = max(n.used for n in self.tree) if self.tree else 0
            self.tree.append(Stretch(there, r.keys[:full], next(self.born), max(now, 0), -1))
            self.tree[-1].used = self.last_tick()
            self.event(0, at_pass, r.index, r.keys[there:full], -1)
        r.in_tree = full

    def last_tick(self) -> int:
        """The number of the last look."""
        value = next(self.tick)
        self.tick = count(value)
        return value - 1

    def let_go(self, r: R, now: int) -> None:
        end, r.in_tree = r.in_tree, 0
        for node in self.tree:
            if len(node.path) <= end and r.keys[: len(node.path)] == node.path and not self.held(node):
                node.let_go = now

    def take(self, pages: int, r: R) -> None:
        while pages > self.free:
            leaves = [
                n
                for n in self.tree
                if not self.held(n)
                and not any(o.start == len(n.path) and o.path[: o.start] == n.path for o in self.tree)
            ]
            leaf = min(leaves, key=lambda n: (n.used, n.born))
            self.tree.remove(leaf)
            self.event(
                1, len(self.passes), r.index, leaf.path[: leaf.start - 1 if leaf.start else None : -1], leaf.let_go
            )
        self.promised += pages

    def event(self, kind: int, at: int, index: int, keys: list[int], let_go: int) -> None:
        if self.c.record_events:
            self.events.append((kind, at, index, len(self.event_keys), len(keys), let_go))
            self.event_keys += keys

    # between passes

    @property
    def has_work(self) -> bool:
        return bool(self.queue or self.running())

    def receive(self, q: ServedRequest, now: int) -> None:
        if not self.has_work:
            self.ratio = self.first
        most = (q.prompt_tokens + q.output_tokens) // self.page + 1
        keys = [*q.block_keys[:most]]
        keys += [private_key(q.index, at) for at in range(len(keys), most)]
        self.all[q.index] = r = R(q.index, q.prompt_tokens, q.output_tokens, keys, now)
        self.count = max(self.count, q.index + 1)
        self.put(r)

    def put(self, r: R) -> None:
        r.joined = next(self.join)
        self.queue.append(r)

    def abort(self, index: int, now: int) -> None:
        r = self.all[index]
        if r in self.queue:
            self.queue.remove(r)
            r.aborted = True
        elif r in self.running():
            self.decoding = [o for o in self.decoding if o is not r]
            self.partial = None if self.partial is r else self.partial
            r.aborted, self.full = True, False
            self.leave(r, now, True)

    def leave(self, r: R, now: int, keep: bool) -> None:
        if keep:
            self.add(r, r.computed // self.page, len(self.passes) - 1)
        self.let_go(r, now)
        r.before, r.computed, r.room = max(r.before, r.computed), 0, 0

    def advance(self, now: int, until: int | None) -> tuple[int, list[Finished]]:
        while True:
            end, done = self.one_pass(now)
            self.ready = now = end + self.timing.between_ns
            if done or not self.has_work or (until is not None and now >= until):
                return now, done

    # one pass

    def one_pass(self, now: int) -> tuple[int, list[Finished]]:
        rules = self.c.sglang
        at, retracted_before = len(self.passes), len(self.retracted)
        work: list[tuple[R, int, int]] = []
        tries = self.partial is not None or (bool(self.queue) and not self.full)
        rides = rules.mixed_chunk and bool(self.decoding)
        ready = False
        if rides or not tries:
            ready = True
            self.open(now)
        if tries and len(self.retracted) == retracted_before:
            work = self.prefill(now)
        steps = not work or rides
        if steps and not ready:
            self.open(now)
        if not work and len(self.retracted) == retracted_before:
            self.ratio = max(self.ratio - self.first * Fraction(86, 100) / 600, self.first * Fraction(14, 100))

        decodes = list(self.decoding) if steps else []
        contexts = [r.computed for r in decodes]
        read = sum(before for _, before, _ in work)
        new = sum(tokens for _, _, tokens in work)
        end = now + self.timing.pass_ns(len(work), new, read, len(decodes), sum(contexts))
        size = sum(len(n) for n in self.tree)
        used = self.c.usable_kv_blocks - self.free - self.evictable
        moving = {r.index for r, _, _ in work} | {r.index for r in self.running()}
        fresh = [r.known for r in self.queue if not r.admissions]
        again = [r.known for r in self.queue if r.admissions]
        completes = sum(before + tokens == r.known for r, before, tokens in work)
        period = end - self.ended if self.passes and now == self.ready else -1
        self.ended = end
        kept = [self.accepted(r) for r in decodes]
        row = (now, end, period, new, read, sum(kept) + completes, used, size, len(moving), len(self.queue))
        prefills = moments([r.known for r, _, _ in work])
        waits = *moments(fresh), *moments(again)
        self.passes.append((*row, len(self.retracted) - retracted_before, *prefills, *moments(contexts), *waits))
        self.promised = 0
        for r, tokens in zip(decodes, kept, strict=True):
            if r.row[3] == at - 1:
                r.row[3] = at
            else:
                self.chunks.append((at, r.index, r.seq, r.computed, 1 + self.drafts))
                self.begin(r, at, r.computed + tokens)
            self.bursts[r.row[2], r.seq].append(tokens)
            r.room = r.computed + 1 + self.drafts
            r.computed += tokens
            r.sampled += tokens
            r.verified += 1
            r.last_token = at
        for r, before, tokens in work:
            self.chunks.append((at, r.index, r.seq, before, tokens))
            r.again += max(0, min(before + tokens, r.before) - before)
            r.computed = before + tokens
            whole = r.computed == r.known
            self.add(r, r.computed // self.page, at)
            if whole:
                r.sampled += 1
                self.begin(r, at, r.computed)
                self.bursts[at, r.seq].append(1)
                if r.first_token < 0:
                    r.first_token, r.first_ns = at, end
                r.last_token = at
                self.decoding.append(r)
        done = sorted((r for r in self.decoding if r.sampled == r.output), key=lambda r: r.seq)
        self.decoding = [r for r in self.decoding if r.sampled < r.output]
        for r in done:
            self.full = False
            self.leave(r, end, True)
        return end, [Finished(r.index, at, end, r.first_ns, r.admit[2]) for r in done]

    def begin(self, r: R, at: int, computed: int) -> None:
        """A stretch of passes in which a request samples."""
        r.row = [r.index, r.seq, at, at, computed]
        self.stretches.append(r.row)
        self.bursts[at, r.seq] = []

    def accepted(self, r: R) -> int:
        """Tokens that a decoding request samples: one, and drafts up to the first that is rejected or not asked for."""
        if self.c.speculation is None:
            return 1
        return min(int(self.c.speculation.lengths(r.index, r.verified, 1)[0]), r.output - r.sampled)

    def open(self, now: int) -> None:
        """Pages for the next token, and the drafts after it, of every decoding request."""

        def needs() -> list[tuple[R, int]]:
            wanted = [(r, -(-(r.computed + 1 + self.drafts) // self.page)) for r in self.decoding]
            return sorted(((r, max(0, n - self.pages(r))) for r, n in wanted), key=lambda need: need[0].seq)

        short = False
        while sum(pages for _, pages in needs()) > self.free + self.evictable:
            short = True
            if len(self.decoding) > 1 and self.drafts:
                r = self.decoding.pop()
            elif len(self.decoding) > 1:
                r = min(self.decoding, key=lambda r: (r.sampled, -r.prompt, -self.decoding.index(r)))
                self.decoding.remove(r)
            else:
                r, self.partial = self.partial, None
            self.retracted.append((r.index, len(self.passes), self.pages(r)))
            r.retractions += 1
            self.leave(r, now, False)
            self.put(r)
            self.full = False
        if short:
            sampled, asked = sum(r.sampled for r in self.decoding), sum(r.output for r in self.decoding)
            self.ratio = min(Fraction(1), Fraction(sampled + 20 * len(self.decoding), asked + 1))
        for r, pages in needs():
            self.take(pages, r)

    def prefill(self, now: int) -> list[tuple[R, int, int]]:
        rules, page = self.c.sglang, self.page
        seats = self.c.max_num_seqs - len(self.decoding)
        if seats <= 0 and self.partial is None:
            self.full = True
            return []
        if self.c.policy == "lpm" and self.c.prefix_caching and len(self.queue) <= 128:
            self.sort()
        riding = len(self.decoding) if rules.mixed_chunk else 0
        held = riding + self.ratio * sum(min(r.output - r.sampled, rules.clip_max_new_tokens) for r in self.decoding)
        tokens_left = rules.max_prefill_tokens - riding
        chunk_left = rules.chunked_prefill_size - riding if rules.chunked_prefill_size else 10**15
        work: list[tuple[R, int, int]] = []

        def up(tokens: int) -> int:
            return -(-tokens // page) * page

        def room() -> Fraction:
            return (self.free + self.evictable) * page - held

        if self.partial is not None:
            r = self.partial
            missing = r.known - r.computed
            tokens = min(missing, max(chunk_left, page), (self.free + self.evictable) * page)
            tokens = missing if tokens == missing else tokens // page * page
            if not tokens:
                return []
            work.append((r, r.computed, tokens))
            held += up(tokens)
            if tokens == missing:
                held += min(r.output - r.sampled, rules.clip_max_new_tokens)
                self.partial = None
            tokens_left -= up(tokens)
            chunk_left -= up(tokens)
        for r in list(self.queue):
            if len(work) >= seats:
                self.full = True
                break
            hits = self.look(r.keys, (r.known - 1) // page) if self.c.prefix_caching else 0
            missing = r.known - hits * page
            ahead = min(r.output - r.sampled, rules.clip_max_new_tokens)
            if missing + ahead >= room():
                self.full = True
                break
            if up(missing) >= tokens_left and work:
                break
            r.in_tree, r.computed = hits, hits * page
            if missing + ahead >= room():
                r.computed = 0
                self.let_go(r, now)
                self.full = True
                break
            tokens = missing
            if up(missing) > chunk_left:
                tokens, ahead = chunk_left // page * page, 0
                if tokens <= 0:
                    r.computed = 0
                    self.let_go(r, now)
                    break
                self.partial = r
            self.queue.remove(r)
            work.append((r, hits * page, tokens))
            waiting = sum(o.joined < r.joined for o in self.queue) if self.c.policy == "lpm" else 0
            if not (self.c.policy == "lpm" and self.c.prefix_caching):
                waiting = 0
            r.seq = len(self.admits)
            cached = hits * page
            self.admits.append(
                (r.index, r.seq, r.admissions, len(self.passes), now, cached, hits, r.admissions > 0, waiting)
            )
            if not r.admissions:
                r.admit = (now, len(self.passes), cached)
            r.admissions += 1
            held += up(tokens) + ahead
            tokens_left -= up(tokens)
            chunk_left -= up(tokens)
            if room() <= 0:
                self.full = True
                break
            if tokens_left <= 0 or chunk_left <= 0:
                break
        for r, before, tokens in work:
            self.take(-(-(before + tokens) // page) - before // page, r)
        return work

    def sort(self) -> None:
        page, seen, rank = self.page, [], {}
        for r in self.queue:
            limit = (r.known - 1) // page
            hits = self.look(r.keys, limit)
            rank[r.index] = -hits
            if hits * page <= 32:
                common = [sum(1 for _ in shared(r.keys[:limit], other)) * page for other in seen]
                if max(common, default=0) >= 32:
                    rank[r.index] = 1
                else:
                    seen.append(r.keys[:limit])
        self.queue.sort(key=lambda r: rank[r.index])

    def finish(self) -> ServerRecord:
        by_pass_and_seq = lambda at: lambda row: (row[at], row[1] if at == 2 else row[2])  # noqa: E731
        stretches = sorted(self.stretches, key=by_pass_and_seq(2))
        return ServerRecord(
            passes=pass_columns(columns(PASS_ROW, self.passes)),
            requests=columns(REQUEST_COLUMNS, [self.row(i) for i in range(self.count)]),
            stretches=columns(STRETCH_COLUMNS, stretches),
            prefill_chunks=columns(CHUNK_COLUMNS, sorted(self.chunks, key=by_pass_and_seq(0))),
            admissions=columns(ADMISSION_COLUMNS, self.admits),
            preemptions=columns(PREEMPTION_COLUMNS, self.retracted),
            events=columns(EVENT_COLUMNS, self.events),
            event_keys=np.array(self.event_keys, np.int64),
            bursts=np.array([n for row in stretches for n in self.bursts[row[2], row[1]]] if self.drafts else [], int),
            verify_width=1 + self.drafts,
        )

    def row(self, index: int) -> tuple[int, ...]:
        r = self.all.get(index) or R(index, 0, 0, [], -1)
        return (r.received, *r.admit, r.again, r.retractions, r.sampled, r.first_token, r.last_token, r.aborted)


def shared(left: list[int], right: list[int]):
    for a, b in zip(left, right, strict=False):
        if a != b:
            return
        yield a


def moments(values: list[int]) -> tuple[int, int, int]:
    return len(values), sum(values), sum(v * v for v in values)
