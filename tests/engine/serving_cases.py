"""Random workloads for the serving cores: conversations that grow, fork, repeat, are given up and run out of room.

Everything follows from one seed, so two servers that are fed the same case can be compared whole.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field, replace

import numpy as np

from engine.serving.contract import Finished, ServedRequest, Server, ServerConfig, ServerRecord
from engine.serving.speculation import Speculation

Tokens = tuple[int, ...]


class LinearTiming:
    """A pass costs a bit per pass, new token, request and token read; odd numbers, so that nothing cancels."""

    def __init__(self, between_ns: int = 0) -> None:
        self.between_ns = between_ns

    def pass_ns(self, prefills: int, new: int, read: int, decodes: int, context: int) -> int:
        return 101 + 13 * prefills + 7 * new + read // 3 + 5 * decodes + context // 2

    def explain(self, queries):  # the cores never ask
        raise NotImplementedError

    def describe(self):
        return {"kind": "linear"}


class MoodyTiming(LinearTiming):
    """The n-th answer depends on n, and so does the host time after each pass: like passes read off a recording."""

    def __init__(self, between_ns: int = 0) -> None:
        super().__init__(between_ns)
        self.asked = 0

    def pass_ns(self, prefills: int, new: int, read: int, decodes: int, context: int) -> int:
        self.asked += 1
        self.between_ns = self.asked * self.asked % 23
        return super().pass_ns(prefills, new, read, decodes, context) + 7 * self.asked % 101


@dataclass
class Case:
    """A configuration, a timing and a client, all drawn from ``seed``."""

    seed: int
    config: ServerConfig
    between_ns: int
    requests: int
    lanes: int
    abort_share: float
    private_share: float
    repeat_share: float
    follow_share: float
    exact_share: float
    longest: int
    think_ns: int
    notes: dict[str, int] = field(default_factory=dict)


def random_case(seed: int) -> Case:
    draw = random.Random(seed)
    block = draw.choice((1, 2, 3, 4, 4, 8, 16))
    seats = draw.choice((1, 2, 3, 5, 8, 16))
    longest = draw.choice((2, 5, 12, 30)) * block + draw.randrange(block + 2)
    fits_one = -(-(4 * longest) // block) + 1
    pool = fits_one + draw.choice((0, 1, 3, 10, 30, 400))
    budget = seats + draw.choice((0, 1, 3, block, 4 * block, 1000))
    config = ServerConfig(
        usable_kv_blocks=pool,
        block_size=block,
        max_num_seqs=seats,
        max_num_batched_tokens=budget,
        long_prefill_token_threshold=draw.choice((0, 0, 0, budget)),
        prefix_caching=draw.random() < 0.9,
        reserve_full_prompt=draw.random() < 0.7,
        record_events=draw.random() < 0.9,
    )
    return Case(
        seed=seed,
        config=config,
        between_ns=draw.choice((0, 0, 17)),
        requests=draw.choice((5, 20, 60)),
        lanes=draw.choice((1, 3, 8, 20)),
        abort_share=draw.choice((0, 0, 0.2)),
        private_share=draw.choice((0, 0.3, 1)),
        repeat_share=draw.choice((0, 0.2, 0.6)),
        follow_share=draw.choice((0.2, 0.7, 0.95)),
        exact_share=draw.choice((0, 0.5, 1)),
        longest=longest,
        think_ns=draw.choice((0, 0, 500, 5000)),
    )


def speculating(case: Case, seed: int) -> Case:
    """The same case with drafts; every request of it still fits."""
    draw = random.Random(seed)
    k = draw.choice((1, 2, 3, 5))
    acceptance = tuple(draw.choice((0.0, 0.3, 0.9, 1.0)) for _ in range(k))
    config = replace(
        case.config,
        speculation=Speculation(k, acceptance, seed),
        max_num_batched_tokens=case.config.max_num_batched_tokens + case.config.max_num_seqs * k,
        long_prefill_token_threshold=0,
        usable_kv_blocks=case.config.usable_kv_blocks + k,
    )
    return replace(case, config=config)


class Client:
    """Draws the requests of a case as the server finishes earlier ones."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.draw = random.Random(case.seed + 1)
        self.made = 0
        self.known_keys: dict[tuple[int, Tokens], int] = {}
        self.prompts: list[tuple[Tokens, int]] = []  # everything sent, with its number of outputs
        self.contexts: dict[int, Tokens] = {}  # prompt and output of each request
        self.limit = 4 * case.longest

    def keys(self, tokens: Tokens) -> list[int]:
        """Chained keys of the full blocks: small numbers, the same for the same tokens up to there."""
        size, parent, keys = self.case.config.block_size, 0, []
        for start in range(0, len(tokens) - size + 1, size):
            content = (parent, tokens[start : start + size])
            parent = self.known_keys.setdefault(content, len(self.known_keys) + 1)
            keys.append(parent)
        return keys

    def some_tokens(self, count: int) -> Tokens:
        return tuple(self.draw.randrange(2 if self.draw.random() < 0.5 else 1000) for _ in range(count))

    def request(self, after: int | None) -> ServedRequest:
        """A new request: a follow-up of ``after``, a repetition or fork of anything sent, or something new."""
        draw, case = self.draw, self.case
        outputs = draw.choice((1, 2, draw.randrange(1, case.longest + 1)))
        if self.prompts and draw.random() < case.repeat_share:
            prompt, outputs = draw.choice(self.prompts)
            if draw.random() < 0.3:
                prompt = prompt[: draw.randrange(1, len(prompt) + 1)]
        else:
            base: Tokens = ()
            if after is not None and draw.random() < case.follow_share:
                base = self.contexts[after]
            elif self.contexts and draw.random() < 0.5:
                whole = self.contexts[draw.choice(sorted(self.contexts))]
                base = whole[: draw.randrange(len(whole) + 1)]
            prompt = base + self.some_tokens(draw.randrange(1, case.longest + 1))
        size = case.config.block_size
        if draw.random() < case.exact_share and len(prompt) >= size:
            prompt = prompt[: len(prompt) // size * size]
        if len(prompt) + outputs > self.limit:
            prompt = prompt[: max(1, self.limit - outputs)]
        answer = random.Random(repr((prompt, outputs)))  # the same prompt gets the same answer
        context = prompt + tuple(answer.randrange(1000) for _ in range(outputs))
        keys = self.keys(context)
        if draw.random() < case.private_share:
            keys = keys[: draw.choice((0, len(prompt) // size, len(keys)))]
        request = ServedRequest(self.made, len(prompt), outputs, keys)
        self.made += 1
        self.prompts.append((prompt, outputs))
        self.contexts[request.index] = context
        return request


def play(
    case: Case, server: Server, cut_ns: int | None = None
) -> tuple[ServerRecord, list[tuple[int, list[Finished]]]]:
    """Feed a case to a server to its end; returns the record and what every call of ``advance`` returned.

    From ``cut_ns`` on nothing is sent, and all that is in flight then is given up.
    """
    client = Client(case)
    draw = client.draw
    agenda: list[tuple[int, int, str, int]] = []  # time, tie-break, what, index
    ticket = 0

    def plan(time: int, what: str, index: int) -> None:
        nonlocal ticket
        heapq.heappush(agenda, (time, ticket, what, index))
        ticket += 1

    if cut_ns is not None:
        plan(cut_ns, "cut", -1)
    for lane in range(case.lanes):
        plan(lane * draw.choice((0, 0, 40, 3000)), "new", -1)
    now, returned = 0, []
    while agenda or server.has_work:
        while agenda and agenda[0][0] <= now:
            _time, _ticket, what, index = heapq.heappop(agenda)
            if what == "abort":
                server.abort(index, now)
            elif what == "cut":
                agenda.clear()
                over = {done.index for _, finished in returned for done in finished}
                for left in set(range(client.made)) - over:
                    server.abort(left, now)
            elif client.made < case.requests:
                request = client.request(index if index >= 0 else None)
                server.receive(request, now)
                if draw.random() < case.abort_share:
                    plan(now + draw.randrange(1, 4000), "abort", request.index)
                    plan(now + draw.randrange(1, 9000), "new", request.index)
        if not server.has_work:
            if agenda:
                now = max(now, agenda[0][0])
            continue
        now, finished = server.advance(now, agenda[0][0] if agenda else None)
        returned.append((now, finished))
        if cut_ns is not None and cut_ns <= now and not agenda:
            continue
        for done in finished:
            plan(done.end_ns + draw.randrange(case.think_ns + 1), "new", done.index)
            if draw.random() < 0.1:
                plan(done.end_ns + draw.randrange(case.think_ns + 1), "new", done.index)
    return server.finish(), returned


def differences(left: ServerRecord, right: ServerRecord) -> list[str]:
    """Where two records differ, in words; empty when they are equal array by array, types included."""
    found = []
    for table in ("passes", "requests", "stretches", "prefill_chunks", "admissions", "preemptions", "events"):
        a, b = getattr(left, table), getattr(right, table)
        if a.keys() != b.keys():
            found.append(f"{table}: columns {sorted(a.keys() ^ b.keys())}")
        for name in a.keys() & b.keys():
            found += _differences(f"{table}.{name}", a[name], b[name])
    if left.verify_width != right.verify_width:
        found.append(f"verify_width: {left.verify_width} and {right.verify_width}")
    for name in ("event_keys", "bursts"):
        found += _differences(name, getattr(left, name), getattr(right, name))
    return found


def _differences(name: str, a: np.ndarray, b: np.ndarray) -> list[str]:
    if a.dtype != b.dtype or a.shape != b.shape:
        return [f"{name}: {a.dtype} {a.shape} and {b.dtype} {b.shape}"]
    if not np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
        at = np.flatnonzero(~((a == b) | ((a != a) & (b != b))))
        return [f"{name}: {len(at)} differ, the first at {at[0]}: {a[at[0]]} and {b[at[0]]}"]
    return []
