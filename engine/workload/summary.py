"""What is in a workload, in figures: sizes, shapes of trees, think times, and what a cache could save."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from engine.traces.edges import Place, edges_of, in_order
from engine.traces.tree import Edge, Play, Trace
from engine.workload.content import BlockKeys, Mark, Walk
from engine.workload.hash_ids import block_keys_of

BLOCK_TOKENS = 16
"""Block size at which reuse is counted where the trace has none of its own."""
NAME_CHARS = 17
S = 1_000_000_000

Lines = list[tuple[str, str]]


def describe(trace: Trace) -> str:
    """A few lines of figures, each with its name."""
    block = trace.hash_block_tokens or BLOCK_TOKENS
    reuse, shape, recorded = _Reuse(block_keys_of(trace, block), block), _Shape(), _Recorded()
    for play in trace.plays:
        edges = edges_of(play)
        reuse.add(play, in_order(play, edges))
        shape.add(play, edges)
        recorded.add(play)
    arrivals = [play.arrival_ns for play in trace.plays if play.arrival_ns is not None]
    spread = f"over {(max(arrivals) - min(arrivals)) / S:,.1f} s" if arrivals else "not recorded"
    turns = [turn for play in trace.plays for c in play.conversations for turn in c.turns]
    lines = [
        ("trace", f"{trace.name}, {trace.format}, SHA-256 {trace.digest[:12]}..."),
        ("plays", f"{len(trace.plays):,}; arrivals {spread}"),
        ("turns", f"{len(turns):,}; per play {_percentiles(shape.turns, 0)}"),
        *shape.lines(),
        ("prompt tokens", _spread(reuse.prompts)),
        ("output tokens", _spread([turn.output_tokens for turn in turns])),
        *recorded.lines(),
        ("blocks", f"{block} tokens" + ("" if trace.hash_block_tokens else " (as counted here)")),
        *reuse.lines(),
        *((f"note: {name}", text) for name, text in sorted(trace.notes.items())),
    ]
    return "\n".join(f"{name:<{NAME_CHARS}} {text}" for name, text in lines)


class _Reuse:
    """What a cache that forgets nothing would hold of each prompt, when the plays come one by one.

    Of a prompt at least the last token is computed. The *theoretical prefix hit* counts full blocks instead, of which
    the leading ones were seen before in the same play.
    """

    def __init__(self, keys: BlockKeys, block: int) -> None:
        self.prompts: list[int] = []
        self._keys = keys
        self._block = block
        self._seen: set[int] = set()
        self._in_trace = self._in_play = self._blocks = self._hits = 0

    def add(self, play: Play, order: Sequence[Place]) -> None:
        walks = self._walks(play)
        outputs = {c.conversation_id: [turn.output_tokens for turn in c.turns] for c in play.conversations}
        own: set[int] = set()
        for name, number in order:
            keys, tokens = walks[name].keys[number], walks[name].prompt_tokens[number]
            whole = min(tokens // self._block, len(keys))
            in_play, in_trace = _leading(keys, whole, own), _leading(keys, whole, self._seen)
            most = (tokens - 1) // self._block
            self.prompts.append(tokens)
            self._in_play += min(in_play, most) * self._block
            self._in_trace += min(in_trace, most) * self._block
            self._hits += in_play
            self._blocks += tokens // self._block
            computed = (tokens + outputs[name][number] - 1) // self._block
            own.update(keys[in_play:computed])
            self._seen.update(keys[in_trace:computed])

    def _walks(self, play: Play) -> dict[str, Walk]:
        by_id = {c.conversation_id: c for c in play.conversations}
        waiting: list[tuple[str, Mark | None]] = [(play.conversations[0].conversation_id, None)]
        walks: dict[str, Walk] = {}
        for name, base in waiting:  # grows: parents come before their children
            walk = walks[name] = self._keys.walk(by_id[name], base, 0)
            for number, turn in enumerate(by_id[name].turns):
                forked = walk.marks.get(number)
                waiting += [(child, forked if by_id[child].mode == "fork" else None) for child in turn.spawn]
        return walks

    def lines(self) -> Lines:
        total = sum(self.prompts)
        hit = f"{100 * self._hits / self._blocks:.1f} %" if self._blocks else "unknown"
        return [
            ("reusable at most", f"{100 * self._in_trace / total:.1f} % of the prompt tokens, played one by one"),
            ("within plays", f"{100 * self._in_play / total:.1f} % of the prompt tokens"),
            ("prefix hit", f"{hit} of the full blocks of prompts were seen before in their play"),
        ]


def _leading(keys: Sequence[int], whole: int, seen: set[int]) -> int:
    """How many leading keys were seen; one that was seen has only such before it, since it names them as well."""
    return bisect_left(range(whole), True, key=lambda at: keys[at] not in seen)


class _Shape:
    """What trees look like, and how long clients think."""

    def __init__(self) -> None:
        self.turns: list[int] = []
        self._children: list[int] = []
        self._depths: Counter[int] = Counter()
        self._forks = self._alone = self._joins = 0
        self._relations: Counter[str] = Counter()
        self._thinks_s: list[float] = []

    def add(self, play: Play, edges: Mapping[Place, tuple[Edge, ...]]) -> None:
        self.turns.append(len(edges))
        self._children.append(len(play.conversations) - 1)
        parent_of = {c.conversation_id: c.parent for c in play.conversations}
        awaited: set[str | None] = set()
        for (name, _), waits in edges.items():
            joined = [edge.conversation_id for edge in waits if edge.relation == "join"]
            self._joins += bool(joined)
            for source in joined:
                at: str | None = source
                while at != name and at is not None:  # up to the conversation that goes on
                    awaited.add(at)
                    at = parent_of[at]
        for conversation in play.conversations:
            self._depths[conversation.depth] += 1
            self._forks += conversation.mode == "fork"
            self._alone += conversation.parent is not None and conversation.conversation_id not in awaited
            self._thinks_s += [turn.think_ns / S for turn in conversation.turns[1:]]
            for turn in conversation.turns:
                self._relations.update(edge.relation for edge in turn.edges or ())

    def lines(self) -> Lines:
        children = sum(self._children)
        lines = [("conversations", f"{len(self._children) + children:,}, {children:,} of them children")]
        if children:
            depths = ", ".join(f"{count:,} at {depth}" for depth, count in sorted(self._depths.items()))
            lines += [
                ("children per play", _percentiles(self._children, 0)),
                ("children", f"{self._forks:,} forked, {self._alone:,} that no turn waits for (background)"),
                ("joins", f"{self._joins:,} turns wait for children"),
                ("depth", depths),
            ]
        if self._relations:
            edges = ", ".join(f"{count:,} {relation}" for relation, count in sorted(self._relations.items()))
            lines.append(("edges", edges))
        if self._thinks_s:
            lines.append(("think time, s", _percentiles(self._thinks_s, 3)))
        else:
            lines.append(("think time, s", "none: no turn follows another"))
        return lines


class _Recorded:
    """When the recording sent what, where it says so; a response whose duration was not recorded counts as none."""

    def __init__(self) -> None:
        self._spans_s: list[float] = []
        self._peaks: list[int] = []
        self._busy_ns = self._served_ns = 0
        self._unknown = self._timed = 0

    def add(self, play: Play) -> None:
        turns = [turn for c in play.conversations for turn in c.turns]
        times = [(turn.start_ns, turn.api_ns) for turn in turns if turn.start_ns is not None]
        self._timed += len(times)
        self._unknown += len(turns) - sum(api is not None for _, api in times)
        if not times:
            return
        self._spans_s.append((max(at + (api or 0) for at, api in times) - min(at for at, _ in times)) / S)
        begun, ended = [(at, 1) for at, api in times if api], [(at + api, -1) for at, api in times if api]
        level = peak = last = 0
        for at, step in sorted(begun + ended):  # at equal times ends come first
            self._served_ns += level * (at - last)
            self._busy_ns += (at - last) if level else 0
            level, last = level + step, at
            peak = max(peak, level)
        if begun:
            self._peaks.append(peak)

    def lines(self) -> Lines:
        if not self._timed:
            return []
        lines = [("recorded, s", f"plays took {_percentiles(self._spans_s, 1)}")]
        if self._busy_ns:
            mean = self._served_ns / self._busy_ns
            lines.append(
                ("in flight", f"recorded: mean {mean:.2f} while any is; most in a play {_percentiles(self._peaks, 0)}")
            )
        if self._unknown:
            lines.append(("no duration", f"{self._unknown:,} of the turns were recorded without one"))
        return lines


def _spread(values: Sequence[int]) -> str:
    array = np.array(values, np.float64)
    middle, most = np.quantile(array, 0.5), array.max()
    return f"mean {array.mean():,.1f}, median {middle:,.1f}, largest {most:,.1f}, sum {array.sum():,.0f}"


def _percentiles(values: Iterable[float], digits: int) -> str:
    array = np.array(list(values), np.float64)
    shares = np.quantile(array, [0.1, 0.5, 0.9, 0.99])
    named = [f"p{name} {value:,.{digits}f}" for name, value in zip((10, 50, 90, 99), shares, strict=True)]
    return f"mean {array.mean():,.{digits or 1}f}, {', '.join(named)}, largest {array.max():,.{digits}f}"
