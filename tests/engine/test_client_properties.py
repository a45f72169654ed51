"""Laws that every workload obeys, on random conversation trees."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.traces.content import output_content
from engine.traces.tree import Conversation, Segment, Trace, Turn
from engine.workload.hash_ids import block_keys_of
from tests.engine.client_harness import MS, settle, trace_of


def random_trace(seed: int, plays: int) -> Trace:
    rng = random.Random(seed)
    systems = [Segment(f"sys{n}", rng.randint(5, 60)) for n in range(2)]

    def grow(name: str, depth: int, parent: str | None, after: int | None, fork: bool) -> list[Conversation]:
        turns, born = [], []
        for k in range(rng.randint(1, 3)):
            spawn: list[str] = []
            if depth < 2 and rng.random() < 0.35:
                for c in range(rng.randint(1, 2)):
                    child = f"{name}.{k}{c}"
                    born += grow(child, depth + 1, name, k, rng.random() < 0.5)
                    spawn.append(child)
            head = (rng.choice(systems),) if k == 0 and not fork else ()
            new = Segment(f"{name}:{k}", rng.randint(1, 70))
            turns.append(Turn(rng.randint(1, 40), rng.randint(0, 80) * MS, (*head, new), tuple(spawn)))
        return [Conversation(name, turns, parent, after, "fork" if fork else "fresh", depth), *born]

    return trace_of(*(grow(f"p{n}", 0, None, None, False) for n in range(plays)))


knobs = st.fixed_dictionaries(
    {
        "lanes": st.integers(1, 4),
        "lane_assignment": st.sampled_from(["strided", "cursor"]),
        "lane_stagger_ms": st.sampled_from([0, 17]),
        "warmup_s": st.sampled_from([0, 0.1]),
        "duration_s": st.sampled_from([0.2, 0.7, 3]),
        "grace_s": st.sampled_from([0, 0.05, 10]),
        "wrap": st.booleans(),
        "dispatch_lag_ms": st.sampled_from([0, 2]),
        "request_latency_ms": st.sampled_from([0, 3]),
        "response_latency_ms": st.sampled_from([0, 7]),
    }
)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), plays=st.integers(1, 6), changes=knobs)
def test_laws_of_the_closed_loop(seed: int, plays: int, changes: dict[str, Any]) -> None:
    trace = random_trace(seed, plays)
    service = random.Random(seed)
    durations: dict[str, float] = {}
    rows, client = settle(trace, changes, lambda name: durations.setdefault(name, float(service.randint(1, 120))))
    deadline, cancel = client.deadline_ns, client.cancel_ns
    assert deadline is not None
    assert cancel is not None
    sent = client.sent

    # Nothing is sent too late; what ends late is canceled then.
    assert all(d < deadline for d in sent.dispatched_ns)
    assert all(end <= cancel and (ok or end == cancel) for end, ok in zip(sent.end_ns, sent.ok, strict=True))
    assert len({r.name for r in rows}) == len(rows)

    # The ledger balances: every turn of a play that sent something was sent or not.
    started = {id(c.live): c.live for c in sent.conversation}
    graph = sum(len(c.turns) for live in started.values() for c in live.play.conversations)
    assert graph == len(rows) + client.never_issued

    # Turns of a conversation in order, each after the response before it, children after their parent's turn.
    end_of = {(id(c), t): end for c, t, end in zip(sent.conversation, sent.turn, sent.end_ns, strict=True)}
    plays_of_lane: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for n, (c, t) in enumerate(zip(sent.conversation, sent.turn, strict=True)):
        think = c.conversation.turns[t].think_ns
        if t > 0:
            ready = [end_of[id(c), t - 1]]
            spawned = c.conversation.turns[t - 1].spawn
            ready += [
                end
                for (k, e), end in zip(zip(sent.conversation, sent.turn, strict=True), sent.end_ns, strict=True)
                if k.parent is c and k.conversation.conversation_id in spawned and e == len(k.conversation.turns) - 1
            ]
            assert sent.scheduled_ns[n] >= max(ready) + think
        elif c.parent is not None:
            assert sent.scheduled_ns[n] == sent.end_ns[c.spawned_by] + think
            assert sent.conversation[c.spawned_by] is c.parent
        plays_of_lane[c.live.lane][id(c.live)] += [sent.scheduled_ns[n] - think, sent.end_ns[n]]

    # A lane holds one play at a time.
    for lane in plays_of_lane.values():
        spans = sorted((min(times), max(times)) for times in lane.values())
        assert all(before[1] <= after[0] for before, after in pairwise(spans))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), block=st.sampled_from([1, 4, 16]))
def test_two_blocks_share_a_key_exactly_when_all_tokens_up_to_their_end_are_equal(seed: int, block: int) -> None:
    trace = random_trace(seed, 3)
    keys = block_keys_of(trace, block)
    prefix_of_key: dict[int, tuple[Any, ...]] = {}
    key_of_prefix: dict[tuple[Any, ...], int] = {}
    for play in trace.plays:
        by_id = {c.conversation_id: c for c in play.conversations}
        queue: list[tuple[Conversation, Any, tuple[Any, ...]]] = [(play.conversations[0], None, ())]
        for conversation, base, context in queue:
            walk = keys.walk(conversation, base, 0)
            tokens = context
            for k, turn in enumerate(conversation.turns):
                for segment in turn.new_input:
                    tokens += tuple((segment.content, i) for i in range(segment.tokens))
                assert walk.prompt_tokens[k] == len(tokens)
                name = output_content(conversation.conversation_id, k)
                tokens += tuple((name, i) for i in range(turn.output_tokens))
                for at in range(len(tokens) // block):
                    prefix = tokens[: (at + 1) * block]
                    key = walk.keys[k][at]
                    assert prefix_of_key.setdefault(key, prefix) == prefix
                    assert key_of_prefix.setdefault(prefix, key) == key
                for child in turn.spawn:
                    fork = by_id[child].mode == "fork"
                    queue.append((by_id[child], walk.marks[k] if fork else None, tokens if fork else ()))
